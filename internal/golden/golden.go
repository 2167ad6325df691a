// Package golden has what the expert blocks of the transformers package make of
// small layers with the switches of published models: golden.py writes it.
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

// Block is one block, forward and backward.
type Block struct {
	// Config is a config.json.
	Config json.RawMessage `json:"config"`
	// IDs [T, K] are the experts of each token, in no order.
	IDs []int32 `json:"ids"`
	// O is [T, d].
	O Float32s `json:"o"`
	// Scores [T, K] are given where the router is outside the layer.
	Scores Float32s `json:"scores"`
	// Gradients are those of Σ do·o: of x [T, d] and of vectors as they are, of
	// matrices times Values("vector", columns).
	Gradients map[string]Float32s `json:"gradients"`
}

// Blocks are the blocks by their model's name, over so many tokens.
func Blocks() (blocks map[string]Block, tokens int, err error) {
	var f struct {
		Tokens int              `json:"tokens"`
		Blocks map[string]Block `json:"blocks"`
	}
	err = json.Unmarshal(file, &f)
	return f.Blocks, f.Tokens, err
}

// Float32s are little-endian bytes.
type Float32s []byte

// Values are the numbers.
func (f Float32s) Values() []float64 {
	out := make([]float64, len(f)/4)
	for i := range out {
		out[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(f[4*i:])))
	}
	return out
}

// names are the tensors, in the order of their seeds, and scales the largest of
// their values.
var (
	names = strings.Fields(`x do router routerBias selectionBias expertScale w1 w3 w2 b1 b3 b2
		sharedW1 sharedW3 sharedW2 sharedGate vector`)
	scales = []float64{2, 2, 0.5, 1, 0.25, 2, 0.25, 0.25, 0.5, 1, 1, 1, 0.25, 0.25, 0.5, 0.25, 1}
)

// Values are the first values of a tensor, nil of one that no block has. The
// blocks were made of the same: whole numbers over 128 times a power of two,
// which every 16-bit type holds.
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

// Project gives the rows of a matrix of so many columns times the vector.
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

// Off is |got - want| / |want|, infinite where these are of different lengths.
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
