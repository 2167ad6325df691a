package moe_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/internal/spec"
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
)

// TestLoRAMemory checks that a training step of an adapter takes the memory that Sizes and the shapes
// of the tensors say, and no more. On a GPU the layer is large, because the driver rounds allocations
// up.
func TestLoRAMemory(t *testing.T) {
	c, tokens := moe.Config{Hidden: 256, Intermediate: 256, NumExperts: 4, TopK: 2, LoRARank: 16, LoRAAlpha: 32}, 512
	if onGPU() {
		c.Hidden, c.Intermediate, c.NumExperts, c.TopK, tokens = 2048, 768, 64, 8, 32768
	}
	dev := testDevice(t)
	l := newLayerInModes(t, dev, c, moe.WithoutDecode(), moe.WithGradients(moe.BF16, false))
	// step runs a training step, and returns the memory that it takes.
	step := func(tokens int) (peak int64) {
		before, _, err := dev.Memory()
		require.NoError(t, err)
		tr, err := trial.New(dev, l, tokens, 1, 6)
		require.NoError(t, err)
		defer tr.Close()
		withBackward(t, tr, moe.BF16)
		require.NoError(t, tr.RunBackward(testContext(t), tr.Back))
		after, _, err := dev.Memory()
		require.NoError(t, err)
		return before - after
	}
	step(16) // the driver also allocates memory for the kernels
	sizes, err := l.Sizes(tokens)
	require.NoError(t, err)
	shapes, gradients := l.Shapes(tokens), l.Config().Gradients(tokens, moe.BF16)
	want := sizes.Workspace + sizes.BackwardWorkspace + sizes.H + sizes.LoraU + sizes.O + sizes.Scores + sizes.ExpertIDs
	want += shapes.X.Bytes() + gradients.DO.Bytes() + gradients.DX.Bytes() + gradients.DScores.Bytes()
	for _, id := range spec.Weights {
		want += shapes.Of(id).Bytes()
	}
	for _, id := range spec.WeightGradients {
		want += gradients.Of(id).Bytes()
	}
	got := step(tokens)
	t.Logf("%d bytes, want %d", got, want)
	require.InEpsilon(t, want, got, 0.01)
}
