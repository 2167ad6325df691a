package reference_test

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/moe/checkpoint"
	"sonicmoe/moe/reference"
	"sonicmoe/moe/spec"
)

// golden is one block of transformers: see testdata/golden.py.
type golden struct {
	Config json.RawMessage `json:"config"`
	IDs    []int32         `json:"ids"`
	O      float32s        `json:"o"`
	// Scores are given where the router is outside the layer.
	Scores    float32s            `json:"scores"`
	Gradients map[string]float32s `json:"gradients"`
}

// float32s are little-endian bytes.
type float32s []byte

func (f float32s) values() []float64 {
	out := make([]float64, len(f)/4)
	for i := range out {
		out[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(f[4*i:])))
	}
	return out
}

// goldenValues is the formula that both sides make tensors of.
func goldenValues(name string, count int64) []float64 {
	names := []string{"x", "do", "router", "routerBias", "selectionBias", "expertScale", "w1", "w3", "w2", "b1", "b3", "b2",
		"sharedW1", "sharedW3", "sharedW2", "sharedGate", "vector"}
	scales := []float64{2, 2, 0.5, 1, 0.25, 2, 0.25, 0.25, 0.5, 1, 1, 1, 0.25, 0.25, 0.5, 0.25, 1}
	at := slices.Index(names, name)
	out := make([]float64, count)
	for i := range out {
		z := (uint64(i) + 1 + uint64(at)<<32) * 0x9e3779b97f4a7c15
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		z ^= z >> 31
		out[i] = (float64(z>>56) - 128) / 128 * scales[at]
	}
	return out
}

// The blocks of transformers, with every switch as the models' own config.json
// sets them: config.json to Config, choice, output and all gradients.
func TestTransformers(t *testing.T) {
	data, err := os.ReadFile("testdata/golden.json")
	require.NoError(t, err)
	var file struct {
		Tokens int               `json:"tokens"`
		Blocks map[string]golden `json:"blocks"`
	}
	require.NoError(t, json.Unmarshal(data, &file))
	require.Len(t, file.Blocks, 23)
	for name, g := range file.Blocks {
		t.Run(name, func(t *testing.T) { g.check(t, file.Tokens) })
	}
}

func (g golden) check(t *testing.T, tokens int) {
	model, err := checkpoint.Read(g.Config)
	require.NoError(t, err)
	require.Empty(t, model.Unknown)
	c := model.Config
	w := fillTensors(c, tokens, goldenValues)
	layer, err := reference.New(c, w.Weights)
	require.NoError(t, err)
	in := reference.Backward{X: w.x, DO: w.do, Scores: g.Scores.values(), ExpertIDs: g.IDs}
	if g.Scores == nil {
		routing, err := layer.Route(w.x, nil, reference.Unrounded)
		require.NoError(t, err)
		for i := range tokens {
			require.ElementsMatch(t, g.IDs[i*c.TopK:][:c.TopK], routing.ExpertIDs[i*c.TopK:][:c.TopK], "token %d", i)
		}
		in.Scores, in.ExpertIDs, in.Routed = routing.Scores, routing.ExpertIDs, true
	}
	out, err := layer.Experts(w.x, in.Scores, in.ExpertIDs, nil, reference.Unrounded)
	require.NoError(t, err)
	equal(t, "O", g.O.values(), out.O)

	gradients := everyGradient(t, layer, in, reference.Unrounded)
	for name, want := range g.Gradients {
		got, ok := gradients[name]
		require.True(t, ok, name)
		if cols := lastDim(c, name); cols > 1 {
			got = project(got, cols)
		}
		equal(t, name, want.values(), got)
		delete(gradients, name)
	}
	delete(gradients, "scores")
	require.Empty(t, gradients, "gradients that the block does not have")
}

// equal holds values against those of a block that computes in float64, but
// rounds its router's numbers to float32.
func equal(t *testing.T, what string, want, got []float64) {
	t.Helper()
	require.Len(t, got, len(want), what)
	var diff, norm float64
	for i, v := range want {
		diff, norm = diff+(got[i]-v)*(got[i]-v), norm+v*v
	}
	require.Positive(t, norm, what)
	require.LessOrEqual(t, math.Sqrt(diff/norm), 5e-6, what)
}

// lastDim is the width of the rows of a matrix whose gradient is stored times a
// vector, 1 of what is stored as it is.
func lastDim(c spec.Config, name string) int {
	s := c.Shapes(0)
	shape, ok := map[string]spec.Shape{"router": s.Router, "w1": s.W1, "w3": s.W3, "w2": s.W2, "b1": s.B1, "b2": s.B2,
		"sharedW1": s.SharedW1, "sharedW3": s.SharedW3, "sharedW2": s.SharedW2}[name]
	if !ok {
		return 1
	}
	return int(shape.Dims[shape.Rank-1])
}

// project gives the rows of a matrix times the vector.
func project(v []float64, cols int) []float64 {
	vector := goldenValues("vector", int64(cols))
	var out []float64
	for i := 0; i < len(v); i += cols {
		out = append(out, inner(v[i:i+cols], vector))
	}
	return out
}
