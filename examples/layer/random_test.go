package main

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/drivertest"
	"sonicmoe/moe"
)

// randomLayer returns a random valid layer and a number of tokens. A pass takes about the given
// number of FLOPs.
func randomLayer(r *rand.Rand, flops float64, width int) (moe.Config, int) {
	for {
		c := moe.Config{
			Hidden: 64 * (2 + r.IntN(width)), Intermediate: 64 * (1 + r.IntN(width)), NumExperts: 1 + r.IntN(64),
		}
		c.TopK = 1 + r.IntN(min(16, c.NumExperts))
		tokens := r.IntN(600)
		if c.ForwardFLOPs(tokens) <= flops {
			return c, tokens
		}
	}
}

// TestRandomSizes runs layers of random valid sizes on files that PyTorch's safetensors package
// wrote, and compares the results with PyTorch's float64 results. Every other layer has
// gradients. On a GPU there are 30 layers.
func TestRandomSizes(t *testing.T) {
	if testing.Short() {
		t.Skip("too long for -short")
	}
	needPython(t)
	count, flops, width := 2, 5e7, 4
	if drivertest.Name() == "cuda" {
		count, flops, width = 30, 2e11, 32
	}
	r := rand.New(rand.NewPCG(1, 2))
	for i := range count {
		c, tokens := randomLayer(r, flops, width)
		layout := []string{"concatenated", "interleaved", "separate"}[i%3]
		if layout == "interleaved" {
			c.GateUp = "interleaved"
		}
		t.Run(fmt.Sprintf("T=%d %v %s", tokens, c, layout), func(t *testing.T) {
			p := newPaths(t)
			write := []string{"write", "-weights", p.weights, "-input", p.input, "-layout", layout,
				"-tokens", fmt.Sprint(tokens), "-hidden", fmt.Sprint(c.Hidden), "-intermediate", fmt.Sprint(c.Intermediate),
				"-experts", fmt.Sprint(c.NumExperts), "-seed", fmt.Sprint(i)}
			if i%2 == 0 {
				write = append(write, "-backward")
			}
			out, err := script(t, write...)
			require.NoError(t, err, out)
			args := []string{"-topk", fmt.Sprint(c.TopK), "-device", drivertest.Name()}
			if layout == "interleaved" {
				args = append(args, "-gateup", layout)
			}
			p.run(t, args...)
			out, err = p.verify(t, c)
			require.NoError(t, err, out)
			assert.Contains(t, out, fmt.Sprintf("right: %d of %d tokens", tokens, tokens))
		})
	}
}

// TestMutatedFiles checks that planning a job from a damaged file ends soon, with a complete
// job or an error. Long runs try 100,000 files.
func TestMutatedFiles(t *testing.T) {
	if testing.Short() {
		t.Skip("too long for -short")
	}
	count := 5000
	if os.Getenv("SONICMOE_LONG") != "" {
		count = 100_000
	}
	good := randomTensors(small, 40, 5).write(t, false)
	weights, err := os.ReadFile(good.weights)
	require.NoError(t, err)
	const headerBytes = 400 // the bytes that are damaged: the header's length, its JSON, and the first data
	r := rand.New(rand.NewPCG(3, 4))
	p := paths{weights: filepath.Join(t.TempDir(), "W"), input: good.input, output: good.output}
	accepted := 0
	for i := range count {
		file := mutate(r, bytes.Clone(weights), headerBytes)
		require.NoError(t, os.WriteFile(p.weights, file, 0o600))
		start := time.Now()
		o, err := parse(p.args("-topk", "2", "-device", "emulated"), io.Discard)
		require.NoError(t, err)
		j, err := openJob(t.Context(), o)
		require.Less(t, time.Since(start), 5*time.Second, "file %d took too long", i)
		if err != nil {
			require.NotEmpty(t, err.Error())
			continue
		}
		accepted++
		want := j.shapes()
		for _, name := range j.w1Names() {
			tensor, err := j.weights.Tensor(name)
			require.NoError(t, err)
			require.Equal(t, "BF16", tensor.DType)
			require.LessOrEqual(t, tensor.End, int64(len(file)))
		}
		require.Positive(t, want.W1.Bytes())
		require.NoError(t, j.Close())
	}
	t.Logf("%d of %d mutated files were still sound", accepted, count)
	require.Less(t, accepted, count)
}

// mutate changes, cuts or repeats some bytes, mostly of the header.
func mutate(r *rand.Rand, b []byte, header int) []byte {
	for range 1 + r.IntN(3) {
		at := r.IntN(min(header, len(b)))
		switch r.IntN(6) {
		case 0:
			b[at] ^= 1 << r.IntN(8)
		case 1:
			b[at] = byte(r.IntN(256))
		case 2:
			b = b[:r.IntN(len(b)+1)]
		case 3:
			b = append(b, b[:at]...)
		case 4: // insert a character that has a meaning in JSON: a digit, a brace, a quote
			b[at] = "0123456789-{}[]\",:e."[r.IntN(20)]
		case 5: // move a piece
			n := min(r.IntN(16), len(b)-at)
			copy(b[at:], bytes.Clone(b[r.IntN(len(b)-n+1):][:n]))
		}
		if len(b) == 0 {
			return b
		}
	}
	return b
}
