package main

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver/cuda"
	"sonicmoe/examples/internal/command"
	"sonicmoe/moe/checkpoint/safetensors"
)

func TestUsage(t *testing.T) {
	p := newPaths(t)
	tests := []struct {
		name string
		args []string
		want string
	}{
		{"nothing", nil, "-weights is missing, must be the file of the weights"},
		{"no input", []string{"-weights", "w"}, "-input is missing"},
		{"no output", []string{"-weights", "w", "-input", "x"}, "-output is missing"},
		{"no K", p.args(), "-topk is missing, must be the number of experts"},
		{"K zero", p.args("-topk", "0"), "-topk is 0, must be at least 1"},
		{"K negative", p.args("-topk", "-2"), "-topk is -2, must be at least 1"},
		{"K no number", p.args("-topk", "two"), `invalid value "two" for flag -topk`},
		{"gateup", p.args("-topk", "2", "-gateup", "mixed"), `-gateup is "mixed", must be concatenated or interleaved`},
		{"gateup case", p.args("-topk", "2", "-gateup", "Interleaved"), `-gateup is "Interleaved"`},
		{"device empty", p.args("-topk", "2", "-device", ""), "-device is empty, must be one of cuda"},
		{"unknown flag", p.args("-topk", "2", "-experts", "8"), "not defined: -experts"},
		{"argument", p.args("-topk", "2", "w.safetensors"), `"w.safetensors" is no flag`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			assert.Equal(t, command.Misuse, exit(tt.args, &stdout, &stderr))
			first, rest, _ := strings.Cut(stderr.String(), "\n")
			assert.True(t, strings.HasPrefix(first, "layer: "), first)
			assert.Contains(t, first, tt.want)
			assert.Equal(t, "layer -h lists the flags\n", rest)
			assert.Empty(t, stdout.String())
			assert.Empty(t, p.entries(t))
		})
	}
}

func TestHelp(t *testing.T) {
	var stdout, stderr bytes.Buffer
	assert.Equal(t, command.Done, exit([]string{"-h"}, &stdout, &stderr))
	assert.True(t, strings.HasPrefix(stdout.String(), "layer runs a Mixture-of-Experts layer, "), stdout.String())
	for _, name := range []string{"weights", "model", "layer", "input", "output", "topk", "gateup", "device", "cache"} {
		assert.Contains(t, stdout.String(), "\n  -"+name+" ")
	}
	assert.Empty(t, stderr.String())
}

// empty returns a tensor of zeros for a file.
func empty(name string, d string, shape ...int) safetensors.Source {
	t := fileTensor(name, d, nil, shape...)
	n, _ := safetensors.Tensor{DType: d, Shape: t.Shape}.Bytes()
	t.Data = bytes.NewReader(make([]byte, n))
	return t
}

