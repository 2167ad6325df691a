// Package golden holds results of the expert blocks of the transformers library, for small
// layers with the settings of published models. golden.py computes them.
package golden

import (
	_ "embed"
	"encoding/binary"
	"encoding/json"
	"math"
	"slices"
	"strings"
)

//go:embed golden.json
var file []byte

// Block holds the inputs and results of one block, forward and backward.
type Block struct {
	// Config is the config.json from which the block was built.
	Config json.RawMessage `json:"config"`
	// IDs [T, K] are the experts of each token, in any order.
	IDs []int32 `json:"ids"`
	// O is the output, [T, d].
	O Float32s `json:"o"`
	// Scores [T, K] are the scores of the experts that IDs lists. They are present only if the
	// block's router is not part of the layer.
	Scores Float32s `json:"scores"`
	// Gradients holds the gradients of Σ do·o by tensor name. The gradients of x [T, d] and of
	// vectors are complete. The gradient of a matrix is stored as its product with the vector
	// Values("vector", columns).
	Gradients map[string]Float32s `json:"gradients"`
}

// Blocks returns the blocks by the names of their models, and the number of tokens of each
// block.
func Blocks() (blocks map[string]Block, tokens int, err error) {
	var f struct {
		Tokens int              `json:"tokens"`
		Blocks map[string]Block `json:"blocks"`
	}
	err = json.Unmarshal(file, &f)
	return f.Blocks, f.Tokens, err
}

// Float32s holds FP32 numbers as little-endian bytes.
type Float32s []byte

// Values decodes the numbers.
func (f Float32s) Values() []float64 {
	out := make([]float64, len(f)/4)
	for i := range out {
		out[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(f[4*i:])))
	}
	return out
}

// names lists the tensors in the order of their seeds. scales holds the largest value of each
// tensor.
var (
	names = strings.Fields(`x do router routerBias selectionBias expertScale w1 w3 w2 b1 b3 b2
		sharedW1 sharedW3 sharedW2 sharedGate vector`)
	scales = []float64{2, 2, 0.5, 1, 0.25, 2, 0.25, 0.25, 0.5, 1, 1, 1, 0.25, 0.25, 0.5, 0.25, 1}
)

// Values returns the first count values of a tensor, or nil if no block has the tensor. The
// blocks were computed from the same values. A value is an integer divided by 128 and by a
// power of two, which every 16-bit type holds exactly.
func Values(name string, count int64) []float64 {
	at := slices.Index(names, name)
	if at < 0 {
		return nil
	}
	out := make([]float64, count)
	for i := range out { // SplitMix64
		z := (uint64(i) + 1 + uint64(at)<<32) * 0x9e3779b97f4a7c15
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		z ^= z >> 31
		out[i] = (float64(z>>56) - 128) / 128 * scales[at]
	}
	return out
}

// Project multiplies a matrix whose rows have the given number of columns by the vector
// Values("vector", columns).
func Project(matrix []float64, columns int) []float64 {
	vector := Values("vector", int64(columns))
	var out []float64
	for i := 0; i < len(matrix); i += columns {
		sum := 0.0
		for j, v := range matrix[i:][:columns] {
			sum += v * vector[j]
		}
		out = append(out, sum)
	}
	return out
}

// Off returns |got - want| / |want|, or infinity if the lengths differ.
func Off(want, got []float64) float64 {
	if len(want) != len(got) || len(want) == 0 {
		return math.Inf(1)
	}
	var diff, norm float64
	for i, v := range want {
		diff, norm = diff+(got[i]-v)*(got[i]-v), norm+v*v
	}
	return math.Sqrt(diff / norm)
}
