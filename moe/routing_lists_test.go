package moe_test

import (
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/internal/reference"
	"sonicmoe/moe"
	kt "sonicmoe/moe/internal/kernel/kerneltest"
)

// routedList is a list, and the same routing as slots [T, width] for the reference. Each valid
// entry of a token has a slot.
type routedList struct {
	tokens, ids []int32
	scores      []float32
	width       int
	slotIDs     []int32
	slotScores  []float64
	slot        []int // the slot of each entry; -1 if the entry is not valid
}

// newList returns a list with entries in random order: some tokens have no entries, some have an
// expert twice, and some experts and tokens are out of range.
func newList(r *rand.Rand, c moe.Config, tokens, entries int) routedList {
	l := routedList{width: min(c.NumExperts, 32)}
	l.slotIDs, l.slotScores = make([]int32, tokens*l.width), make([]float64, tokens*l.width)
	for i := range l.slotIDs {
		l.slotIDs[i] = -1
	}
	used := make([]int, tokens)
	for i := range entries {
		token, id, score := int32(r.IntN(tokens)), int32(r.IntN(c.NumExperts)), r.Float32()
		switch r.IntN(12) {
		case 0:
			id = []int32{-1, int32(c.NumExperts), 1<<31 - 1}[r.IntN(3)]
		case 1:
			token = []int32{-1, int32(tokens), 1<<31 - 1}[r.IntN(3)]
		case 2, 3:
			token = int32(tokens / 2) // a token with many entries
		case 4:
			if i > 0 {
				token, id = l.tokens[i-1], l.ids[i-1]
			}
		}
		if token == 1 {
			id = -1 // a token without entries
		}
		slot := -1
		if token >= 0 && int(token) < tokens && id >= 0 && int(id) < c.NumExperts {
			if used[token] == l.width {
				id = -1
			} else {
				slot = int(token)*l.width + used[token]
				used[token]++
				l.slotIDs[slot], l.slotScores[slot] = id, float64(score)
			}
		}
		l.tokens, l.ids, l.scores, l.slot = append(l.tokens, token), append(l.ids, id), append(l.scores, score), append(l.slot, slot)
	}
	return l
}

// listBench is a layer with lists, its tensors on a device, and its reference, which has one slot
// for each entry of a token.
type listBench struct {
	*testing.T
	layer *moe.Layer
	s     driver.Stream
	f     moe.ForwardArgs
	x, do []uint16
	// router has the router's weights.
	router []uint16
	ref    *reference.Layer
	arena  *moe.Arena
}

func newListBench(t *testing.T, c moe.Config, l routedList, tokens int) *listBench {
	dev := testDevice(t)
	layer := newLayer(t, dev, c)
	stream, err := dev.NewStream()
	require.NoError(t, err)
	b := &listBench{T: t, layer: layer, s: stream, arena: moe.NewArena(dev)}
	t.Cleanup(func() { require.NoError(t, b.arena.Free()) })
	t.Cleanup(func() { require.NoError(t, b.s.Close()) })
	entries := len(l.ids)
	sizes, err := layer.ListSizes(tokens, entries)
	require.NoError(t, err)
	shapes, list := layer.Shapes(tokens), c.ListShapes(tokens, entries)
	b.f = moe.ForwardArgs{
		X: b.arena.Tensor(shapes.X), O: b.arena.Tensor(shapes.O), H: b.arena.Tensor(list.H), SharedH: b.arena.Tensor(shapes.SharedH), Weights: b.arena.Weights(layer),
		Routing:   moe.Routing{List: b.arena.RoutingList(layer, entries)},
		Workspace: b.arena.Buffer(sizes.BackwardWorkspace),
	}
	require.NoError(t, b.arena.Err())
	b.poison(b.f.O, b.f.H, b.f.SharedH, moe.TensorAt(b.f.Workspace.Ptr, moe.I32, int(b.f.Workspace.Bytes/4)))
	values := func(of moe.Tensor, seed uint64, std float64) []uint16 {
		v := reference.NewNormalOf(of.Shape.Type, seed, std).Values(of.Shape.Elements())
		require.NoError(t, moe.Write(b.s, of, v))
		return v
	}
	b.x = values(b.f.X, 1, 1)
	b.router = values(b.f.Router, 7, 0.1)
	w := reference.Weights{Router: b.router, W1: values(b.f.W1, 2, 0.1), W2: values(b.f.W2, 3, 0.1)}
	if c.Bias {
		w.B1, w.B2 = values(b.f.B1, 5, 0.5), values(b.f.B2, 6, 0.5)
	}
	if c.SharedExperts > 0 {
		w.SharedW1, w.SharedW3, w.SharedW2 = values(b.f.SharedW1, 8, 0.1), values(b.f.SharedW3, 9, 0.1), values(b.f.SharedW2, 10, 0.1)
	}
	b.do = reference.NewNormalOf(c.Type, 4, 1).Values(shapes.O.Elements())
	require.NoError(t, moe.Write(b.s, b.f.List.Tokens, l.tokens))
	require.NoError(t, moe.Write(b.s, b.f.List.ExpertIDs, l.ids))
	require.NoError(t, moe.Write(b.s, b.f.List.Scores, l.scores))
	wide := c
	wide.Rounding = moe.Rounding{}
	wide.TopK = l.width
	b.ref, err = reference.New(wide, w)
	require.NoError(t, err)
	return b
}

