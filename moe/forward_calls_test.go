package moe_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/internal/num"
	"sonicmoe/internal/reference"
	"sonicmoe/internal/spec"
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
	"sonicmoe/moe/internal/kernel"
	"sonicmoe/moe/internal/tiles"
)

// TestForwardTimings checks that the bits depend neither on when asynchronous work completes nor on
// how warps interleave.
func TestForwardTimings(t *testing.T) {
	for _, tokens := range []int{1, 150} {
		var first trial.Results
		for _, d := range timedDevices(t) {
			t.Run(fmt.Sprintf("%d tokens %s", tokens, d.name), func(t *testing.T) {
				tr := trialOn(t, d.dev, moe.Config{Hidden: 320, Intermediate: 192, NumExperts: 5, TopK: 3}, tokens, moe.WithoutBackward())
				r := forward(t, tr, tr.Args)
				if first.O == nil {
					first = r
					rep, err := tr.Check(r, tokens)
					require.NoError(t, err)
					require.NoError(t, rep.Check())
				}
				require.Equal(t, first, r)
			})
		}
	}
}

// TestForwardPoints checks that every tiling of up and down gives the same bits, and that these are
// correct.
func TestForwardPoints(t *testing.T) {
	for _, c := range []moe.Config{
		tiny,
		{Hidden: 272, Intermediate: 208, NumExperts: 3, TopK: 2, Bias: true},
		{Hidden: 272, Intermediate: 208, NumExperts: 3, TopK: 2, Bias: true, InOut: true, GateUp: spec.Apart},
	} {
		checkForwardPoints(t, c)
		if testing.Short() {
			return
		}
	}
}

func checkForwardPoints(t *testing.T, c moe.Config) {
	target := testDevice(t).Target()
	ups, downs := kernel.UpProduct.Space(target), kernel.DownProduct.Space(target)
	var first trial.Results
	for i := range max(len(ups), len(downs)) {
		choice := tiles.Choice{spec.ProductUp: ups[i%len(ups)], spec.ProductDown: downs[i%len(downs)]}
		tr := trialOn(t, testDevice(t), c, 130, moe.WithTilings(choice.Text()), moe.WithoutBackward())
		r := forward(t, tr, tr.Args)
		if first.O == nil {
			first = r
			rep, err := tr.Check(r, 130)
			require.NoError(t, err)
			require.NoError(t, rep.Check())
		}
		require.Equal(t, first, r, "%v", choice)
	}
}

// TestForwardTokens uses one Call for small and large numbers of tokens in turn,
// and checks that a token's output does not depend on the other tokens.
func TestForwardTokens(t *testing.T) {
	const most = 129
	tr := trialOn(t, testDevice(t), tiny, most, moe.WithoutBackward())
	full := forward(t, tr, tr.Args)
	for _, tokens := range []int{1, 129, 63, 64, 0, 65, 127, 128, 0, 1} {
		require.NoError(t, tr.Poison())
		require.NoError(t, tr.Call().Forward(tr.Stream(), first(t, tr, tokens)))
		require.NoError(t, tr.Stream().Synchronize(testContext(t)))
		r, err := tr.Results(false)
		require.NoError(t, err)
		d, k := tiny.Hidden, tiny.TopK
		require.Equal(t, full.O[:tokens*d], r.O[:tokens*d], "O of %d tokens", tokens)
		require.Equal(t, full.ExpertIDs[:tokens*k], r.ExpertIDs[:tokens*k], "experts of %d tokens", tokens)
		require.Equal(t, full.Scores[:tokens*k], r.Scores[:tokens*k], "scores of %d tokens", tokens)
		for i, v := range r.O[tokens*d:] {
			require.Equal(t, reference.Poison, v, "%d tokens: O past the end, at %d", tokens, i)
		}
		for i, v := range r.ExpertIDs[tokens*k:] {
			require.Equal(t, int32(-1), v, "%d tokens: experts past the end, at %d", tokens, i)
		}
	}
}

