package moe_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/internal/reference"
	"sonicmoe/internal/spec"
	"sonicmoe/moe"
	kt "sonicmoe/moe/internal/kernel/kerneltest"
)

// TestRoundedLayer compares a layer that rounds with the reference: the rounded list, O, and all
// gradients, including the router's.
func TestRoundedLayer(t *testing.T) {
	list := []moe.Rounding{
		{Rule: spec.RoundNearest, Tile: 16}, {Rule: spec.RoundStochastic, Tile: 16, RawScores: true}, {Rule: spec.ExpertChoice, Capacity: 1},
	}
	if kt.Long() {
		for _, rule := range []moe.RoundingRule{spec.RoundMass, spec.RoundBalanced, spec.RoundUp, spec.RoundDown} {
			list = append(list, moe.Rounding{Rule: rule, Tile: 16})
		}
		list = append(list, moe.Rounding{Rule: spec.CapacityDrop, Capacity: 0.75})
	}
	for i, how := range list {
		if testing.Short() && i == 0 {
			continue // the tests of package rounding cover each rule
		}
		t.Run(how.String(), func(t *testing.T) {
			const tokens = 70
			b := newRoundedBench(t, []moe.Type{moe.BF16, moe.F16}[i%2], how, tokens)
			call := b.layer.NewCall()
			require.NoError(t, call.Forward(b.s, b.f))
			r := b.rounded(tokens)
			want, err := b.ref.Experts(b.x, r.slotScores, r.slotIDs, nil, reference.Rounded)
			require.NoError(t, err)
			b.check("O", b.f.O, want.O, tokens)
			b.roundedBackward(call, r, tokens)

			plain := b.f
			plain.List = moe.RoutingList{}
			plain.H = b.arena.Tensor(b.layer.Shapes(tokens).H)
			require.NoError(t, call.Forward(b.s, plain), "without a list nothing is rounded")
			want, err = b.ref.Experts(b.x, wider(r.routing.Scores, b.layer.Config(), 0), wider(r.routing.ExpertIDs, b.layer.Config(), -1), nil, reference.Rounded)
			require.NoError(t, err)
			b.check("O of top-K", plain.O, want.O, tokens)
		})
	}
}

// wider pads values [T, K] to [T, E]. The added slots get the value of the parameter none.
func wider[E any](v []E, c moe.Config, none E) (out []E) {
	for i := 0; i < len(v); i += c.TopK {
		out = append(out, v[i:i+c.TopK]...)
		out = append(out, slices.Repeat([]E{none}, c.NumExperts-c.TopK)...)
	}
	return out
}

func newRoundedBench(t *testing.T, element moe.Type, how moe.Rounding, tokens int, changes ...func(*moe.Config)) *listBench {
	c := typed(element, moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 9, TopK: 2, Rounding: how})
	if how.RawScores {
		c.SharedExperts, c.Hidden, c.Intermediate = 2, 80, 48
	}
	for _, change := range changes {
		change(&c)
	}
	rows := int(how.MaxRows(c, tokens))
	b := newListBench(t, c, routedList{width: c.NumExperts, tokens: make([]int32, rows), ids: make([]int32, rows), scores: make([]float32, rows)}, tokens)
	require.Equal(t, rows, b.layer.RoundedRows(tokens))
	s := b.layer.Shapes(tokens)
	b.f.Scores, b.f.ExpertIDs, b.f.Logits, b.f.Seed = b.arena.Tensor(s.Scores), b.arena.Tensor(s.ExpertIDs), b.arena.Tensor(s.Logits), 7
	require.NoError(t, b.arena.Err())
	b.poison(b.f.List.Tokens, b.f.List.ExpertIDs, b.f.List.Scores)
	return b
}

// roundedRouting is the routing of a pass that rounds, and the reference's routing of the same
// logits.
type roundedRouting struct {
	routedList
	routing     reference.Routing
	preferences reference.Preferences
	list        []reference.Entry
}

