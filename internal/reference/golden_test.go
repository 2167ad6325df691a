package reference_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/internal/golden"
	"sonicmoe/internal/reference"
	"sonicmoe/internal/spec"
	"sonicmoe/moe/checkpoint"
)

// TestTransformers checks that the reference agrees with the MoE blocks of the transformers
// library, configured by each model's config.json, in the Config, the chosen experts, the
// output and all gradients.
func TestTransformers(t *testing.T) {
	blocks, tokens, err := golden.Blocks()
	require.NoError(t, err)
	require.Len(t, blocks, 23)
	for name, b := range blocks {
		t.Run(name, func(t *testing.T) { checkBlock(t, b, tokens) })
	}
}

func checkBlock(t *testing.T, b golden.Block, tokens int) {
	// The blocks compute in float64, but round the router's results to float32.
	const bound = 5e-6
	model, err := checkpoint.Read(b.Config)
	require.NoError(t, err)
	require.Empty(t, model.Unknown)
	c := model.Config
	w := fillTensors(c, tokens, golden.Values)
	layer, err := reference.New(c, w.Weights)
	require.NoError(t, err)
	in := reference.Backward{X: w.x, DO: w.do, Scores: b.Scores.Values(), ExpertIDs: b.IDs}
	if b.Scores == nil {
		routing, err := layer.Route(w.x, nil, reference.Unrounded)
		require.NoError(t, err)
		for i := range tokens {
			require.ElementsMatch(t, b.IDs[i*c.TopK:][:c.TopK], routing.ExpertIDs[i*c.TopK:][:c.TopK], "token %d", i)
		}
		in.Scores, in.ExpertIDs, in.Routed = routing.Scores, routing.ExpertIDs, true
	}
	out, err := layer.Experts(w.x, in.Scores, in.ExpertIDs, nil, reference.Unrounded)
	require.NoError(t, err)
	require.LessOrEqual(t, golden.Off(b.O.Values(), out.O), bound, "O")

	gradients := everyGradient(t, layer, in, reference.Unrounded)
	for name, want := range b.Gradients {
		got, ok := gradients[name]
		require.True(t, ok, name)
		if columns := matrixColumns(c, name); columns > 0 {
			got = golden.Project(got, columns)
		}
		require.LessOrEqual(t, golden.Off(want.Values(), got), bound, name)
		delete(gradients, name)
	}
	require.Empty(t, gradients, "gradients that the block does not have")
}

// matrixColumns returns the width of a matrix's rows, or 0 if the tensor is no matrix.
func matrixColumns(c spec.Config, name string) int {
	s := c.Shapes(0)
	shape := map[string]spec.Shape{"router": s.Router, "w1": s.W1, "w3": s.W3, "w2": s.W2, "b1": s.B1, "b2": s.B2,
		"sharedW1": s.SharedW1, "sharedW3": s.SharedW3, "sharedW2": s.SharedW2}[name]
	if shape.IsZero() {
		return 0
	}
	return int(shape.Dims[shape.Rank-1])
}