// TestFileErrors checks the error for each mistake in otherwise correct files. WEIGHTS and
// INPUT stand for the paths of the files.
func TestFileErrors(t *testing.T) {
	const bf, f32 = "BF16", "F32"
	tests := []struct {
		name    string
		weights map[string]safetensors.Source // weight tensors to replace; the zero Source removes one
		input   []safetensors.Source          // input tensors; nil means valid ones
		args    []string                      // flags in addition to -topk 2
		want    string
	}{
		{name: "no router", weights: map[string]safetensors.Source{nameRouter: {}},
			want: `WEIGHTS: tensor "router.weight" is missing, the file has "experts.down", "experts.gate_up"`},
		{name: "no gate_up", weights: map[string]safetensors.Source{nameGateUp: {}}, want: `tensor "experts.gate_up" is missing`},
		{name: "no down", weights: map[string]safetensors.Source{nameDown: {}}, want: `tensor "experts.down" is missing`},
		{name: "gate without up", weights: map[string]safetensors.Source{nameGateUp: {}, nameGate: empty(nameGate, bf, 8, 64, 128)},
			want: `WEIGHTS: tensor "experts.up" is missing`},
		{name: "up without gate", weights: map[string]safetensors.Source{nameGateUp: {}, nameUp: empty(nameUp, bf, 8, 64, 128)},
			want: `tensor "experts.gate" is missing`},
		{name: "gate_up and gate", weights: map[string]safetensors.Source{nameGate: empty(nameGate, bf, 8, 64, 128)},
			want: `tensor "experts.gate_up" BF16 [8 128 128] is there together with experts.gate or experts.up, must be there without them`},
		{name: "a bias", weights: map[string]safetensors.Source{"router.bias": empty("router.bias", bf, 8)},
			want: `WEIGHTS: tensor "router.bias" BF16 [8] is not part of this layer, whose tensors are router.weight, experts.gate_up, experts.down`},
		{name: "router F32", weights: map[string]safetensors.Source{nameRouter: empty(nameRouter, f32, 8, 128)},
			want: `tensor "router.weight" F32 [8 128] must be BF16 [E, d]`},
		{name: "router of rank 1", weights: map[string]safetensors.Source{nameRouter: empty(nameRouter, bf, 128)},
			want: `tensor "router.weight" BF16 [128] must be BF16 [E, d]`},
		{name: "router of fewer experts", weights: map[string]safetensors.Source{nameRouter: empty(nameRouter, bf, 7, 128)},
			want: `tensor "experts.gate_up" BF16 [8 128 128] must be BF16 [7 128 128] ([E, 2n, d], E and d as in router.weight)`},
		{name: "gate_up F16", weights: map[string]safetensors.Source{nameGateUp: empty(nameGateUp, "F16", 8, 128, 128)},
			want: `tensor "experts.gate_up" F16 [8 128 128] must be BF16 [E, 2n, d]`},
		{name: "gate_up of another d", weights: map[string]safetensors.Source{nameGateUp: empty(nameGateUp, bf, 8, 128, 192)},
			want: `tensor "experts.gate_up" BF16 [8 128 192] must be BF16 [8 128 128]`},
		{name: "gate_up odd", weights: map[string]safetensors.Source{nameGateUp: empty(nameGateUp, bf, 8, 129, 128)},
			want: `tensor "experts.gate_up" BF16 [8 129 128] has 129 rows for each expert, must have an even number, 2n`},
		{name: "gate and up differ", weights: map[string]safetensors.Source{nameGateUp: {},
			nameGate: empty(nameGate, bf, 8, 64, 128), nameUp: empty(nameUp, bf, 8, 128, 128)},
			want: `tensor "experts.up" BF16 [8 128 128] must be BF16 [8 64 128] ([E, n, d] as experts.gate)`},
		{name: "separate and interleaved", args: []string{"-gateup", "interleaved"}, weights: map[string]safetensors.Source{nameGateUp: {},
			nameGate: empty(nameGate, bf, 8, 64, 128), nameUp: empty(nameUp, bf, 8, 64, 128)},
			want: `tensor "experts.gate" BF16 [8 64 128] is separate from experts.up, but -gateup is interleaved, must be left out or concatenated`},
		{name: "down turned", weights: map[string]safetensors.Source{nameDown: empty(nameDown, bf, 8, 64, 128)},
			want: `tensor "experts.down" BF16 [8 64 128] must be BF16 [8 128 64] ([E, d, n])`},
		{name: "down F32", weights: map[string]safetensors.Source{nameDown: empty(nameDown, f32, 8, 128, 64)},
			want: `tensor "experts.down" F32 [8 128 64] must be BF16 [E, d, n]`},
		{name: "d too small", weights: map[string]safetensors.Source{nameRouter: empty(nameRouter, bf, 8, 8),
			nameGateUp: empty(nameGateUp, bf, 8, 128, 8), nameDown: empty(nameDown, bf, 8, 8, 64)},
			input: []safetensors.Source{empty(nameX, bf, 4, 8)},
			want:  `tensor "router.weight" BF16 [8 8] has d = 8, must be a multiple of 16, at least 16`},
		{name: "n no multiple", weights: map[string]safetensors.Source{nameGateUp: empty(nameGateUp, bf, 8, 80, 128), nameDown: empty(nameDown, bf, 8, 128, 40)},
			want: `tensor "experts.down" BF16 [8 128 40] is for n = 40 (by the rows of gate and up), must be a multiple of 16`},
		{name: "no experts", weights: map[string]safetensors.Source{nameRouter: empty(nameRouter, bf, 0, 128),
			nameGateUp: empty(nameGateUp, bf, 0, 128, 128), nameDown: empty(nameDown, bf, 0, 128, 64)},
			want: `tensor "router.weight" BF16 [0 128] has E = 0, must be 1 to 1024`},
		{name: "K over E", args: []string{"-topk", "9"}, want: `tensor "router.weight" BF16 [8 128] has E = 8 experts, and -topk is 9, must be 1 to 8`},
		{name: "no x", input: []safetensors.Source{empty("X", bf, 4, 128)}, want: `INPUT: tensor "x" is missing, the file has "X"`},
		{name: "more than x", input: []safetensors.Source{empty("x", bf, 4, 128), empty("mask", "BOOL", 4)},
			want: `INPUT: tensor "mask" BOOL [4] is not part of this layer`},
		{name: "x F32", input: []safetensors.Source{empty("x", f32, 4, 128)}, want: `INPUT: tensor "x" F32 [4 128] must be BF16 [T, d]`},
		{name: "x with a batch", input: []safetensors.Source{empty("x", bf, 2, 4, 128)}, want: `tensor "x" BF16 [2 4 128] must be BF16 [T, d]`},
		{name: "x of another d", input: []safetensors.Source{empty("x", bf, 4, 256)},
			want: `INPUT: tensor "x" BF16 [4 256] must be BF16 [4 128] ([T, d], d as in router.weight)`},
		{name: "do without x", input: []safetensors.Source{empty("do", bf, 4, 128)}, want: `INPUT: tensor "x" is missing, the file has "do"`},
		{name: "more than do", input: []safetensors.Source{empty("x", bf, 4, 128), empty("do", bf, 4, 128), empty("o", bf, 4, 128)},
			want: `INPUT: tensor "o" BF16 [4 128] is not part of this layer, whose tensors are x, do`},
		{name: "do F32", input: []safetensors.Source{empty("x", bf, 4, 128), empty("do", f32, 4, 128)},
			want: `INPUT: tensor "do" F32 [4 128] must be BF16 [T, d] as x`},
		{name: "do of other tokens", input: []safetensors.Source{empty("x", bf, 4, 128), empty("do", bf, 5, 128)},
			want: `INPUT: tensor "do" BF16 [5 128] must be BF16 [4 128] ([T, d] as x)`},
		{name: "empty file", input: []safetensors.Source{}, want: `INPUT: tensor "x" is missing, the file has none`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := newPaths(t)
			list := map[string]safetensors.Source{
				nameRouter: empty(nameRouter, bf, 8, 128), nameGateUp: empty(nameGateUp, bf, 8, 128, 128), nameDown: empty(nameDown, bf, 8, 128, 64),
			}
			for name, s := range tt.weights {
				list[name] = s
			}
			var weights []safetensors.Source
			for _, name := range []string{nameDown, nameGateUp, nameRouter, nameGate, nameUp, "router.bias"} {
				if s := list[name]; s.Name != "" {
					weights = append(weights, s)
				}
			}
			writeFile(t, p.weights, weights...)
			if tt.input == nil {
				tt.input = []safetensors.Source{empty(nameX, bf, 4, 128)}
			}
			writeFile(t, p.input, tt.input...)
			p.fails(t, strings.NewReplacer("WEIGHTS", p.weights, "INPUT", p.input).Replace(tt.want),
				p.args(append([]string{"-topk", "2"}, tt.args...)...)...)
		})
	}
}