// rounded reads the routing and compares the list with the reference's list.
func (b *listBench) rounded(tokens int) roundedRouting {
	c := b.layer.Config()
	r := roundedRouting{routedList: routedList{width: c.NumExperts}}
	read := func(of moe.Tensor) []float64 {
		v := make([]float64, of.Shape.Elements())
		require.NoError(b, moe.Read(b.s, of, v))
		return v
	}
	ids := func(of moe.Tensor) []int32 {
		v := make([]int32, of.Shape.Elements())
		require.NoError(b, moe.Read(b.s, of, v))
		return v
	}
	r.routing = reference.Routing{Logits: read(b.f.Logits), Scores: read(b.f.Scores), ExpertIDs: ids(b.f.ExpertIDs)}
	r.preferences = r.routing.Preferences(c, reference.Rounded)
	r.list, _ = r.preferences.Round(c, c.Rounding, b.f.Seed)
	tokenOf, experts, scores := ids(b.f.List.Tokens), ids(b.f.List.ExpertIDs), read(b.f.List.Scores)
	r.slotIDs, r.slotScores = make([]int32, tokens*r.width), make([]float64, tokens*r.width)
	for i := range r.slotIDs {
		r.slotIDs[i] = -1
	}
	for i, token := range tokenOf {
		slot := -1
		if i < len(r.list) {
			want := r.list[i]
			require.Equal(b, [2]int32{want.Token, want.Expert}, [2]int32{token, experts[i]}, "entry %d", i)
			require.InEpsilon(b, want.Score, scores[i], 1e-5, "entry %d", i)
			slot = int(token)*r.width + int(want.Expert)
			r.slotIDs[slot], r.slotScores[slot] = want.Expert, scores[i]
		} else {
			require.Equal(b, [2]int32{-1, -1}, [2]int32{token, experts[i]}, "entry %d", i)
		}
		r.slot = append(r.slot, slot)
	}
	return r
}

func (b *listBench) roundedBackward(call *moe.Call, r roundedRouting, tokens int) {
	c := b.layer.Config()
	g := c.Gradients(tokens, c.Type)
	back := b.f.BackwardArgs()
	back.DO, back.DX = b.arena.Tensor(g.DO), b.arena.Tensor(g.DX)
	back.WeightGradients = b.arena.Gradients(b.layer, c.Type)
	require.NoError(b, b.arena.Err())
	require.NoError(b, moe.Write(b.s, back.DO, b.do))
	b.poison(back.DX, back.DW1.Tensor, back.DW2.Tensor, back.DRouter.Tensor, moe.TensorAt(b.f.Workspace.Ptr, moe.I32, int(b.f.Workspace.Bytes/4)))
	require.NoError(b, call.Backward(b.s, back))

	want, err := b.ref.Gradients(reference.Backward{X: b.x, DO: b.do, Scores: r.slotScores, ExpertIDs: r.slotIDs}, reference.Rounded)
	require.NoError(b, err)
	of, err := want.Tokens(nil)
	require.NoError(b, err)
	dscores := make([]float64, len(r.list))
	for i := range r.list {
		dscores[i] = of.DScores[r.slot[i]]
	}
	dlogits := r.routing.RoundedLogits(c, r.preferences, r.list, dscores)
	dx, dr := slices.Clone(of.DX), make([]float64, c.NumExperts*c.Hidden)
	for i, v := range dlogits {
		token, expert := i/c.NumExperts, i%c.NumExperts
		for j := range c.Hidden {
			dx[token*c.Hidden+j] += v * numberOf(c.Type, b.router[expert*c.Hidden+j])
			dr[expert*c.Hidden+j] += v * numberOf(c.Type, b.x[token*c.Hidden+j])
		}
	}
	within := func(what string, of moe.Tensor, want []float64, rows int) {
		got := make([]uint16, of.Shape.Elements())
		require.NoError(b, moe.Read(b.s, of, got), what)
		require.NoError(b, reference.CompareOf(c.Type, got, want, rows, len(want)/rows).Check(reference.BoundsOf(c.Type, reference.Unrounded)), what)
	}
	within("DX", back.DX, dx, tokens)
	within("DRouter", back.DRouter.Tensor, dr, c.NumExperts)
	dw1, err := want.W1(reference.AllRows(c.NumExperts, 2*c.Intermediate))
	require.NoError(b, err)
	b.check("DW1", back.DW1.Tensor, dw1, c.NumExperts)
}

