package moe_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/emulated"
	"sonicmoe/internal/num"
	"sonicmoe/internal/reference"
	"sonicmoe/moe"
)

// wrong is one mistake in the buffers of a pass.
type wrong struct {
	name  string
	field string // the field that the error names
	make  func(f *moe.ForwardArgs)
}

var wrongs = []wrong{
	{"X of rank 1", "X", func(f *moe.ForwardArgs) { f.X = moe.TensorAt(f.X.Ptr, moe.BF16, 70*192) }},
	{"X of negative tokens", "X", func(f *moe.ForwardArgs) { f.X.Shape.Dims[0] = -1 }},
	{"X of too many pairs", "X", func(f *moe.ForwardArgs) { f.X.Shape.Dims[0] = 1 << 30 }},
	{"X too narrow", "X", func(f *moe.ForwardArgs) { f.X.Shape.Dims[1] = 128 }},
	{"X in FP32", "X", func(f *moe.ForwardArgs) { f.X.Shape.Type = moe.F32 }},
	{"X nil", "X.Ptr", func(f *moe.ForwardArgs) { f.X.Ptr = 0 }},
	{"X misaligned", "X.Ptr", func(f *moe.ForwardArgs) { f.X.Ptr += 2 }},
	{"Router of other experts", "Router", func(f *moe.ForwardArgs) { f.Router.Shape.Dims[0]++ }},
	{"Router absent", "Router", func(f *moe.ForwardArgs) { f.Router = moe.Tensor{} }},
	{"Router nil", "Router.Ptr", func(f *moe.ForwardArgs) { f.Router.Ptr = 0 }},
	{"W1 of n rows", "W1", func(f *moe.ForwardArgs) { f.W1.Shape.Dims[1] /= 2 }},
	{"W1 misaligned", "W1.Ptr", func(f *moe.ForwardArgs) { f.W1.Ptr += 8 }},
	{"W2 transposed", "W2", func(f *moe.ForwardArgs) { d := &f.W2.Shape.Dims; d[1], d[2] = d[2], d[1] }},
	{"W2 of rank 2", "W2", func(f *moe.ForwardArgs) { f.W2.Shape.Rank = 2 }},
	{"O of other tokens", "O", func(f *moe.ForwardArgs) { f.O.Shape.Dims[0]-- }},
	{"O nil", "O.Ptr", func(f *moe.ForwardArgs) { f.O.Ptr = 0 }},
	{"H of T rows", "H", func(f *moe.ForwardArgs) { f.H.Shape.Dims[0] /= 2 }},
	{"H misaligned", "H.Ptr", func(f *moe.ForwardArgs) { f.H.Ptr += 4 }},
	{"Scores in bf16", "Scores", func(f *moe.ForwardArgs) { f.Scores.Shape.Type = moe.BF16 }},
	{"Scores nil", "Scores.Ptr", func(f *moe.ForwardArgs) { f.Scores.Ptr = 0 }},
	{"Experts in FP32", "ExpertIDs", func(f *moe.ForwardArgs) { f.ExpertIDs.Shape.Type = moe.F32 }},
	{"Experts of other K", "ExpertIDs", func(f *moe.ForwardArgs) { f.ExpertIDs.Shape.Dims[1]++ }},
	{"Workspace too short", "Workspace", func(f *moe.ForwardArgs) { f.Workspace.Bytes-- }},
	{"Workspace absent", "Workspace", func(f *moe.ForwardArgs) { f.Workspace = moe.Buffer{} }},
	{"Workspace nil", "Workspace.Ptr", func(f *moe.ForwardArgs) { f.Workspace.Ptr = 0 }},
	{"Workspace misaligned", "Workspace.Ptr", func(f *moe.ForwardArgs) { f.Workspace.Ptr += 16 }},
	{"O is X", "O", func(f *moe.ForwardArgs) { f.O.Ptr = f.X.Ptr }},
	{"H begins in the end of O", "H", func(f *moe.ForwardArgs) { f.H.Ptr = f.O.Ptr + 70*192*2 - 16 }},
	{"a seed without rounding", "Seed", func(f *moe.ForwardArgs) { f.Seed = 1 }},
	{"Experts are Scores", "ExpertIDs", func(f *moe.ForwardArgs) { f.ExpertIDs.Ptr = f.Scores.Ptr }},
	{"Scores in O", "O", func(f *moe.ForwardArgs) { f.Scores.Ptr = f.O.Ptr + 1024 }},
	{"Workspace over W2", "Workspace", func(f *moe.ForwardArgs) { f.Workspace.Ptr = f.W2.Ptr }},
}

