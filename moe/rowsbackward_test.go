package moe_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sonicmoe/internal/num"
	"sonicmoe/internal/peers"
	"sonicmoe/internal/reference"
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
	"sonicmoe/moe/internal/kernel"
	"sonicmoe/moe/internal/kernel/dh"
	"sonicmoe/moe/internal/kernel/dw"
)

// TestBackwardRows: full size against the reference, the same bits on repeats,
// from a graph and with other tiles, and the times of the pass and its kernels.
func TestBackwardRows(t *testing.T) {
	for _, name := range rowNames(t) {
		t.Run(name, func(t *testing.T) {
			row, ok := peers.Find(name)
			require.True(t, ok, "no row of that name")
			ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
			defer cancel()
			tr := newTrial(t, row.Config, row.Tokens, 1)
			require.NoError(t, tr.Run(ctx, tr.Args))
			require.NoError(t, tr.PrepareBackward(17, moe.BF16))
			require.NoError(t, tr.RunBackward(ctx, tr.Back))
			saved, err := tr.Results(true)
			require.NoError(t, err)
			start := time.Now()
			rep, err := tr.CheckBackward(tr.Back, saved, trial.BackwardCheck{Routed: true, Tokens: 256, Rows: 256})
			require.NoError(t, err)
			t.Logf("%v\nchecked in %v", rep, time.Since(start))
			require.NoError(t, rep.Check())

			first := samples(t, tr, tr.Back)
			for range 5 {
				require.NoError(t, tr.RunBackward(ctx, tr.Back))
				sameGradients(t, first, samples(t, tr, tr.Back), "a repeat gives other bits")
			}
			timeBackward(t, tr, row)
			timeInSequence(t, tr, moe.BackwardKernels)
			otherBackwardTiles(t, ctx, tr, first)
		})
	}
}

// sampleBlocks is the number of pieces of a large gradient that are compared.
const sampleBlocks = 256

// samples returns the bits of all gradients; of large weights it takes evenly
// spaced pieces.
func samples(t *testing.T, tr *trial.Trial, b moe.BackwardArgs) map[string]trial.Values {
	t.Helper()
	all := map[string]trial.Values{}
	for name, of := range wanted(&b) {
		cols, rows := 64*tr.Layer.Config().Hidden, []int64(nil)
		if blocks := of.Shape.Elements() / int64(cols); of.Shape.Rank == 3 && blocks > sampleBlocks {
			for i := range int64(sampleBlocks) {
				rows = append(rows, i*(blocks-1)/(sampleBlocks-1))
			}
		}
		v, err := tr.Rows(*of, cols, rows)
		require.NoError(t, err)
		all[name] = v
	}
	return all
}

// timeBackward logs the speed of the pass, by calls and as a graph.
func timeBackward(t *testing.T, tr *trial.Trial, row peers.Row) {
	s := tr.Stream()
	run := func() error { return tr.Call().Backward(s, tr.Back) }
	ms := median(t, s, 200*time.Millisecond, 20, run)
	t.Logf("%s backward: %v: %.3f ms (min %.3f max %.3f), %.0f TFLOPS; SonicMoE %.3f ms", row.Name, tr.Layer.Tilings(),
		ms[1], ms[0], ms[2], row.Config.BackwardFLOPs(row.Tokens)/ms[1]/1e9, row.SonicBackwardMS)
	require.NoError(t, s.BeginCapture())
	require.NoError(t, tr.Call().Forward(s, tr.Args))
	require.NoError(t, run())
	g, err := s.EndCapture()
	require.NoError(t, err)
	defer g.Close()
	ms = median(t, s, 200*time.Millisecond, 20, func() error { return g.Launch(s) })
	t.Logf("forward and backward as a graph: %.3f ms (min %.3f max %.3f)", ms[1], ms[0], ms[2])
}