// poison fills tensors with NaN.
func (b *listBench) poison(of ...moe.Tensor) {
	for _, x := range of {
		require.NoError(b, b.s.Fill32(x.Ptr, 0xffffffff, x.Shape.Bytes()/4))
	}
}

// check compares a result with the reference, by relative norms of rows.
func (b *listBench) check(what string, of moe.Tensor, want []float64, rows int) {
	got := make([]uint16, of.Shape.Elements())
	require.NoError(b, moe.Read(b.s, of, got), what)
	require.NoError(b, reference.CompareOf(of.Shape.Type, got, want, rows, len(want)/rows).Check(reference.BoundsOf(of.Shape.Type, reference.Rounded)), what)
}

// TestLists compares O and all gradients of lists in random order with the reference, and checks
// that repeated passes have the same bits.
func TestLists(t *testing.T) {
	cases, step := 4, 1
	switch {
	case kt.Long():
		cases = 1000
	case testing.Short():
		step = 3 // the cases left have both sizes of the layer, but not fp16, in which TestRoundedLayer has lists
	}
	c := moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 9, TopK: 2, Lists: true}
	r := rand.New(rand.NewPCG(5, 6))
	for i := 0; i < cases; i += step {
		tokens := []int{70, 3, 130, 1}[i%4]
		c.Bias, c.SharedExperts = i%2 == 0, i%4/2
		if i%4 > 1 {
			c.Hidden, c.Intermediate = 144, 80
		}
		c := typed([]moe.Type{moe.BF16, moe.F16, moe.F16, moe.BF16}[i%4], c)
		l := newList(r, c, tokens, 1+r.IntN(4*tokens))
		t.Run(fmt.Sprintf("%d: %d tokens, %d entries, %v", i, tokens, len(l.ids), c), func(t *testing.T) { // a subtest, so that its memory is freed
			b := newListBench(t, c, l, tokens)
			call := b.layer.NewCall()
			require.NoError(t, call.ForwardExperts(b.s, b.f))
			want, err := b.ref.Experts(b.x, l.slotScores, l.slotIDs, nil, reference.Rounded)
			require.NoError(t, err)
			b.check("O", b.f.O, want.O, tokens)
			back := b.newBackward(l, tokens)
			require.NoError(t, call.BackwardExperts(b.s, back))
			b.checkBackward(back, l, tokens)
			b.runsAlike(call, back, 1)
		})
	}
}

// TestListWithoutTokens checks a pass without tokens: no entry is valid, and all gradients are 0.
func TestListWithoutTokens(t *testing.T) {
	c := moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 9, TopK: 2, Lists: true}
	l := routedList{tokens: []int32{-1, 0, 3}, ids: []int32{0, 1, -1}, scores: []float32{0.5, 0.25, 1}, width: 9, slot: []int{-1, -1, -1}}
	b := newListBench(t, c, l, 0)
	call := b.layer.NewCall()
	require.NoError(t, call.ForwardExperts(b.s, b.f))
	back := b.newBackward(l, 0)
	require.NoError(t, call.BackwardExperts(b.s, back))
	for _, of := range []moe.Tensor{back.DScores, back.DW1.Tensor, back.DW2.Tensor} {
		got := make([]float64, of.Shape.Elements())
		require.NoError(t, moe.Read(b.s, of, got))
		require.Equal(t, make([]float64, len(got)), got)
	}
}