// TestArgErrors checks that a wrong buffer gives an *ArgError with its name, that the pass launches
// nothing, and that the call still works.
func TestArgErrors(t *testing.T) {
	tr := trialOn(t, testDevice(t), tiny, 70)
	require.NoError(t, tr.Poison())
	for _, w := range wrongs {
		t.Run(w.name, func(t *testing.T) {
			f := tr.Args
			w.make(&f)
			n, err := launches(t, tr.Stream(), func() error { return tr.Call().Forward(tr.Stream(), f) })
			wantArgError(t, err, w.field)
			require.Zero(t, n, "something was launched")

			// Route and ForwardExperts also refuse the wrong buffer if they use it.
			n, err = launches(t, tr.Stream(), func() error { return tr.Call().Route(tr.Stream(), f) })
			if concernsRoute(w) {
				wantArgError(t, err, w.field)
				require.Zero(t, n, "Route launched something")
			} else {
				require.NoError(t, err)
			}
			n, err = launches(t, tr.Stream(), func() error { return tr.Call().ForwardExperts(tr.Stream(), f) })
			if concernsExperts(w) {
				wantArgError(t, err, w.field)
				require.Zero(t, n, "ExpertIDs launched something")
			} else {
				require.NoError(t, err)
			}
		})
	}
	r, err := tr.Results(true)
	require.NoError(t, err)
	for _, v := range append(r.O, r.H...) {
		require.Equal(t, reference.Poison, v, "an output was written")
	}
	require.NoError(t, tr.Run(testContext(t), tr.Args), "the call works after errors")
}

func wantArgError(t *testing.T, err error, field string) {
	t.Helper()
	var arg *moe.ArgError
	require.ErrorAs(t, err, &arg)
	require.Equal(t, field, arg.Field, arg.Error())
	require.NotEmpty(t, arg.Want)
	require.NotEqual(t, arg.Want, arg.Got, arg.Error())
}

// concernsRoute and concernsExperts report whether Route or ForwardExperts uses the
// wrong buffer.
func concernsRoute(w wrong) bool {
	switch w.field {
	case "W1", "W1.Ptr", "W2", "W2.Ptr", "O", "O.Ptr", "H", "H.Ptr":
		return false
	}
	return w.name != "Workspace over W2"
}

func concernsExperts(w wrong) bool {
	// Scores and ids are inputs of ForwardExperts, so they may share memory.
	return w.field != "Router" && w.field != "Router.Ptr" && w.name != "Experts are Scores"
}

// TestNeighboursAreNoOverlap checks that a pass accepts outputs that touch but share no byte.
func TestNeighboursAreNoOverlap(t *testing.T) {
	tr := trialOn(t, testDevice(t), tiny, 64)
	want := forward(t, tr, tr.Args)
	p, err := testDevice(t).Alloc(tr.Args.O.Shape.Bytes() + tr.Args.H.Shape.Bytes())
	require.NoError(t, err)
	defer func() { require.NoError(t, testDevice(t).Free(p)) }()
	f := tr.Args
	f.O.Ptr = p
	f.H.Ptr = p + 2*64*192
	require.NoError(t, tr.Run(testContext(t), f))
	got := make([]uint16, len(want.O))
	require.NoError(t, tr.Stream().CopyToHost(num.Bytes(got), p))
	require.Equal(t, want.O, got)
}