// otherBackwardTiles runs the pass with tilings of another width.
func otherBackwardTiles(t *testing.T, ctx context.Context, tr *trial.Trial, want map[string]trial.Values) {
	c, target := tr.Layer.Config(), testDevice(t).Target()
	choice := otherWidths(t, tr.Layer, target, dh.Product, kernel.DXProduct, dw.W1Product, dw.W2Product)
	l := newLayer(t, testDevice(t), c, moe.WithTilings(choice.Text()))
	require.NoError(t, tr.PoisonGradients(tr.Back))
	require.NoError(t, l.NewCall().Backward(tr.Stream(), tr.Back))
	require.NoError(t, tr.Stream().Synchronize(ctx))
	sameGradients(t, want, samples(t, tr, tr.Back), "%v gives other bits", choice)
}

// TestBackwardMemory checks that between forward and backward each layer keeps no
// more device memory than promised, and that four layers share one workspace, which
// is poisoned in between. The device allocates memory in pieces of 2 MiB.
func TestBackwardMemory(t *testing.T) {
	rowNames(t)
	for _, name := range []string{"7B n=256", "7B n=512", "7B n=1024"} {
		t.Run(name, func(t *testing.T) {
			row, ok := peers.Find(name)
			require.True(t, ok)
			testLayersMemory(t, row)
		})
	}
}

// keep returns a layer's saved tensors.
func keep(t *testing.T, tr *trial.Trial) moe.ForwardArgs {
	f := tr.Args
	for _, of := range []*moe.Tensor{&f.X, &f.H, &f.Scores, &f.ExpertIDs} {
		p, err := testDevice(t).Alloc(of.Shape.Bytes())
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, testDevice(t).Free(p)) })
		of.Ptr = p
	}
	return f
}

func testLayersMemory(t *testing.T, row peers.Row) {
	ctx := limited(t, 2*time.Minute)
	dev := testDevice(t)
	tr := newTrial(t, row.Config, row.Tokens, 1)
	require.NoError(t, tr.PrepareBackward(17, moe.BF16))
	s, b := tr.Stream(), tr.Back
	tr.Args.Workspace = b.Workspace
	var passes []moe.ForwardArgs
	promise := row.Config.Saved(row.Tokens).Bytes()
	for layer := range 4 {
		before, _, err := dev.Memory()
		require.NoError(t, err)
		f := keep(t, tr)
		bits := reference.NewNormal(uint64(90+layer), reference.ScaleX).Values(f.X.Shape.Elements())
		require.NoError(t, s.CopyToDevice(f.X.Ptr, num.Bytes(bits)))
		require.NoError(t, tr.Call().Forward(s, f))
		require.NoError(t, s.Fill32(b.Workspace.Ptr, 0xffffffff, b.Workspace.Bytes/4))
		require.NoError(t, s.Synchronize(ctx))
		after, _, err := dev.Memory()
		require.NoError(t, err)
		t.Logf("layer %d: %d bytes, %d were promised", layer, before-after, promise)
		const piece = 2 << 20
		require.InDelta(t, promise, before-after, 4*piece)
		passes = append(passes, f)
	}
	before, _, err := dev.Memory()
	require.NoError(t, err)
	for i := len(passes) - 1; i >= 0; i-- {
		f := passes[i]
		b.X, b.H, b.Scores, b.ExpertIDs = f.X, f.H, f.Scores, f.ExpertIDs
		require.NoError(t, tr.RunBackward(ctx, b))
		tr.X = make([]uint16, f.X.Shape.Elements())
		require.NoError(t, s.CopyToHost(num.Bytes(tr.X), f.X.Ptr))
		tr.Args.H, tr.Args.Scores, tr.Args.ExpertIDs = f.H, f.Scores, f.ExpertIDs
		saved, err := tr.Results(true)
		require.NoError(t, err)
		rep, err := tr.CheckBackward(b, saved, trial.BackwardCheck{Routed: true, Tokens: 32, Rows: 32})
		require.NoError(t, err)
		require.NoError(t, rep.Check(), "layer %d", i)
	}
	after, _, err := dev.Memory()
	require.NoError(t, err)
	require.Equal(t, before, after, "backward took memory")
}