// TestListsAtFullSize runs the passes of a large layer several times on a list of T·K entries. All
// runs must give the same bits, and O of some tokens must agree with the reference. The test runs
// only with the flag -rows.
func TestListsAtFullSize(t *testing.T) {
	rows(t)
	c := moe.Config{Hidden: 2048, Intermediate: 768, NumExperts: 128, TopK: 8, Lists: true, Bias: true}
	const tokens = 32768
	l := newList(rand.New(rand.NewPCG(7, 8)), c, tokens, c.TopK*tokens)
	b := newListBench(t, c, l, tokens)
	call := b.layer.NewCall()
	require.NoError(t, call.ForwardExperts(b.s, b.f))
	sample := []int32{0, 1, 2, tokens/2 - 1, tokens / 2, tokens/2 + 1, tokens - 2, tokens - 1}
	want, err := b.ref.Experts(b.x, l.slotScores, l.slotIDs, sample, reference.Rounded)
	require.NoError(t, err)
	all := make([]uint16, b.f.O.Shape.Elements())
	require.NoError(t, moe.Read(b.s, b.f.O, all))
	var got []uint16
	for _, token := range sample {
		got = append(got, all[int(token)*c.Hidden:][:c.Hidden]...)
	}
	require.NoError(t, reference.Compare(got, want.O, len(sample), c.Hidden).Check(reference.VsRounded), "O")
	back := b.newBackward(l, tokens)
	require.NoError(t, call.BackwardExperts(b.s, back))
	b.runsAlike(call, back, 4)
}

// runsAlike runs both passes several times and checks that the bits stay the same.
func (b *listBench) runsAlike(call *moe.Call, back moe.BackwardArgs, times int) {
	written := []moe.Tensor{b.f.O, back.DX, back.DScores, back.DW1.Tensor, back.DW2.Tensor}
	if b.layer.Config().Bias {
		written = append(written, back.DB1.Tensor, back.DB2.Tensor)
	}
	digest := func() (digests []uint32) {
		for _, of := range written {
			data := make([]byte, of.Shape.Bytes())
			require.NoError(b, b.s.CopyToHost(data, of.Ptr))
			digests = append(digests, crc32.ChecksumIEEE(data))
		}
		return digests
	}
	want := digest()
	for range times {
		b.poison(append(written, b.f.H, b.f.SharedH, moe.TensorAt(b.f.Workspace.Ptr, moe.I32, int(b.f.Workspace.Bytes/4)))...)
		require.NoError(b, call.ForwardExperts(b.s, b.f))
		require.NoError(b, call.BackwardExperts(b.s, back))
		require.Equal(b, want, digest(), "O, DX, DScores, DW1, DW2, DB1, DB2")
	}
}

// newBackward returns a backward pass with poisoned outputs.
func (b *listBench) newBackward(l routedList, tokens int) moe.BackwardArgs {
	c := b.layer.Config()
	g := c.Gradients(tokens, c.Type)
	back := b.f.BackwardArgs()
	back.DO, back.DX = b.arena.Tensor(g.DO), b.arena.Tensor(g.DX)
	back.DScores = b.arena.Tensor(c.ListShapes(tokens, len(l.ids)).Scores)
	back.WeightGradients = b.arena.Gradients(b.layer, c.Type)
	back.DRouter = moe.Gradient{}
	require.NoError(b, b.arena.Err())
	require.NoError(b, moe.Write(b.s, back.DO, b.do))
	b.poison(back.DX, back.DScores, back.DW1.Tensor, back.DW2.Tensor, back.DB1.Tensor, back.DB2.Tensor, moe.TensorAt(b.f.Workspace.Ptr, moe.I32, int(b.f.Workspace.Bytes/4)))
	return back
}