// TestRoundedLosses checks that a pass that rounds computes its losses from the choice before
// rounding, with the right gradients. If scores multiply the input, the plan of the choice has
// separate pairs, and the list's pairs stay unchanged.
func TestRoundedLosses(t *testing.T) {
	const tokens, balance, zLoss = 40, 40, 3
	for i, tt := range []struct {
		onInput  bool
		sequence int
	}{{true, tokens}, {true, 8}, {false, tokens}} {
		if testing.Short() && i > 0 {
			break
		}
		b := newRoundedBench(t, moe.BF16, moe.Rounding{Rule: spec.RoundUp, Tile: 16}, tokens, func(c *moe.Config) { c.ScoreOnInput = tt.onInput })
		c, call := b.layer.Config(), b.layer.NewCall()
		require.NoError(t, call.Forward(b.s, b.f))
		logits, ids := make([]float64, tokens*c.NumExperts), make([]int32, tokens*c.TopK)
		require.NoError(t, moe.Read(b.s, b.f.Logits, logits))
		require.NoError(t, moe.Read(b.s, b.f.ExpertIDs, ids))
		values, extra := routerLosses(c, logits, ids, balance, zLoss, tt.sequence)

		g, back := c.Gradients(tokens, moe.F32), b.f.BackwardArgs()
		back.DO, back.DX, back.DRouter.Tensor = b.arena.Tensor(g.DO), b.arena.Tensor(g.DX), b.arena.Tensor(g.DRouter)
		given, asked := back, back
		given.DLogits = b.arena.Tensor(g.DLogits)
		asked.Balance, asked.ZLoss, asked.RouterLosses = balance, zLoss, b.arena.Tensor(g.RouterLosses)
		if tt.sequence < tokens {
			asked.Sequence = tt.sequence
		}
		require.NoError(t, b.arena.Err())
		require.NoError(t, moe.Write(b.s, back.DO, b.do))
		require.NoError(t, moe.Write(b.s, given.DLogits, extra))
		run := func(of moe.BackwardArgs) (dx, dRouter []float64) {
			b.poison(of.DX, of.DRouter.Tensor, moe.TensorAt(b.f.Workspace.Ptr, moe.I32, int(b.f.Workspace.Bytes/4)))
			require.NoError(t, call.Backward(b.s, of))
			dx, dRouter = make([]float64, tokens*c.Hidden), make([]float64, c.NumExperts*c.Hidden)
			require.NoError(t, moe.Read(b.s, of.DX, dx))
			require.NoError(t, moe.Read(b.s, of.DRouter.Tensor, dRouter))
			return dx, dRouter
		}
		wantDX, wantDRouter := run(given)
		run(asked)
		b.check("DX", asked.DX, wantDX, tokens)
		dRouter := make([]float32, len(wantDRouter))
		require.NoError(t, moe.Read(b.s, asked.DRouter.Tensor, dRouter))
		require.NoError(t, reference.Compare(dRouter, wantDRouter, c.NumExperts, c.Hidden).Check(reference.VsRounded), "DRouter, %+v", tt)
		got := make([]float64, 2)
		require.NoError(t, moe.Read(b.s, asked.RouterLosses, got))
		require.InEpsilon(t, values[0], got[0], 1e-5, "balance loss")
		require.InEpsilon(t, values[1], got[1], 1e-5, "z-loss")
	}
}

// TestWrongRounding checks that rounding requires logits and a list of the right
// length.
func TestWrongRounding(t *testing.T) {
	b := newRoundedBench(t, moe.BF16, moe.Rounding{Rule: spec.RoundNearest, Tile: 16}, 20)
	for _, tt := range []struct {
		change func(*moe.ForwardArgs)
		field  string
	}{
		{func(f *moe.ForwardArgs) { f.Logits = moe.Tensor{} }, "Logits"},
		{func(f *moe.ForwardArgs) { f.List.Tokens = moe.Tensor{} }, "List.Tokens"},
		{func(f *moe.ForwardArgs) { f.List.ExpertIDs.Shape.Dims[0]++ }, "List.ExpertIDs"},
		{func(f *moe.ForwardArgs) { f.Workspace.Bytes = 1 << 10 }, "Workspace"},
	} {
		f := b.f
		tt.change(&f)
		var arg *moe.ArgError
		require.True(t, errors.As(b.layer.NewCall().Forward(b.s, f), &arg), tt.field)
		require.Equal(t, tt.field, arg.Field)
	}
	c := b.layer.Config()
	c.Rounding.Tile = -1
	_, err := moe.New(testContext(t), testDevice(t), c)
	require.ErrorContains(t, err, "Rounding.Tile is -1")
}

// TestRoundedGraph replays a pass that rounds from a graph on poisoned outputs. It checks that the
// list and the bits of O are the same.
func TestRoundedGraph(t *testing.T) {
	b := newRoundedBench(t, moe.BF16, moe.Rounding{Rule: spec.RoundStochastic, Tile: 16}, 70)
	call := b.layer.NewCall()
	outputs := []moe.Tensor{b.f.O, b.f.List.Tokens, b.f.List.ExpertIDs, b.f.List.Scores}
	read := func() (all [][]byte) {
		require.NoError(t, b.s.Synchronize(testContext(t)))
		for _, of := range outputs {
			bits := make([]byte, of.Shape.Bytes())
			require.NoError(t, b.s.CopyToHost(bits, of.Ptr))
			all = append(all, bits)
		}
		return all
	}
	require.NoError(t, call.Forward(b.s, b.f))
	want := read()
	g := capture(t, b.s, func() error { return call.Forward(b.s, b.f) })
	defer g.Close()
	b.poison(outputs...)
	require.NotEqual(t, want, read())
	require.NoError(t, g.Launch(b.s))
	require.Equal(t, want, read())
}
