package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver/cuda"
	"sonicmoe/driver/open"
	"sonicmoe/examples/internal/command"
	"sonicmoe/internal/drivertest"
	"sonicmoe/internal/reference"
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
	"sonicmoe/moe/checkpoint/safetensors"
)

func TestMain(m *testing.M) { os.Exit(drivertest.Main(m, open.Device)) }

// exit runs the command and returns its exit code.
func exit(args []string, stdout, stderr io.Writer) int {
	return program.Exit(run(context.Background(), args, stdout, stderr), stderr)
}

// run runs the command, which must succeed, and returns the line that it prints.
func (p paths) run(t testing.TB, args ...string) string {
	var stdout, stderr bytes.Buffer
	require.Equal(t, command.Done, exit(p.args(args...), &stdout, &stderr), stderr.String())
	require.Empty(t, stderr.String())
	return stdout.String()
}

// results reads the results of a forward pass from the output file. The file must have count
// tensors.
func (p paths) results(t testing.TB, c moe.Config, tokens, count int) trial.Results {
	f := p.open(t, count)
	n, k := int64(tokens), int64(c.TopK)
	return trial.Results{
		O:         numbers[uint16](t, f, nameO, dtypes[c.Type], n, int64(c.Hidden)),
		Scores:    numbers[float32](t, f, nameScores, "F32", n, k),
		ExpertIDs: numbers[int32](t, f, nameExperts, "I32", n, k),
	}
}

// open opens an output file, which must have a number of tensors.
func (p paths) open(t testing.TB, count int) *safetensors.File {
	f, err := safetensors.Open(t.Context(), p.output)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	require.Len(t, f.Tensors(), count)
	assert.Equal(t, map[string]string{"format": "pt"}, f.Metadata())
	return f
}

// check compares the results of a forward pass with float64. Experts and scores are compared
// with the reference router, whose logits are rounded to their type. o is compared with the
// reference experts, which get the layer's scores.
func (x tensors) check(t testing.TB, r trial.Results) {
	ref, err := reference.NewLayer(x.config, x.router, x.w1, x.w2)
	require.NoError(t, err)
	routing, err := ref.Route(x.x, nil, reference.Rounded)
	require.NoError(t, err)
	assert.Equal(t, routing.ExpertIDs, r.ExpertIDs)
	assert.InDeltaSlice(t, routing.Scores, reference.Widen(r.Scores), 1e-5)
	out, err := ref.Experts(x.x, reference.Widen(r.Scores), r.ExpertIDs, nil, reference.Unrounded)
	require.NoError(t, err)
	report := reference.CompareOf(x.config.Type, r.O, out.O, x.tokens, x.config.Hidden)
	require.NoError(t, report.Check(reference.BoundsOf(x.config.Type, reference.Unrounded)))
}

func TestLayer(t *testing.T) {
	interleaved := small
	interleaved.GateUp = "interleaved"
	half := small
	half.Type, half.Logits = moe.F16, moe.F16
	tests := []struct {
		name     string
		config   moe.Config
		separate bool
		args     []string
	}{
		{"concatenated", small, false, nil},
		{"interleaved", interleaved, false, []string{"-gateup", "interleaved"}},
		{"separate", small, true, nil},
		{"fp16", half, false, nil},
		{"fp16, separate", half, true, nil},
		{"separate, said", small, true, []string{"-gateup", "concatenated"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			x := randomTensors(tt.config, 40, 7)
			p := x.write(t, tt.separate)
			line := p.run(t, append([]string{"-topk", "2", "-device", drivertest.Name()}, tt.args...)...)
			assert.Contains(t, line, "T=40 "+tt.config.String())
			assert.Equal(t, []string{"o.safetensors", "w.safetensors", "x.safetensors"}, p.entries(t))
			x.check(t, p.results(t, tt.config, 40, 3))
		})
	}
}

func TestNoTokens(t *testing.T) {
	p := randomTensors(small, 0, 7).write(t, true)
	require.NoError(t, os.WriteFile(p.output, []byte("old"), 0o666))
	line := p.run(t, "-topk", "3", "-device", drivertest.Name())
	assert.Contains(t, line, "T=0 ")
	c := small
	c.TopK = 3
	assert.Empty(t, p.results(t, c, 0, 3).O)
}

// TestFallback checks that the emulated device is used, with a message, if there is no GPU and
// no flag -device.
func TestFallback(t *testing.T) {
	t.Setenv(cuda.EnvLibrary, "/no/such/libcuda.so")
	p := randomTensors(small, 0, 7).write(t, false)
	var stdout, stderr bytes.Buffer
	require.Equal(t, command.Done, exit(p.args("-topk", "2"), &stdout, &stderr), stderr.String())
	assert.Contains(t, stderr.String(), "no GPU: this is the emulated device")
	assert.Contains(t, stdout.String(), "T=0 ")
}