// fails runs a command. It must end with one line on stderr that contains want, and without a
// new file.
func (p paths) fails(t *testing.T, want string, args ...string) {
	t.Helper()
	before := p.entries(t)
	var stdout, stderr bytes.Buffer
	assert.Equal(t, command.Failed, exit(args, &stdout, &stderr))
	assert.Contains(t, stderr.String(), want)
	assert.True(t, strings.HasPrefix(stderr.String(), "layer: "), stderr.String())
	assert.Equal(t, 1, strings.Count(stderr.String(), "\n"), stderr.String())
	assert.Empty(t, stdout.String())
	assert.Equal(t, before, p.entries(t))
}

func TestPathErrors(t *testing.T) {
	p := randomTensors(small, 1, 1).write(t, false)
	absent := filepath.Join(p.dir, "absent")
	damaged := filepath.Join(p.dir, "damaged")
	require.NoError(t, os.WriteFile(damaged, []byte("not safetensors at all"), 0o666))
	index := filepath.Join(p.dir, "model.safetensors.index.json")
	require.NoError(t, os.WriteFile(index, []byte(`{"metadata": {"total_size": 1}, "weight_map": {"a": "b.safetensors"}}`), 0o666))
	torch := filepath.Join(p.dir, "w.pt")
	require.NoError(t, os.WriteFile(torch, []byte("PK\x03\x04 and more of a zip"), 0o666))
	truncated := filepath.Join(p.dir, "truncated")
	whole, err := os.ReadFile(p.weights)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(truncated, whole[:len(whole)-1], 0o666))
	other := func(weights, input, output string) []string {
		return []string{"-weights", weights, "-input", input, "-output", output, "-topk", "2", "-cache", "off"}
	}
	p.fails(t, "weights: open "+absent, other(absent, p.input, p.output)...)
	p.fails(t, "input: open "+absent, other(p.weights, absent, p.output)...)
	p.fails(t, "weights: "+damaged+": safetensors: header", other(damaged, p.input, p.output)...)
	p.fails(t, "weights: "+index+": safetensors: header: starts as JSON, such as the index of a sharded model, does", other(index, p.input, p.output)...)
	p.fails(t, "weights: "+torch+": safetensors: header: starts as a file of torch.save", other(torch, p.input, p.output)...)
	p.fails(t, "weights: "+truncated+": safetensors: tensor", other(truncated, p.input, p.output)...)
	p.fails(t, "no such file or directory", other(p.weights, p.input, filepath.Join(absent, "o"))...)
	p.fails(t, "output: "+p.dir+" is no regular file", other(p.weights, p.input, p.dir)...)
	link := filepath.Join(p.dir, "link")
	require.NoError(t, os.Symlink(p.input, link))
	p.fails(t, "is the input "+p.input+", must be another file", other(p.weights, p.input, link)...)
}

