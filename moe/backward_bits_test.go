package moe_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/emulated"
	"sonicmoe/internal/num"
	"sonicmoe/internal/reference"
	"sonicmoe/internal/spec"
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
	"sonicmoe/moe/internal/gradient"
	"sonicmoe/moe/internal/kernel"
	"sonicmoe/moe/internal/kernel/dh"
	"sonicmoe/moe/internal/kernel/drouter"
	"sonicmoe/moe/internal/kernel/dw"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/tiles"
	"sonicmoe/ptx/emu"
)

// TestBackwardAccumulate checks that every format of a weight's gradient has the bits that follow
// from the FP32 gradient: a bf16 gradient is the rounded FP32 gradient, and an accumulated gradient
// is the old value plus the FP32 gradient, added in FP32.
func TestBackwardAccumulate(t *testing.T) {
	if testing.Short() {
		t.Skip("too long for -short")
	}
	for _, c := range []moe.Config{
		{Hidden: 192, Intermediate: 64, NumExperts: 6, TopK: 2, GateUp: spec.Interleaved},
		{Hidden: 144, Intermediate: 80, NumExperts: 3, TopK: 2},
		{Hidden: 80, Intermediate: 48, NumExperts: 3, TopK: 2, GateUp: spec.Interleaved, InOut: true},
	} {
		t.Run(c.String(), func(t *testing.T) { checkAccumulate(t, trialOn(t, testDevice(t), c, 90, accumulating(c)...)) })
	}
}

func checkAccumulate(t *testing.T, tr *trial.Trial) {
	withBackward(t, tr, moe.F32)
	require.NoError(t, tr.AddLogitGradients(23))
	wide := tr.Back
	require.NoError(t, tr.RunBackward(testContext(t), wide))
	exact := gradients(t, tr, wide)

	require.NoError(t, tr.PrepareBackward(17, moe.BF16))
	narrow := tr.Back
	narrow.DLogits = wide.DLogits
	require.NoError(t, tr.RunBackward(testContext(t), narrow))
	rounded := gradients(t, tr, narrow)
	require.Equal(t, exact["DX"], rounded["DX"])
	for _, name := range []string{"DW1", "DW2", "DRouter"} {
		for i, v := range exact[name].F32 {
			require.Equal(t, num.Float32ToBF16(v), rounded[name].Bits[i], "%s[%d]", name, i)
		}
	}

	for _, b := range []moe.BackwardArgs{wide, narrow} {
		b.DW1.Accumulate, b.DW2.Accumulate, b.DRouter.Accumulate = true, true, true
		// The old values are about -3 times the gradient.
		for _, name := range []string{"DW1", "DW2", "DRouter"} {
			old := exact[name].F32
			var bits []byte
			if b.DW1.Shape.Type == moe.F32 {
				bits = num.Bytes(times(old, -3.14159))
			} else {
				bits = num.Bytes(narrowed(times(old, -3.14159)))
			}
			require.NoError(t, tr.Stream().CopyToDevice(wanted(&b)[name].Ptr, bits))
		}
		require.NoError(t, tr.RunBackward(testContext(t), b))
		added := gradients(t, tr, b)
		for _, name := range []string{"DW1", "DW2", "DRouter"} {
			for i, v := range exact[name].F32 {
				if b.DW1.Shape.Type == moe.F32 {
					require.Equal(t, v*-3.14159+v, added[name].F32[i], "%s[%d] in FP32", name, i)
				} else {
					old := float32(num.BF16ToFloat64(num.Float32ToBF16(v * -3.14159)))
					require.Equal(t, num.Float32ToBF16(old+v), added[name].Bits[i], "%s[%d] in bf16", name, i)
				}
			}
		}
	}
}

func times(v []float32, by float32) []float32 {
	out := make([]float32, len(v))
	for i := range v {
		out[i] = v[i] * by
	}
	return out
}

func narrowed(v []float32) []uint16 {
	out := make([]uint16, len(v))
	for i := range v {
		out[i] = num.Float32ToBF16(v[i])
	}
	return out
}

// TestBackwardTimings checks that the bits depend neither on when asynchronous work completes nor
// on how warps interleave.
func TestBackwardTimings(t *testing.T) {
	if testing.Short() {
		t.Skip("too long for -short")
	}
	var first map[string]trial.Values
	for _, d := range timedDevices(t) {
		t.Run(d.name, func(t *testing.T) {
			tr := trialOn(t, d.dev, moe.Config{Hidden: 192, Intermediate: 192, NumExperts: 5, TopK: 3}, 100)
			withBackward(t, tr, moe.BF16)
			require.NoError(t, tr.AddLogitGradients(23))
			require.NoError(t, tr.RunBackward(testContext(t), tr.Back))
			got := gradients(t, tr, tr.Back)
			if first == nil {
				first = got
			}
			sameGradients(t, first, got, "%s", d.name)
		})
	}
}