// first returns the buffers of a pass over the first tokens only.
func first(t testing.TB, tr *trial.Trial, tokens int) moe.ForwardArgs {
	f, err := tr.Args.Tokens(tokens)
	require.NoError(t, err)
	f.Workspace.Bytes = sizesOf(t, tr.Layer, tokens).Workspace
	return f
}

func TestNoTokens(t *testing.T) {
	tr := trialOn(t, testDevice(t), tiny, 0)
	c, s := tr.Call(), tr.Stream()
	a := tr.Args
	a.Workspace = moe.Buffer{}
	for name, queue := range map[string]func() error{
		"Forward":        func() error { return c.Forward(s, a) },
		"Route":          func() error { return c.Route(s, a) },
		"ForwardExperts": func() error { return c.ForwardExperts(s, a) },
	} {
		n, err := launches(t, s, queue)
		require.NoError(t, err, name)
		require.Zero(t, n, "%s launched", name)
	}
}

// TestReplay checks that a replay of a captured pass computes new tokens with new router weights in
// the same buffers.
func TestReplay(t *testing.T) {
	const tokens = 100
	tr := trialOn(t, testDevice(t), tiny, tokens, moe.WithoutDecode(), moe.WithoutBackward())
	ctx, s := testContext(t), tr.Stream()
	g := capture(t, s, func() error { return tr.Call().Forward(s, tr.Args) })
	defer g.Close()
	require.Equal(t, 5, g.Nodes(), "router, plan, up, down, aggregate")

	var before []int32
	for seed := range uint64(3) {
		copy(tr.X, reference.NewNormal(50+seed, reference.ScaleX).Values(int64(len(tr.X))))
		copy(tr.Router, reference.NewNormal(60+seed, 0.2).Values(int64(len(tr.Router))))
		require.NoError(t, s.CopyToDevice(tr.Args.X.Ptr, num.Bytes(tr.X)))
		require.NoError(t, s.CopyToDevice(tr.Args.Router.Ptr, num.Bytes(tr.Router)))
		require.NoError(t, tr.Poison())
		require.NoError(t, g.Launch(s))
		require.NoError(t, s.Synchronize(ctx))
		replayed, err := tr.Results(true)
		require.NoError(t, err)
		rep, err := tr.Check(replayed, tokens)
		require.NoError(t, err)
		require.NoError(t, rep.Check())
		require.NotEqual(t, before, replayed.ExpertIDs, "the routing is new")
		before = replayed.ExpertIDs
		require.Equal(t, replayed, forward(t, tr, tr.Args), "a replay gives the bits of a call")
	}
}

// givenRouting returns ids and scores that a caller could choose.
func givenRouting(c moe.Config, tokens int) (ids []int32, scores []float32) {
	r := rand.New(rand.NewPCG(3, 4))
	for i := range tokens * c.TopK {
		id := int32(r.IntN(c.NumExperts))
		switch slot := i % c.TopK; {
		case i/c.TopK%4 == 1 && slot > 0:
			id = ids[i-1] // repeats the previous expert
		case r.IntN(6) == 0:
			id = []int32{-1, int32(c.NumExperts), 1<<31 - 1, -1 << 31}[r.IntN(4)]
		}
		ids, scores = append(ids, id), append(scores, r.Float32())
	}
	for k := range c.TopK {
		ids[k] = -1 // a token without an expert, whose output is zero
	}
	return ids, scores
}