// TestNoGPU checks that -device cuda is an error without a GPU, because the emulated device
// must not replace a GPU that was named.
func TestNoGPU(t *testing.T) {
	t.Setenv(cuda.EnvLibrary, "/no/such/libcuda.so")
	p := randomTensors(small, 1, 1).write(t, false)
	require.NoError(t, os.WriteFile(p.output, []byte("old"), 0o666))
	p.fails(t, "-device cuda: open GPU 0: ", p.args("-topk", "2", "-device", "cuda")...)
	old, err := os.ReadFile(p.output)
	require.NoError(t, err)
	assert.Equal(t, "old", string(old))
}

func TestUnknownDevice(t *testing.T) {
	p := randomTensors(small, 1, 1).write(t, false)
	var stdout, stderr bytes.Buffer
	assert.Equal(t, command.Misuse, exit(p.args("-topk", "2", "-device", "gpu"), &stdout, &stderr))
	assert.Contains(t, stderr.String(), `-device gpu: open device: no device is named "gpu", must be one of cuda, cuda:N`)
	assert.Len(t, p.entries(t), 2)
}

// header is a file of any size that begins with the given header and continues with zeros.
type header struct{ text []byte }

func (h header) ReadAt(p []byte, off int64) (int, error) {
	clear(p)
	if off < int64(len(h.text)) {
		copy(p, h.text[off:])
	}
	return len(p), nil
}

// TestHugeSizes checks that sizes that no machine could hold are refused after reading only the
// header.
func TestHugeSizes(t *testing.T) {
	open := func(text string, data int64) source {
		b := binary.LittleEndian.AppendUint64(nil, uint64(len(text)))
		f, err := safetensors.New(header{append(b, text...)}, int64(len(b)+len(text))+data)
		require.NoError(t, err)
		return source{path: "file", File: f}
	}
	weights := open(`{"router.weight":{"dtype":"BF16","shape":[8,128],"data_offsets":[0,2048]},
		"experts.gate_up":{"dtype":"BF16","shape":[8,128,128],"data_offsets":[2048,264192]},
		"experts.down":{"dtype":"BF16","shape":[8,128,64],"data_offsets":[264192,395264]}}`, 395264)
	input := open(`{"x":{"dtype":"BF16","shape":[1073741824,128],"data_offsets":[0,274877906944]}}`, 274877906944)
	j := job{weights: weights, input: input}
	assert.EqualError(t, j.plan(options{topK: 2}), `file: tensor "x" BF16 [1073741824 128] has T = 1073741824, must be at most 1073741823 with -topk 2`)
	require.NoError(t, j.plan(options{topK: 1}))
	assert.Equal(t, 1<<30, j.tokens)

	wide := open(`{"router.weight":{"dtype":"BF16","shape":[1,4294967424],"data_offsets":[0,8589934848]},
		"experts.gate_up":{"dtype":"BF16","shape":[1,2,4294967424],"data_offsets":[8589934848,25769804544]},
		"experts.down":{"dtype":"BF16","shape":[1,4294967424,1],"data_offsets":[25769804544,34359739392]}}`, 34359739392)
	j = job{weights: wide, input: input}
	assert.ErrorContains(t, j.plan(options{topK: 1}), "has d = 4294967424, must be ")
}
