package moe_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/emulated"
	"sonicmoe/internal/drivertest"
	"sonicmoe/internal/trial"
	"sonicmoe/jit"
	"sonicmoe/moe"
	kt "sonicmoe/moe/internal/kernel/kerneltest"
)

// TestPassesInSequence queues passes of all kinds and sizes one after another, in one workspace and
// with the same memory for the routing. A kernel may start while the last kernels of the previous
// pass still run. The test checks that there is no race, and that each pass has the bits that it
// has without other passes.
func TestPassesInSequence(t *testing.T) {
	for i, c := range []moe.Config{
		{Hidden: 128, Intermediate: 64, NumExperts: 4, TopK: 2, Lists: true},
		{Hidden: 144, Intermediate: 48, NumExperts: 12, TopK: 9, RouterBias: true, Bias: true, SharedExperts: 1, SharedGate: true}, // K is above 8, so the sum over a token's slots loads the last slots later
		fp16(moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 6, TopK: 3, InOut: true, Logits: moe.F32}),                      // this layer has no kernels for a single token
		{Hidden: 16, Intermediate: 16, NumExperts: 40, TopK: 1},                                                                    // the router's sums do not fit the memory of Y
	} {
		if testing.Short() && i > 0 {
			continue
		}
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			dev := testDevice(t)
			if drivertest.Name() == "emulated" {
				target := emulated.Target()
				target.SMs = 4
				var err error
				dev, err = emulated.New(emulated.Options{Target: target, Races: true, StrictProxy: true})
				require.NoError(t, err)
				defer jit.Forget(dev)
			}
			passesBehindEachOther(t, dev, newLayer(t, dev, c, moe.WithDecode(100)))
		})
	}
}

func passesBehindEachOther(t *testing.T, dev driver.Device, layer *moe.Layer) {
	const most = 130
	c := layer.Config()
	all, err := trial.New(dev, layer, most, 1, 6)
	require.NoError(t, err)
	defer all.Close()
	require.NoError(t, all.PrepareBackward(17, c.Type))
	require.NoError(t, all.Run(testContext(t), all.Args))
	call, s, memory := all.Call(), all.Stream(), moe.NewArena(dev)
	defer memory.Free()
	args := all.Args
	args.Workspace = all.Back.Workspace
	// These are the experts and scores of passes with a given routing. No pass writes them.
	experts, scores, tokens := memory.Tensor(args.ExpertIDs.Shape), memory.Tensor(args.Scores.Shape), memory.Tensor(c.ListShapes(most, most*c.TopK).ExpertIDs)
	require.NoError(t, memory.Err())
	require.NoError(t, s.Copy(experts.Ptr, args.ExpertIDs.Ptr, experts.Shape.Bytes()))
	require.NoError(t, s.Copy(scores.Ptr, args.Scores.Ptr, scores.Shape.Bytes()))
	ofEntry := make([]int32, most*c.TopK)
	for i := range ofEntry {
		ofEntry[i] = int32(i / c.TopK)
	}
	require.NoError(t, moe.Write(s, tokens, ofEntry))

	type pass struct {
		tokens      int
		given       string // the kind of given routing: ids, or a list if the layer has lists
		keeps, back bool
		f           moe.ForwardArgs
		alone       []uint16
	}
	passes := []*pass{
		{tokens: 1}, {tokens: 5}, {tokens: 100}, {tokens: 8, keeps: true}, {tokens: 2}, {tokens: 1, keeps: true}, {tokens: 3}, {tokens: 30, given: "ids"}, {tokens: 4},
		{tokens: most, keeps: true, back: true}, {tokens: 7}, {tokens: 20, given: "list"}, {tokens: 2}, {tokens: 70, keeps: true}, {tokens: 5, given: "ids"}, {tokens: 6}, {tokens: 6}, {tokens: 20}, {tokens: 1}, {tokens: 1},
	}
	queue := func(p *pass) {
		forward := call.Forward
		if p.given != "" {
			forward = call.ForwardExperts
		}
		require.NoError(t, forward(s, p.f))
		if p.back {
			require.NoError(t, call.Backward(s, all.Back))
		}
	}
	for _, p := range passes {
		p.f, err = args.Tokens(p.tokens)
		require.NoError(t, err)
		if !p.keeps {
			p.f.H, p.f.SharedH = moe.Tensor{}, moe.Tensor{}
		}
		switch {
		case p.given == "list" && c.HasLists():
			shapes := c.ListShapes(p.tokens, p.tokens*c.TopK)
			p.f.List = moe.RoutingList{Tokens: moe.Tensor{Ptr: tokens.Ptr, Shape: shapes.ExpertIDs}, ExpertIDs: moe.Tensor{Ptr: experts.Ptr, Shape: shapes.ExpertIDs}, Scores: moe.Tensor{Ptr: scores.Ptr, Shape: shapes.Scores}}
		case p.given != "":
			p.f.Scores.Ptr, p.f.ExpertIDs.Ptr = scores.Ptr, experts.Ptr
		}
		p.f.O = memory.Tensor(p.f.O.Shape)
		require.NoError(t, memory.Err())
		require.NoError(t, s.Fill32(args.Workspace.Ptr, 0xffffffff, args.Workspace.Bytes/4))
		queue(p)
		p.alone = make([]uint16, p.f.O.Shape.Elements())
		require.NoError(t, moe.Read(s, p.f.O, p.alone))
		require.NoError(t, s.Fill32(p.f.O.Ptr, 0xffffffff, p.f.O.Shape.Bytes()/4))
	}
	for _, p := range passes {
		queue(p)
	}
	require.NoError(t, layer.Explain(s.Synchronize(testContext(t))))
	for i, p := range passes {
		o := make([]uint16, len(p.alone))
		require.NoError(t, moe.Read(s, p.f.O, o))
		kt.SameBits(t, p.alone, o, fmt.Sprintf("O of pass %d, %d tokens", i, p.tokens))
	}
}