// TestBackwardPoints checks that every tiling gives the same bits, and that repeated passes do.
func TestBackwardPoints(t *testing.T) {
	for _, c := range []moe.Config{
		{Hidden: 192, Intermediate: 192, NumExperts: 4, TopK: 2},
		{Hidden: 272, Intermediate: 208, NumExperts: 3, TopK: 1, SharedExperts: 1},
		{Hidden: 272, Intermediate: 208, NumExperts: 3, TopK: 1, InOut: true, GateUp: spec.Interleaved},
	} {
		checkBackwardPoints(t, c)
		if testing.Short() {
			return
		}
	}
}

func checkBackwardPoints(t *testing.T, c moe.Config) {
	target := testDevice(t).Target()
	dhs, dxs, dws := dh.Product.Space(target), kernel.DXProduct.Space(target), dw.W1Product.Space(target)
	var first map[string]trial.Values
	for i := range max(len(dhs), len(dxs), len(dws)) {
		choice := tiles.Choice{spec.ProductDH: dhs[i%len(dhs)], spec.ProductDX: dxs[i%len(dxs)], spec.ProductDW1: dws[i%len(dws)], spec.ProductDW2: dws[(i+1)%len(dws)]}
		tr := trialOn(t, testDevice(t), c, 90, moe.WithTilings(choice.Text()))
		require.Equal(t, choice[spec.ProductDH].String(), tr.Layer.Tilings()["dh"])
		withBackward(t, tr, moe.F32)
		require.NoError(t, tr.RunBackward(testContext(t), tr.Back))
		got := gradients(t, tr, tr.Back)
		if first == nil {
			first = got
		}
		sameGradients(t, first, got, "%v %v", c, choice)
	}
}

// TestBackwardReplay captures a training step, forward and backward in one workspace. It checks
// that a replay computes new tokens with a new routing in the same buffers.
func TestBackwardReplay(t *testing.T) {
	const tokens = 100
	tr := trialOn(t, testDevice(t), tiny, tokens)
	require.NoError(t, tr.PrepareBackward(17, moe.BF16))
	ctx, s := testContext(t), tr.Stream()
	f := tr.Args
	f.Workspace = tr.Back.Workspace
	g := capture(t, s, func() error { return tr.Call().Forward(s, f) }, func() error { return tr.Call().Backward(s, tr.Back) })
	defer g.Close()
	var before map[string]trial.Values
	for seed := range uint64(rounds(3)) {
		copy(tr.X, reference.NewNormal(50+seed, reference.ScaleX).Values(int64(len(tr.X))))
		copy(tr.DO, reference.NewNormal(70+seed, reference.ScaleOutput).Values(int64(len(tr.DO))))
		require.NoError(t, s.CopyToDevice(tr.Args.X.Ptr, num.Bytes(tr.X)))
		require.NoError(t, s.CopyToDevice(tr.Back.DO.Ptr, num.Bytes(tr.DO)))
		require.NoError(t, tr.Poison())
		require.NoError(t, tr.PoisonGradients(tr.Back))
		require.NoError(t, g.Launch(s))
		require.NoError(t, s.Synchronize(ctx))
		replayed := gradients(t, tr, tr.Back)
		require.NotEqual(t, before, replayed, "the tokens are new")
		before = replayed
		if seed < 3 {
			saved, err := tr.Results(true)
			require.NoError(t, err)
			checkBackward(t, tr, tr.Back, saved, true)
		}
		require.NoError(t, tr.RunBackward(ctx, tr.Back))
		sameGradients(t, replayed, gradients(t, tr, tr.Back), "a replay gives the bits of a call")
	}
}

// TestBitsOfEachBackwardKernel is TestBitsOfEachKernel for backward. Approximate functions compute
// dH, A' and the gradients of the scores. The second device gets these from the first. All results
// that follow from them must have the same bits.
func TestBitsOfEachBackwardKernel(t *testing.T) {
	for _, c := range []struct {
		tokens int
		config moe.Config
	}{
		{150, moe.Config{Hidden: 256, Intermediate: 192, NumExperts: 12, TopK: 4}},
		{100, moe.Config{Hidden: 192, Intermediate: 64, NumExperts: 30, TopK: 6, GateUp: spec.Interleaved}},
	} {
		if testing.Short() { // fewer experts give the emulator fewer tiles
			if c.config.GateUp != spec.Interleaved {
				continue
			}
			c.config.NumExperts = c.config.TopK + 2
		}
		t.Run(fmt.Sprintf("%d %v", c.tokens, c.config), func(t *testing.T) {
			other, err := emulated.New(emulated.Options{Timing: emu.Random, Seed: 7})
			require.NoError(t, err)
			b := backwardBench{bitsBench{t: t, a: trialOn(t, testDevice(t), c.config, c.tokens), b: trialOn(t, other, c.config, c.tokens)}}
			b.forward()
			b.weights()
			b.tokens()
			b.router()
		})
	}
}