// TestExperts checks that ForwardExperts accepts all ids: ids out of range add nothing, and
// repeated ids count each time.
func TestExperts(t *testing.T) {
	for _, c := range []moe.Config{
		{Hidden: 192, Intermediate: 64, NumExperts: 6, TopK: 3},
		{Hidden: 128, Intermediate: 192, NumExperts: 40, TopK: 8, GateUp: spec.Interleaved},
	} {
		t.Run(c.String(), func(t *testing.T) {
			const tokens = 70
			tr := trialOn(t, testDevice(t), c, tokens, moe.WithoutBackward())
			ids, scores := givenRouting(c, tokens)
			got := withRouting(t, tr, tokens)
			require.Equal(t, ids, got.ExpertIDs, "ids are only read")
			require.Equal(t, scores, got.Scores, "scores are only read")

			ref, err := reference.NewLayer(c, tr.Router, tr.W1, tr.W2)
			require.NoError(t, err)
			want, err := ref.Experts(tr.X, reference.Widen(scores), ids, nil, reference.Rounded)
			require.NoError(t, err)
			require.NoError(t, reference.Compare(got.O, want.O, tokens, c.Hidden).Check(reference.VsRounded), "O")
			require.Equal(t, make([]uint16, c.Hidden), got.O[:c.Hidden], "a token without experts")
			checkH(t, c, got.H, want.H, ids)
		})
	}
}

// checkH compares the packed rows of H, sorted by expert, token and slot, with the reference. It
// checks that the pass has not written rows after the last valid one.
func checkH(t *testing.T, c moe.Config, got []uint16, want []float64, ids []int32) {
	width, row := 2*c.Intermediate, 0
	var ordered []float64
	for e := range c.NumExperts {
		for i, id := range ids {
			if int(id) == e {
				ordered = append(ordered, want[i*width:][:width]...)
				row++
			}
		}
	}
	require.NoError(t, reference.CompareOf(c.Type, got[:row*width], ordered, row, width).Check(reference.BoundsOf(c.Type, reference.Rounded)), "H")
	for i, v := range got[row*width:] {
		require.Equal(t, reference.Poison, v, "H past the last row, at %d", i)
	}
}

// TestRouteAndExpertsAreForward checks that Route and ForwardExperts together have the bits
// of Forward.
func TestRouteAndExpertsAreForward(t *testing.T) {
	tr := trialOn(t, testDevice(t), tiny, 90, moe.WithoutBackward())
	whole := forward(t, tr, tr.Args)
	require.NoError(t, tr.Poison())
	s, a := tr.Stream(), tr.Args
	require.NoError(t, tr.Call().Route(s, a))
	require.NoError(t, tr.Call().ForwardExperts(s, a))
	require.NoError(t, s.Synchronize(testContext(t)))
	parts, err := tr.Results(true)
	require.NoError(t, err)
	require.Equal(t, whole, parts)
}

func TestForwardSmall(t *testing.T) {
	for i, c := range []struct {
		tokens int
		config moe.Config
	}{
		{64, moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 4, TopK: 2}},
		{200, moe.Config{Hidden: 192, Intermediate: 128, NumExperts: 8, TopK: 3}},
		{130, moe.Config{Hidden: 128, Intermediate: 192, NumExperts: 16, TopK: 8, GateUp: spec.Interleaved}},
		{1, moe.Config{Hidden: 256, Intermediate: 64, NumExperts: 60, TopK: 4}},
		{70, moe.Config{Hidden: 256, Intermediate: 64, NumExperts: 12, TopK: 5, Logits: moe.F32}},
		{65, moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 300, TopK: 2, Logits: moe.F32}},
	} {
		if testing.Short() && i%3 != 2 {
			continue
		}
		t.Run(fmt.Sprintf("%d %v", c.tokens, c.config), func(t *testing.T) {
			ctx := testContext(t)
			tr := newTrial(t, c.config, c.tokens, 6, moe.WithoutBackward())
			require.NoError(t, tr.Run(ctx, tr.Args))
			train, err := tr.Results(true)
			require.NoError(t, err)
			rep, err := tr.Check(train, 256)
			require.NoError(t, err)
			t.Logf("score %.2g\nO %v\nH %v", rep.Score, rep.O, rep.H)
			require.NoError(t, rep.Check())

			require.NoError(t, tr.Run(ctx, tr.Inference()))
			infer, err := tr.Results(false)
			require.NoError(t, err)
			require.Equal(t, train.O, infer.O, "inference gives the bits of training")
		})
	}
}