// checkBackward compares all gradients with the reference.
func (b *listBench) checkBackward(back moe.BackwardArgs, l routedList, tokens int) {
	c := b.layer.Config()
	want, err := b.ref.Gradients(reference.Backward{X: b.x, DO: b.do, Scores: l.slotScores, ExpertIDs: l.slotIDs}, reference.Rounded)
	require.NoError(b, err)
	of, err := want.Tokens(nil)
	require.NoError(b, err)
	b.check("DX", back.DX, of.DX, tokens)
	dw1, err := want.W1(reference.AllRows(c.NumExperts, 2*c.Intermediate))
	require.NoError(b, err)
	b.check("DW1", back.DW1.Tensor, dw1, c.NumExperts)
	dw2, err := want.W2(reference.AllRows(c.NumExperts, c.Hidden))
	require.NoError(b, err)
	b.check("DW2", back.DW2.Tensor, dw2, c.NumExperts)
	if c.Bias {
		db1, err := want.B1(reference.AllRows(c.NumExperts, 2*c.Intermediate))
		require.NoError(b, err)
		b.check("DB1", back.DB1.Tensor, rounded(c, db1), c.NumExperts)
		db2, err := want.B2(reference.AllRows(c.NumExperts, c.Hidden))
		require.NoError(b, err)
		b.check("DB2", back.DB2.Tensor, rounded(c, db2), c.NumExperts)
	}

	got := make([]float32, len(l.ids))
	require.NoError(b, moe.Read(b.s, back.DScores, got))
	wanted := make([]float64, len(l.ids))
	for i, slot := range l.slot {
		if slot >= 0 {
			wanted[i] = of.DScores[slot]
		} else {
			require.Zero(b, got[i], "an entry that does not count")
		}
	}
	require.NoError(b, reference.Compare(got, wanted, 1, len(wanted)).Check(reference.VsRounded), "DScores")
}

// rounded rounds the reference's gradients of W1 and W2 to the layer's type, as the kernels do. For
// small tensors one rounding error would use up most of the test's error bound.
func rounded(c moe.Config, v []float64) []float64 {
	reference.Round(c.Type, v)
	return v
}

// TestWrongLists checks that a pass refuses lists if its layer has no lists or chooses the experts
// itself, and refuses lists with missing tensors.
func TestWrongLists(t *testing.T) {
	c := moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 4, TopK: 2, Lists: true}
	l := newList(rand.New(rand.NewPCG(1, 1)), c, 5, 9)
	b := newListBench(t, c, l, 5)
	call := b.layer.NewCall()
	for _, tt := range []struct {
		pass   func(moe.ForwardArgs) error
		change func(*moe.ForwardArgs)
		field  string
	}{
		{func(f moe.ForwardArgs) error { return call.Forward(b.s, f) }, func(f *moe.ForwardArgs) {
			f.Scores, f.ExpertIDs = b.arena.Tensor(b.layer.Shapes(5).Scores), b.arena.Tensor(b.layer.Shapes(5).ExpertIDs)
		}, "List"},
		{func(f moe.ForwardArgs) error { return call.ForwardExperts(b.s, f) }, func(f *moe.ForwardArgs) { f.List.Tokens = moe.Tensor{} }, "List.Tokens"},
		{func(f moe.ForwardArgs) error { return call.ForwardExperts(b.s, f) }, func(f *moe.ForwardArgs) { f.List.ExpertIDs = moe.Tensor{} }, "List.ExpertIDs"},
		{func(f moe.ForwardArgs) error { return call.ForwardExperts(b.s, f) }, func(f *moe.ForwardArgs) { f.List.Scores.Shape.Dims[0]-- }, "List.Scores"},
		{func(f moe.ForwardArgs) error { return call.ForwardExperts(b.s, f) }, func(f *moe.ForwardArgs) { f.Workspace.Bytes = 1 << 10 }, "Workspace"},
		{func(f moe.ForwardArgs) error { _, err := f.Tokens(3); return err }, func(*moe.ForwardArgs) {}, "List"},
	} {
		f := b.f
		tt.change(&f)
		var arg *moe.ArgError
		require.True(t, errors.As(tt.pass(f), &arg), tt.field)
		require.Equal(t, tt.field, arg.Field)
	}
	without := c
	without.Lists = false
	plain := newLayer(t, testDevice(t), without, moe.WithoutBackward())
	_, err := plain.ListSizes(5, 9)
	require.ErrorContains(t, err, "Config.Lists is false, must be true for calls with a List")
	require.ErrorContains(t, plain.NewCall().ForwardExperts(b.s, b.f), "Config.Lists is false")
}