// backwardBench has the same layer, inputs and saved tensors on two devices.
type backwardBench struct{ bitsBench }

// forward copies the saved tensors of the first device to the second.
func (b backwardBench) forward() {
	saved := withBackward(b.t, b.a, moe.F32)
	withBackward(b.t, b.b, moe.F32)
	s, f := b.b.Stream(), b.b.Args
	for to, bits := range map[driver.DevicePtr][]byte{f.H.Ptr: num.Bytes(saved.H), f.Scores.Ptr: num.Bytes(saved.Scores), f.ExpertIDs.Ptr: num.Bytes(saved.ExpertIDs)} {
		require.NoError(b.t, s.CopyToDevice(to, bits))
	}
}

// want runs backward on both devices for only the named gradients, and returns the buffers of the
// passes.
func (b backwardBench) want(names ...string) (x, y moe.BackwardArgs) {
	for i, tr := range []*trial.Trial{b.a, b.b} {
		pass := tr.Back
		for name, of := range wanted(&pass) {
			keep := false
			for _, n := range names {
				keep = keep || n == name
			}
			if !keep {
				*of = moe.Tensor{}
			}
		}
		require.NoError(b.t, tr.RunBackward(testContext(b.t), pass))
		if i == 0 {
			x = pass
		} else {
			y = pass
		}
	}
	return x, y
}

// again runs kernels on the second device.
func (b backwardBench) again(pass moe.BackwardArgs, kernels ...registry.Any) {
	for _, k := range kernels {
		require.NoError(b.t, b.b.Call().RunBackwardKernel(k, b.b.Stream(), pass))
	}
	require.NoError(b.t, b.b.Stream().Synchronize(testContext(b.t)))
}

// near checks that the bf16 values of the region name differ by at most two units in the last
// place. It ignores values that are tiny compared to the largest value: a product with a factor
// close to zero has few correct digits.
func (b backwardBench) near(name string) {
	x, y := b.region(b.a, name), b.region(b.b, name)
	for i := 0; i < len(x); i += 2 {
		fx := num.BF16ToFloat64(binary.LittleEndian.Uint16(x[i:]))
		fy := num.BF16ToFloat64(binary.LittleEndian.Uint16(y[i:]))
		require.LessOrEqual(b.t, math.Abs(fx-fy), math.Abs(fy)/128+1e-6, "%s element %d: %g and %g", name, i/2, fx, fy)
	}
}

// weights checks dH and the scores' gradients. It then checks that both devices compute the same
// bits of dW1 and dW2 from the first device's dH and A'.
func (b backwardBench) weights() {
	x, y := b.want("DW1", "DW2", "DScores")
	require.Equal(b.t, b.region(b.b, "pairs"), b.region(b.a, "pairs"), "pairs")
	b.near("dH")
	b.near("A'")
	got, other := gradients(b.t, b.a, x), gradients(b.t, b.b, y)
	for i, v := range other["DScores"].F32 {
		require.InDelta(b.t, v, got["DScores"].F32[i], 1e-4*(1+math.Abs(float64(v))), "DScores %d", i)
	}
	b.give("dH")
	b.give("A'")
	b.again(y, dw.W2Kernels.In(inF32), dw.W1Kernels.In(inF32))
	other = gradients(b.t, b.b, y)
	got["DScores"], other["DScores"] = trial.Values{}, trial.Values{}
	sameGradients(b.t, other, got, "weights")
}

// tokens checks dX~ computed from the same dH and gradients of the logits, and dX computed from the
// same dX~.
func (b backwardBench) tokens() {
	x, y := b.want("DX")
	b.give("dH")
	b.give("dlogitByRow")
	b.again(y, kernel.DXKernel)
	require.Equal(b.t, b.region(b.b, "dX~"), b.region(b.a, "dX~"), "dX~")
	b.again(y, kernel.SumKernel)
	sameGradients(b.t, gradients(b.t, b.b, y), gradients(b.t, b.a, x), "tokens")
}

// inF32 is the mode of the bench's gradients.
var inF32 = gradient.Mode{F32: true}

// router checks dW_r computed from the same gradients of the logits.
func (b backwardBench) router() {
	x, y := b.want("DRouter")
	b.give("dlogits")
	b.again(y, drouter.Kernel, drouter.SumKernels.In(inF32))
	sameGradients(b.t, gradients(b.t, b.b, y), gradients(b.t, b.a, x), "router")
}
