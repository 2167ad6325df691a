package moe_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/internal/num"
	"sonicmoe/internal/reference"
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
	"sonicmoe/moe/internal/kernel"
	"sonicmoe/moe/internal/kernel/dh"
	"sonicmoe/moe/internal/kernel/dw"
	"sonicmoe/moe/internal/tiles"
)

// TestBackwardAccumulate checks that every format of a weight's gradient has the
// bits that follow from the FP32 gradient: bf16 is the FP32 value rounded, and
// accumulating is one FP32 addition to the old value.
func TestBackwardAccumulate(t *testing.T) {
	if testing.Short() {
		t.Skip("too long for -short")
	}
	for _, c := range []moe.Config{
		{Hidden: 192, Intermediate: 64, NumExperts: 6, TopK: 2, GateUp: moe.Interleaved},
		{Hidden: 144, Intermediate: 80, NumExperts: 3, TopK: 2},
		{Hidden: 80, Intermediate: 48, NumExperts: 3, TopK: 2, GateUp: moe.Interleaved, WeightOrder: moe.InOut},
	} {
		t.Run(c.String(), func(t *testing.T) { checkAccumulate(t, trialOn(t, testDevice(t), c, 90)) })
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
		// The old values are the gradient itself, times about -3.
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

// TestBackwardTimings checks that the bits do not depend on when asynchronous work
// completes or how warps interleave.
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

// TestBackwardPoints checks that every tiling gives the same bits, also in repeated
// passes.
func TestBackwardPoints(t *testing.T) {
	for _, c := range []moe.Config{
		{Hidden: 192, Intermediate: 192, NumExperts: 4, TopK: 2},
		{Hidden: 272, Intermediate: 208, NumExperts: 3, TopK: 1, SharedExperts: 1},
		{Hidden: 272, Intermediate: 208, NumExperts: 3, TopK: 1, WeightOrder: moe.InOut, GateUp: moe.Interleaved},
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
		choice := tiles.Choice{"dh": dhs[i%len(dhs)], "dx": dxs[i%len(dxs)], "dw1": dws[i%len(dws)], "dw2": dws[(i+1)%len(dws)]}
		tr := trialOn(t, testDevice(t), c, 90, moe.WithTilings(choice.Text()))
		require.Equal(t, choice["dh"].String(), tr.Layer.Tilings()["dh"])
		withBackward(t, tr, moe.F32)
		require.NoError(t, tr.RunBackward(testContext(t), tr.Back))
		got := gradients(t, tr, tr.Back)
		if first == nil {
			first = got
		}
		sameGradients(t, first, got, "%v %v", c, choice)
	}
}

// TestBackwardReplay checks that a captured training step, forward and backward in
// one workspace, computes new tokens and a new routing from the same buffers.
func TestBackwardReplay(t *testing.T) {
	const tokens = 100
	tr := trialOn(t, testDevice(t), tiny, tokens)
	require.NoError(t, tr.PrepareBackward(17, moe.BF16))
	ctx, s := testContext(t), tr.Stream()
	f := tr.Args
	f.Workspace = tr.Back.Workspace
	require.NoError(t, s.BeginCapture())
	require.NoError(t, tr.Call().Forward(s, f))
	require.NoError(t, tr.Call().Backward(s, tr.Back))
	g, err := s.EndCapture()
	require.NoError(t, err)
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
