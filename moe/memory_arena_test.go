package moe_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/internal/faulty"
	"sonicmoe/internal/num"
	"sonicmoe/moe"
)

// TestArena checks that both passes of a layer work in an arena's buffers, over all its tokens or
// fewer, and that Free frees all device memory.
func TestArena(t *testing.T) {
	dev := faulty.Wrap(testDevice(t))
	tr := trialOn(t, testDevice(t), tiny, 40)
	idle := dev.Live()
	l := newLayer(t, dev, tiny)
	s, err := dev.NewStream()
	require.NoError(t, err)
	a := moe.NewArena(dev)
	f := a.ForwardArgs(l, 40)
	f.Weights, f.Workspace = a.Weights(l), a.Workspace(40, l)
	b := f.BackwardArgs()
	b.DO, b.DX, b.WeightGradients = a.Like(f.O), a.Like(f.X), a.Gradients(l, moe.F32)
	require.NoError(t, a.Err())
	for _, w := range []struct {
		to   moe.Tensor
		from []uint16
	}{{f.X, tr.X}, {f.Router, tr.Router}, {f.W1, tr.W1}, {f.W2, tr.W2}} {
		require.NoError(t, moe.Write(s, w.to, w.from))
	}
	call := l.NewCall()
	require.NoError(t, call.Forward(s, f))
	got := make([]uint16, f.O.Shape.Elements())
	require.NoError(t, moe.Read(s, f.O, got))
	want := forward(t, tr, tr.Args)
	require.Equal(t, want.O, got)
	require.NoError(t, moe.Write(s, b.DO, make([]float32, len(got))))
	require.NoError(t, call.Backward(s, b))

	part, err := f.Tokens(7)
	require.NoError(t, err)
	require.NoError(t, moe.Write(s, f.O, make([]float32, len(got))))
	require.NoError(t, call.Forward(s, part))
	require.NoError(t, moe.Read(s, f.O, got))
	require.Equal(t, want.O[:7*tiny.Hidden], got[:7*tiny.Hidden])
	require.Equal(t, make([]uint16, 33*tiny.Hidden), got[7*tiny.Hidden:])
	for _, tokens := range []int{-1, 41, math.MaxInt} {
		_, err := f.Tokens(tokens)
		wantArgError(t, err, "tokens")
	}
	_, err = moe.ForwardArgs{}.Tokens(5)
	require.NoError(t, err, "what is missing is Forward's affair")
	_, err = moe.ForwardArgs{H: moe.TensorAt(16, moe.BF16, 4, 8), Routing: moe.Routing{Scores: moe.TensorAt(16, moe.F32, 4, 0)}}.Tokens(2)
	wantArgError(t, err, "Scores")

	require.NoError(t, a.Free())
	require.NoError(t, s.Close())
	require.Equal(t, idle.Allocations, dev.Live().Allocations)
	require.NoError(t, a.Free(), "of nothing")
}

// TestArenaErrors checks that an arena keeps the first error, that later allocations return no
// memory, and that Free still frees all memory.
func TestArenaErrors(t *testing.T) {
	dev := faulty.Wrap(testDevice(t))
	l := newLayer(t, dev, tiny)
	idle := dev.Live().Allocations
	a := moe.NewArena(dev)
	require.False(t, a.Tensor(l.Shapes(3).X).IsZero())
	dev.Arm(faulty.Fault{Op: faulty.Alloc, N: 2, Err: driver.ErrOutOfMemory})
	w := a.Weights(l)
	require.True(t, dev.Disarm())
	require.ErrorIs(t, a.Err(), driver.ErrOutOfMemory)
	require.ErrorContains(t, a.Err(), "allocating")
	first := a.Err()
	require.True(t, w.W1.IsZero())
	require.Equal(t, moe.Buffer{}, a.Buffer(10))
	require.Equal(t, moe.ForwardArgs{}, a.ForwardArgs(l, -1))
	require.Equal(t, first, a.Err())
	require.NoError(t, a.Free())
	require.Equal(t, idle, dev.Live().Allocations)

	for _, w := range []struct {
		field string
		make  func(a *moe.Arena)
	}{
		{"tokens", func(a *moe.Arena) { a.ForwardArgs(l, -1) }},
		{"tokens", func(a *moe.Arena) { a.Workspace(1<<40, l) }},
		{"Layer", func(a *moe.Arena) { a.ForwardArgs(nil, 1) }},
		{"Layer", func(a *moe.Arena) { a.Workspace(1, l, nil) }},
		{"bytes", func(a *moe.Arena) { a.Buffer(-1) }},
	} {
		w.make(a)
		wantArgError(t, a.Err(), w.field)
		require.NoError(t, a.Free())
	}
	none := moe.NewArena(nil)
	none.Buffer(1)
	wantArgError(t, none.Err(), "device")
	require.NoError(t, none.Free())
	wantArgError(t, none.Err(), "device")

	none = nil
	require.Equal(t, moe.Weights{}, none.Weights(l))
	require.Equal(t, moe.Buffer{}, none.Workspace(1, l))
	require.Equal(t, moe.ForwardArgs{}, none.ForwardArgs(l, -1))
	wantArgError(t, none.Err(), "Arena")
	require.NoError(t, none.Free())
}

