package adapter

import (
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/internal/spec"
	"sonicmoe/moe"
	"sonicmoe/moe/checkpoint/safetensors"
)

// small is the Config of the experts in testdata/adapters.py, without the adapter.
func small() moe.Config { return moe.Config{Hidden: 48, Intermediate: 16, NumExperts: 3, TopK: 2} }

// deltas returns what an adapter adds to W1 and to W2, [E, outputs, inputs] each. With GateUp
// "apart" the rows of W3 follow those of W1.
func deltas(c moe.Config, f Factors) (w1, w2 []float64) {
	scale := float64(spec.LoRAScale(c))
	sum := func(a, b []float32, in, out int) []float64 {
		d := make([]float64, c.NumExperts*out*in)
		for e := range c.NumExperts {
			for o := range out {
				for i := range in {
					for r := range c.LoRARank {
						d[(e*out+o)*in+i] += scale * float64(b[index(c, e, o, r, out, c.LoRARank)]) * float64(a[index(c, e, r, i, c.LoRARank, in)])
					}
				}
			}
		}
		return d
	}
	rows := c.HWidth()
	if f.B3 != nil {
		rows = c.Intermediate
	}
	w1, w2 = sum(f.A1, f.B1, c.Hidden, rows), sum(f.A2, f.B2, c.Intermediate, c.Hidden)
	if f.B3 == nil {
		return w1, w2
	}
	var both []float64
	w3, size := sum(f.A1, f.B3, c.Hidden, rows), rows*c.Hidden
	for e := range c.NumExperts {
		both = append(append(both, w1[e*size:][:size]...), w3[e*size:][:size]...)
	}
	return both, w2
}

// far returns the relative distance of two tensors.
func far(t *testing.T, got, want []float64) float64 {
	require.Len(t, got, len(want))
	var off, all float64
	for i := range want {
		off += (got[i] - want[i]) * (got[i] - want[i])
		all += want[i] * want[i]
	}
	require.NotZero(t, all)
	return math.Sqrt(off / all)
}

// read returns the Config with the adapter of a folder, and the factors of a layer.
func read(t *testing.T, dir string, c moe.Config, layer int) (moe.Config, Factors) {
	f, err := Open(t.Context(), dir)
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	c, err = f.Config(c)
	require.NoError(t, err)
	factors, err := f.Factors(layer, c)
	require.NoError(t, err)
	return c, factors
}

// numbers returns a tensor of a safetensors file.
func numbers(t *testing.T, path, name string) []float64 {
	f, err := safetensors.Open(t.Context(), path)
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	values, _, err := (&File{file: f}).values(name)
	require.NoError(t, err)
	return wide(values)
}

func wide(values []float32) []float64 {
	out := make([]float64, len(values))
	for i, v := range values {
		out[i] = float64(v)
	}
	return out
}

// configs are layers with every order of weights.
func configs() []moe.Config {
	list := make([]moe.Config, 5)
	for i := range list {
		list[i] = small()
		list[i].LoRARank, list[i].LoRAAlpha, list[i].RSLoRA = 8, 12, i%2 == 1
	}
	list[1].GateUp, list[1].InOut = spec.Interleaved, true
	list[2].GateUp = spec.Apart
	list[3].GateUp, list[3].InOut = spec.Apart, true
	list[4].Activation = spec.ReLU2
	return list
}

// random returns random factors of a layer.
func random(c moe.Config, seed uint64) (f Factors) {
	from, shapes := rand.New(rand.NewPCG(seed, 1)), c.Shapes(0)
	for _, id := range tensorIDs {
		if s := shapes.Of(id); !s.IsZero() {
			*f.of(id) = make([]float32, s.Elements())
			for i := range *f.of(id) {
				(*f.of(id))[i] = float32(from.NormFloat64())
			}
		}
	}
	return f
}

// folder returns a folder with an adapter.
func folder(t *testing.T, text string, list ...safetensors.Source) string {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, settingsFile), []byte(text), 0o600))
	file, err := os.Create(filepath.Join(dir, tensorsFile))
	require.NoError(t, err)
	require.NoError(t, safetensors.Write(file, nil, list...))
	require.NoError(t, file.Close())
	return dir
}
