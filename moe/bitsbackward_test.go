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
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
	"sonicmoe/moe/internal/gradient"
	"sonicmoe/moe/internal/kernel"
	"sonicmoe/moe/internal/kernel/drouter"
	"sonicmoe/moe/internal/kernel/dw"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/ptx/emu"
)

// TestBitsOfEachBackwardKernel is TestBitsOfEachKernel for backward. dH, A' and the
// gradients of the scores contain approximate functions. The second device gets
// them from the first, and everything computed from them must have the same bits.
func TestBitsOfEachBackwardKernel(t *testing.T) {
	for _, c := range []struct {
		tokens int
		config moe.Config
	}{
		{150, moe.Config{Hidden: 256, Intermediate: 192, NumExperts: 12, TopK: 4}},
		{100, moe.Config{Hidden: 192, Intermediate: 64, NumExperts: 30, TopK: 6, GateUp: moe.Interleaved}},
	} {
		if testing.Short() { // fewer experts give the emulator fewer tiles
			if c.config.GateUp != moe.Interleaved {
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

// want runs backward on both devices for the named gradients only, and returns the
// passes' buffers.
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

// part reads a region of a trial's backward workspace.
func (b backwardBench) part(tr *trial.Trial, name string) []byte {
	r := tr.Layer.BackwardRegions(tr.Tokens)[name]
	buf := make([]byte, r[1])
	require.NoError(b.t, tr.Stream().CopyToHost(buf, tr.Back.Workspace.Ptr+driver.DevicePtr(r[0])))
	return buf
}

// hand copies a region of the first device's backward workspace to the second's.
func (b backwardBench) hand(name string) {
	to := b.b.Back.Workspace.Ptr + driver.DevicePtr(b.b.Layer.BackwardRegions(b.b.Tokens)[name][0])
	require.NoError(b.t, b.b.Stream().CopyToDevice(to, b.part(b.a, name)))
}

// again runs kernels on the second device.
func (b backwardBench) again(pass moe.BackwardArgs, kernels ...registry.Any) {
	for _, k := range kernels {
		require.NoError(b.t, b.b.Call().RunBackwardKernel(k, b.b.Stream(), pass))
	}
	require.NoError(b.t, b.b.Stream().Synchronize(testContext(b.t)))
}

// near checks that bf16 values agree within two steps, or are negligible next to
// the largest value: a factor close to zero has few correct digits.
func (b backwardBench) near(name string) {
	x, y := b.part(b.a, name), b.part(b.b, name)
	for i := 0; i < len(x); i += 2 {
		fx := num.BF16ToFloat64(binary.LittleEndian.Uint16(x[i:]))
		fy := num.BF16ToFloat64(binary.LittleEndian.Uint16(y[i:]))
		require.LessOrEqual(b.t, math.Abs(fx-fy), math.Abs(fy)/128+1e-6, "%s element %d: %g and %g", name, i/2, fx, fy)
	}
}

// weights checks DH, then dW1 and dW2 from the same dH and A'.
func (b backwardBench) weights() {
	x, y := b.want("DW1", "DW2", "DScores")
	require.Equal(b.t, b.part(b.b, "pairs"), b.part(b.a, "pairs"), "pairs")
	b.near("dH")
	b.near("A'")
	got, other := gradients(b.t, b.a, x), gradients(b.t, b.b, y)
	for i, v := range other["DScores"].F32 {
		require.InDelta(b.t, v, got["DScores"].F32[i], 1e-4*(1+math.Abs(float64(v))), "DScores %d", i)
	}
	b.hand("dH")
	b.hand("A'")
	b.again(y, dw.W2Kernels.In(inF32), dw.W1Kernels.In(inF32))
	other = gradients(b.t, b.b, y)
	got["DScores"], other["DScores"] = trial.Values{}, trial.Values{}
	sameGradients(b.t, other, got, "weights")
}

// tokens checks dX~ from the same dH and gradients of the logits, then dX from the
// same dX~.
func (b backwardBench) tokens() {
	x, y := b.want("DX")
	b.hand("dH")
	b.hand("dlogitByRow")
	b.again(y, kernel.DXKernel)
	require.Equal(b.t, b.part(b.b, "dX~"), b.part(b.a, "dX~"), "dX~")
	b.again(y, kernel.SumKernel)
	sameGradients(b.t, gradients(b.t, b.b, y), gradients(b.t, b.a, x), "tokens")
}

// inF32 is the mode of the bench's gradients.
var inF32 = gradient.Mode{F32: true}

// router checks dW_r from the same gradients of the logits.
func (b backwardBench) router() {
	x, y := b.want("DRouter")
	b.hand("dlogits")
	b.again(y, drouter.Kernel, drouter.SumKernels.In(inF32))
	sameGradients(b.t, gradients(b.t, b.b, y), gradients(b.t, b.a, x), "router")
}