// TestZeroValues checks that nil, zero and impossible arguments give an error and
// do not panic.
func TestZeroValues(t *testing.T) {
	tr := trialOn(t, testDevice(t), tiny, 10)
	s := tr.Stream()
	require.NoError(t, tr.PrepareBackward(17, moe.BF16))
	var none *moe.Layer
	for name, c := range map[string]*moe.Call{"zero": {}, "nil": nil, "of a nil layer": none.NewCall(), "of a zero layer": new(moe.Layer).NewCall()} {
		for _, err := range []error{
			c.Forward(s, tr.Args), c.Route(s, tr.Args), c.ForwardExperts(s, tr.Args), c.Backward(s, tr.Back), c.BackwardExperts(s, tr.Back),
		} {
			wantArgError(t, err, "Call")
			require.ErrorContains(t, err, "must be made by Layer.NewCall", name)
		}
	}
	for _, l := range []*moe.Layer{none, {}} {
		_, err := l.Sizes(1)
		wantArgError(t, err, "Layer")
		_, err = l.ListSizes(1, 1)
		wantArgError(t, err, "Layer")
		_, err = l.Listing("up")
		wantArgError(t, err, "kernel")
		require.ErrorContains(t, err, "must be one of no kernels")
		require.Zero(t, l.Config())
		require.Empty(t, l.Kernels())
		require.Empty(t, l.LoadedFrom())
		require.Empty(t, l.Tilings())
		require.Empty(t, l.ChosenBy())
		require.Equal(t, driver.ErrBroken, l.Explain(driver.ErrBroken))
	}
	//lint:ignore SA1012 the test is about a nil context
	_, err := moe.New(nil, testDevice(t), tiny)
	wantArgError(t, err, "ctx")
	_, err = moe.New(t.Context(), testDevice(t), tiny, moe.WithoutBackward(), nil)
	wantArgError(t, err, "opts[1]")
	//lint:ignore SA1012 the test is about a nil context
	require.ErrorIs(t, s.Synchronize(nil), driver.ErrInvalid)
	var arena moe.Arena
	require.Zero(t, arena.Buffer(1))
	wantArgError(t, arena.Err(), "Arena")
	require.NoError(t, arena.Free())
	for _, tokens := range []int{-1, math.MinInt, math.MaxInt, 1 << 40, 1 << 31} {
		_, err := tr.Layer.Sizes(tokens)
		wantArgError(t, err, "tokens")
	}
	_, err = tr.Layer.Sizes((1<<31 - 1) / tiny.TopK)
	require.NoError(t, err)
}

var wrongBackwards = []struct {
	name  string
	field string
	make  func(b *moe.BackwardArgs)
}{

	{"X of rank 1", "X", func(b *moe.BackwardArgs) { b.X = moe.TensorAt(b.X.Ptr, moe.BF16, 70*192) }},
	{"X absent", "X", func(b *moe.BackwardArgs) { b.X = moe.Tensor{} }},
	{"Router absent", "Router", func(b *moe.BackwardArgs) { b.Router = moe.Tensor{} }},
	{"W1 of n rows", "W1", func(b *moe.BackwardArgs) { b.W1.Shape.Dims[1] /= 2 }},
	{"W2 misaligned", "W2.Ptr", func(b *moe.BackwardArgs) { b.W2.Ptr += 8 }},
	{"H absent", "H", func(b *moe.BackwardArgs) { b.H = moe.Tensor{} }},
	{"H of T rows", "H", func(b *moe.BackwardArgs) { b.H.Shape.Dims[0] /= 2 }},
	{"Scores nil", "Scores.Ptr", func(b *moe.BackwardArgs) { b.Scores.Ptr = 0 }},
	{"Experts in FP32", "ExpertIDs", func(b *moe.BackwardArgs) { b.ExpertIDs.Shape.Type = moe.F32 }},
	{"DO absent", "DO", func(b *moe.BackwardArgs) { b.DO = moe.Tensor{} }},
	{"DO in FP32", "DO", func(b *moe.BackwardArgs) { b.DO.Shape.Type = moe.F32 }},
	{"DLogits in bf16", "DLogits", func(b *moe.BackwardArgs) { b.DLogits = b.DRouter.Tensor; b.DLogits.Shape.Dims[0] = 70 }},
	{"DX of other tokens", "DX", func(b *moe.BackwardArgs) { b.DX.Shape.Dims[0]++ }},
	{"DScores in bf16", "DScores", func(b *moe.BackwardArgs) { b.DScores.Shape.Type = moe.BF16 }},
	{"DW1 of integers", "DW1", func(b *moe.BackwardArgs) { b.DW1.Shape.Type = moe.I32 }},
	{"DW1 like W2", "DW1", func(b *moe.BackwardArgs) { b.DW1.Shape = b.DW2.Shape }},
	{"DW2 nil", "DW2.Ptr", func(b *moe.BackwardArgs) { b.DW2.Ptr = 0 }},
	{"DRouter misaligned", "DRouter.Ptr", func(b *moe.BackwardArgs) { b.DRouter.Ptr += 4 }},
	{"DW1 is W1", "DW1", func(b *moe.BackwardArgs) { b.DW1.Ptr = b.W1.Ptr }},
	{"DX is X", "DX", func(b *moe.BackwardArgs) { b.DX.Ptr = b.X.Ptr }},
	{"DX is DO", "DX", func(b *moe.BackwardArgs) { b.DX.Ptr = b.DO.Ptr }},
	{"DScores are Scores", "DScores", func(b *moe.BackwardArgs) { b.DScores.Ptr = b.Scores.Ptr }},
	{"DW2 in DW1", "DW2", func(b *moe.BackwardArgs) { b.DW2.Ptr = b.DW1.Ptr + 256 }},
	{"Workspace of forward", "Workspace", func(b *moe.BackwardArgs) { b.Workspace.Bytes-- }},
	{"Workspace nil", "Workspace.Ptr", func(b *moe.BackwardArgs) { b.Workspace.Ptr = 0 }},
	{"Workspace misaligned", "Workspace.Ptr", func(b *moe.BackwardArgs) { b.Workspace.Ptr += 16 }},
	{"Workspace over H", "Workspace", func(b *moe.BackwardArgs) { b.Workspace.Ptr = b.H.Ptr }},
}

