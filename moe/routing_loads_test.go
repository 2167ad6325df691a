package moe_test

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/internal/spec"
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
)

// skewed is a layer with a selection bias. Tests set its router bias so that the first experts win.
var skewed = moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 8, TopK: 2, RouterBias: true, Score: spec.Sigmoid, SelectionBias: true, Renormalize: spec.RenormSum}

// loadsOf returns a tensor of loads for the experts of a trial. The load of every expert is the
// parameter each.
func loadsOf(t *testing.T, tr *trial.Trial, each int32) moe.Tensor {
	memory := moe.NewArena(testDevice(t))
	t.Cleanup(func() { require.NoError(t, memory.Free()) })
	e := tr.Layer.Config().NumExperts
	loads := memory.Tensor(moe.TensorAt(0, moe.I32, e).Shape)
	require.NoError(t, memory.Err())
	require.NoError(t, moe.Write(tr.Stream(), loads, slices.Repeat([]int32{each}, e)))
	return loads
}

// numbersOf reads a tensor of integers.
func numbersOf(t *testing.T, tr *trial.Trial, of moe.Tensor) []int32 {
	list := make([]int32, of.Shape.Elements())
	require.NoError(t, moe.Read(tr.Stream(), of, list))
	return list
}

// chosenBy returns the number of ids of each expert in a trial's last pass.
func chosenBy(t *testing.T, tr *trial.Trial) []int32 {
	counts := make([]int32, tr.Layer.Config().NumExperts)
	for _, id := range numbersOf(t, tr, tr.Args.ExpertIDs) {
		counts[id]++
	}
	return counts
}

// TestSelectionBalances checks that loss-free balancing makes the loads of a skewed router nearly
// equal within some steps. A step of two micro-batches is one graph.
func TestSelectionBalances(t *testing.T) {
	const tokens, first, steps, rate = 60, 24, 14, 0.04
	tr := trialOn(t, testDevice(t), skewed, tokens)
	c, s, f := tr.Call(), tr.Stream(), tr.Args
	skew, bias := make([]float32, skewed.NumExperts), make([]float32, skewed.NumExperts)
	for e := range skew {
		skew[e] = -0.5 * float32(e)
	}
	require.NoError(t, moe.Write(s, f.RouterBias, skew))
	require.NoError(t, moe.Write(s, f.SelectionBias, bias))
	loads := loadsOf(t, tr, 0)
	halves := [2]moe.Tensor{f.ExpertIDs, f.ExpertIDs}
	halves[0].Shape.Dims[0], halves[1].Shape.Dims[0] = first, tokens-first
	halves[1].Ptr = at(f.ExpertIDs, 4*first*skewed.TopK)
	count := func() error {
		err := c.Forward(s, f)
		for _, ids := range halves {
			if err == nil {
				err = c.Loads(s, ids, loads)
			}
		}
		return err
	}
	require.NoError(t, count())
	before := chosenBy(t, tr)
	require.Equal(t, before, numbersOf(t, tr, loads))

	require.NoError(t, c.UpdateSelectionBias(s, loads, f.SelectionBias, rate))
	require.Equal(t, make([]int32, len(bias)), numbersOf(t, tr, loads))
	require.NoError(t, moe.Read(s, f.SelectionBias, bias))
	for e, n := range before {
		const mean = tokens * 2 / 8
		require.Equal(t, map[bool]float32{true: rate, false: -rate}[n < mean], bias[e], "expert %d of %v", e, before)
	}

	step := capture(t, s, count, func() error { return c.UpdateSelectionBias(s, loads, f.SelectionBias, rate) })
	defer step.Close()
	for range steps {
		require.NoError(t, step.Launch(s))
	}
	after := chosenBy(t, tr)
	t.Logf("before %v, after %v", before, after)
	require.Greater(t, slices.Max(before), int32(3*tokens*2/8))
	require.Less(t, slices.Max(after), int32(2*tokens*2/8))
}

// TestLoadsOfLayers checks that Loads launches nothing without tokens, that rounding does not
// change the loads, and that layers without a selection bias also have loads.
func TestLoadsOfLayers(t *testing.T) {
	rounds := tiny
	rounds.Rounding = moe.Rounding{Rule: spec.RoundNearest, Tile: 64}
	for name, c := range map[string]moe.Config{"plain": tiny, "rounding": rounds} {
		t.Run(name, func(t *testing.T) {
			tr := trialOn(t, testDevice(t), c, 70)
			require.NoError(t, tr.Call().Route(tr.Stream(), tr.Args))
			loads := loadsOf(t, tr, 5)
			none := tr.Args.ExpertIDs
			none.Shape.Dims[0] = 0
			n, err := launches(t, tr.Stream(), func() error { return tr.Call().Loads(tr.Stream(), none, loads) })
			require.NoError(t, err)
			require.Zero(t, n)
			require.NoError(t, tr.Call().Loads(tr.Stream(), tr.Args.ExpertIDs, loads))
			for e, n := range chosenBy(t, tr) {
				require.Equal(t, n+5, numbersOf(t, tr, loads)[e], "expert %d", e)
			}
		})
	}
}