// TestWriteAndRead checks that Write rounds numbers once, copies integers and
// 16-bit values unchanged, splits long tensors, and keeps NaN.
func TestWriteAndRead(t *testing.T) {
	dev := testDevice(t)
	s, err := dev.NewStream()
	require.NoError(t, err)
	defer s.Close()
	a := moe.NewArena(dev)
	defer func() { require.NoError(t, a.Free()) }()
	const n = 1<<20 + 3
	tensor := func(of moe.Type) moe.Tensor { return a.Tensor(moe.TensorAt(0, of, n).Shape) }
	singles, doubles := make([]float32, n), make([]float64, n)
	for i := range singles {
		doubles[i] = math.Sin(float64(i)) * (1 + 1e-9)
		singles[i] = float32(doubles[i])
	}
	singles[5], doubles[5] = float32(math.NaN()), math.NaN()
	for _, f := range []struct {
		of       moe.Type
		of32     func(float32) uint16
		of64     func(float64) uint16
		toDouble func(uint16) float64
	}{{moe.BF16, num.Float32ToBF16, num.Float64ToBF16, num.BF16ToFloat64}, {moe.F16, num.Float32ToF16, num.Float64ToF16, num.F16ToFloat64}} {
		x, bits := tensor(f.of), make([]uint16, n)
		back32, back64 := make([]float32, n), make([]float64, n)
		check := func(of func(i int) uint16) {
			require.NoError(t, moe.Read(s, x, bits))
			require.NoError(t, moe.Read(s, x, back32))
			require.NoError(t, moe.Read(s, x, back64))
			for i, b := range bits {
				if want := f.toDouble(of(i)); want == want && (b != of(i) || back64[i] != want || back32[i] != float32(want)) ||
					want != want && (back64[i] == back64[i] || back32[i] == back32[i]) {
					t.Fatalf("%v[%d] is %#x, %g, %g, must be %g", f.of, i, b, back32[i], back64[i], want)
				}
			}
		}
		require.NoError(t, moe.Write(s, x, singles))
		check(func(i int) uint16 { return f.of32(singles[i]) })
		require.NoError(t, moe.Write(s, x, doubles))
		check(func(i int) uint16 { return f.of64(doubles[i]) })
		for i := range bits {
			bits[i] = uint16(i)
		}
		require.NoError(t, moe.Write(s, x, bits))
		check(func(i int) uint16 { return uint16(i) })
	}
	x, got := tensor(moe.F32), make([]float64, n)
	require.NoError(t, moe.Write(s, x, doubles))
	require.NoError(t, moe.Read(s, x, got))
	for i := range got {
		if i != 5 && got[i] != float64(float32(doubles[i])) {
			t.Fatalf("f32[%d] is %g, must be %g", i, got[i], float32(doubles[i]))
		}
	}
	ids, back := []int32{-1, 7, math.MinInt32}, make([]int32, 3)
	y := a.Tensor(moe.TensorAt(0, moe.I32, 3).Shape)
	require.NoError(t, moe.Write(s, y, ids))
	require.NoError(t, moe.Read(s, y, back))
	require.Equal(t, ids, back)

	for _, w := range []struct {
		field string
		err   error
	}{
		{"values", moe.Write(s, y, ids[:2])}, {"values", moe.Read(s, x, singles[1:])},
		{"tensor", moe.Write(s, y, singles[:3])}, {"tensor", moe.Read(s, x, make([]uint16, n))}, {"tensor", moe.Read(s, x, make([]int32, n))},
		{"tensor", moe.Write(s, moe.Tensor{}, ids)}, {"tensor.Ptr", moe.Write(s, moe.TensorAt(0, moe.I32, 3), ids)}, {"stream", moe.Read(nil, y, ids)},
	} {
		wantArgError(t, w.err, w.field)
	}
}