// TestBackwardArgErrors checks that a wrong buffer gives an *ArgError with its name, that the pass
// launches nothing, and that the call still works.
func TestBackwardArgErrors(t *testing.T) {
	tr := trialOn(t, testDevice(t), tiny, 70)
	saved := withBackward(t, tr, moe.BF16)
	s := tr.Stream()
	for _, w := range wrongBackwards {
		t.Run(w.name, func(t *testing.T) {
			b := tr.Back
			w.make(&b)
			n, err := launches(t, s, func() error { return tr.Call().Backward(s, b) })
			wantArgError(t, err, w.field)
			require.Zero(t, n, "something was launched")
			if w.field == "Router" || w.field == "DLogits" || w.field == "DRouter.Ptr" {
				return
			}
			n, err = launches(t, s, func() error { return tr.Call().BackwardExperts(s, expertsBackward(b)) })
			wantArgError(t, err, w.field)
			require.Zero(t, n, "something was launched")
		})
	}
	wantArgError(t, tr.Call().Backward(nil, tr.Back), "stream")
	require.NoError(t, tr.RunBackward(testContext(t), tr.Back))
	checkBackward(t, tr, tr.Back, saved, true)
}

// TestRepeatedExperts checks that a device which looks for races refuses a backward pass with an expert
// twice of one token. Ids outside of the experts may repeat.
func TestRepeatedExperts(t *testing.T) {
	for _, check := range []int{0, 1} {
		dev, err := emulated.New(emulated.Options{Check: check})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, dev.Close()) })
		tr := trialOn(t, dev, tiny, 3)
		require.NoError(t, tr.Run(t.Context(), tr.Args))
		require.NoError(t, tr.PrepareBackward(17, moe.BF16))
		ids := make([]int32, 3*tiny.TopK)
		for i := range ids {
			ids[i] = int32(i % tiny.TopK)
		}
		ids[0], ids[1] = 99, 99
		backward := func() error {
			require.NoError(t, tr.Stream().CopyToDevice(tr.Args.ExpertIDs.Ptr, num.Bytes(ids)))
			return tr.Call().BackwardExperts(tr.Stream(), tr.Back)
		}
		tr.Back.DRouter = moe.Gradient{}
		tr.Back.DScores = tr.Memory().Tensor(tr.Layer.Config().Gradients(3, moe.BF16).DScores)
		require.NoError(t, backward())
		ids[tiny.TopK+1] = ids[tiny.TopK]
		if err = backward(); check == 0 {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, "ExpertIDs is expert 0 twice of token 1, must be different experts of a token")
		}
	}
}