// TestWrongLoads checks that wrong arguments give an error and launch nothing.
func TestWrongLoads(t *testing.T) {
	tr := trialOn(t, testDevice(t), skewed, 16)
	s, ids, loads, bias := tr.Stream(), tr.Args.ExpertIDs, loadsOf(t, tr, 0), tr.Args.SelectionBias
	as := func(of moe.Tensor, change func(*moe.Tensor)) moe.Tensor { change(&of); return of }
	f32 := func(of *moe.Tensor) { of.Shape.Type = moe.F32 }
	longer := func(of *moe.Tensor) { of.Shape.Dims[0]++ }
	off := func(of *moe.Tensor) { of.Ptr += 4 }
	plain, forward := trialOn(t, testDevice(t), tiny, 16), trialOn(t, testDevice(t), skewed, 16, moe.WithoutBackward())
	update := func(loads, bias moe.Tensor, rate float32) func(*moe.Call) error {
		return func(c *moe.Call) error { return c.UpdateSelectionBias(s, loads, bias, rate) }
	}
	count := func(ids, loads moe.Tensor) func(*moe.Call) error {
		return func(c *moe.Call) error { return c.Loads(s, ids, loads) }
	}
	for _, w := range []struct {
		field, want string
		call        *moe.Call
		run         func(c *moe.Call) error
	}{
		{"ids", "ids is missing, must be i32 [T 2] with T·K below 2^31", tr.Call(), count(moe.Tensor{}, loads)},
		{"ids", "ids is i32 [-1 2], must be i32 [T 2] with", tr.Call(), count(as(ids, func(of *moe.Tensor) { of.Shape.Dims[0] = -1 }), loads)},
		{"ids", "ids is i32 [1073741825 2], must be i32 [T 2] with", tr.Call(), count(as(ids, func(of *moe.Tensor) { of.Shape.Dims[0] = 1<<30 + 1 }), loads)},
		{"ids", "ids is i32 [32], must be i32 [T 2] with", tr.Call(), count(moe.TensorAt(ids.Ptr, moe.I32, 32), loads)},
		{"ids", "ids is i32 [16 3], must be i32 [16 2]", tr.Call(), count(moe.TensorAt(ids.Ptr, moe.I32, 16, 3), loads)},
		{"ids", "ids is f32 [16 2], must be i32 [16 2]", tr.Call(), count(as(ids, f32), loads)},
		{"ids.Ptr", "a multiple of 16", tr.Call(), count(as(ids, off), loads)},
		{"loads", "loads is missing, must be i32 [8]", tr.Call(), count(ids, moe.Tensor{})},
		{"loads", "loads is f32 [8], must be i32 [8]", tr.Call(), count(ids, as(loads, f32))},
		{"loads", "must be apart from ids", tr.Call(), count(ids, as(loads, func(of *moe.Tensor) { of.Ptr = ids.Ptr }))},
		{"Layer", "Layer is made with WithoutBackward, must be made without that option", forward.Call(), count(ids, loads)},
		{"Layer", "Layer is made with WithoutBackward, must be made without that option", forward.Call(), update(loads, bias, 1)},
		{"Config.SelectionBias", "Config.SelectionBias is false, must be true: the layer chooses experts without a bias", plain.Call(), update(loads, bias, 1)},
		{"rate", "rate is NaN, must be a finite step", tr.Call(), update(loads, bias, float32(math.NaN()))},
		{"rate", "rate is -Inf, must be a finite step", tr.Call(), update(loads, bias, float32(math.Inf(-1)))},
		{"loads", "loads is i32 [9], must be i32 [8]", tr.Call(), update(as(loads, longer), bias, 1)},
		{"bias", "bias is missing, must be f32 [8]", tr.Call(), update(loads, moe.Tensor{}, 1)},
		{"bias.Ptr", "a multiple of 16", tr.Call(), update(loads, as(bias, off), 1)},
		{"bias", "must be apart from loads", tr.Call(), update(loads, as(bias, func(of *moe.Tensor) { of.Ptr = loads.Ptr }), 1)},
		{"Call", "made by Layer.NewCall", nil, update(loads, bias, 1)},
		{"Call", "made by Layer.NewCall", nil, count(ids, loads)},
		{"stream", "a stream of the layer's device", tr.Call(), func(c *moe.Call) error { return c.Loads(nil, ids, loads) }},
	} {
		n, err := launches(t, s, func() error { return w.run(w.call) })
		wantArgError(t, err, w.field)
		require.ErrorContains(t, err, w.want)
		require.Zero(t, n)
	}
	require.NoError(t, count(ids, loads)(tr.Call()))
	require.NoError(t, update(loads, bias, 1e-3)(tr.Call()))
}

// TestLoadsAllocateNothing checks that Loads and UpdateSelectionBias allocate no host memory.
func TestLoadsAllocateNothing(t *testing.T) {
	dev, tr := faultyTrial(t, testDevice(t), skewed, 24)
	defer tr.Close()
	loads := loadsOf(t, tr, 0)
	dev.Discard(true)
	c, s, f := tr.Call(), tr.Stream(), tr.Args
	for name, run := range map[string]func() error{
		"Loads":               func() error { return c.Loads(s, f.ExpertIDs, loads) },
		"UpdateSelectionBias": func() error { return c.UpdateSelectionBias(s, loads, f.SelectionBias, 1e-3) },
	} {
		require.Zero(t, testing.AllocsPerRun(100, func() { require.NoError(t, run()) }), name)
	}
}
