package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/examples/internal/command"
	"sonicmoe/internal/drivertest"
	"sonicmoe/moe/checkpoint/safetensors"
)

// contents returns tensors of a file in a form in which they can be written to another file.
func contents(t *testing.T, path string, names ...string) (list []safetensors.Source) {
	f, err := safetensors.Open(t.Context(), path)
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	for _, x := range f.Tensors() {
		for _, name := range names {
			if name != x.Name {
				continue
			}
			section, err := f.Section(name)
			require.NoError(t, err)
			data, err := io.ReadAll(section)
			require.NoError(t, err)
			list = append(list, safetensors.Source{Name: name, DType: x.DType, Shape: x.Shape, Data: bytes.NewReader(data)})
		}
	}
	require.Len(t, list, len(names))
	return list
}

// tensorBytes returns the bytes of a tensor of a file.
func tensorBytes(t *testing.T, path, name string) []byte {
	data, err := io.ReadAll(contents(t, path, name)[0].Data)
	require.NoError(t, err)
	return data
}

// TestRouted runs the experts alone, with the routing that a whole layer chose. The results must
// have the same bits as the layer's results, except for the router's gradients. The weights come
// from one file, or from a model whose router the layer does not support.
func TestRouted(t *testing.T) {
	x := randomTensors(small, 20, 61).withDO(62)
	p := x.write(t, false)
	p.run(t, "-topk", "2", "-device", drivertest.Name())
	want := filepath.Join(t.TempDir(), "whole.safetensors")
	require.NoError(t, os.Rename(p.output, want))
	given := append(contents(t, p.input, nameX, nameDO), contents(t, want, nameScores, nameExperts)...)
	writeFile(t, p.input, given...)

	dir := x.model(t, "phimoe", 0)
	config := strings.NewReplacer("moe_intermediate_size", "intermediate_size", "num_experts\"", "num_local_experts\"")
	text, err := os.ReadFile(filepath.Join(dir, "config.json"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(config.Replace(string(text))), 0o600))
	model := []string{"-model", dir, "-layer", "1", "-input", p.input, "-output", p.output, "-device", drivertest.Name()}

	for name, args := range map[string][]string{"weights": p.args("-topk", "2", "-device", drivertest.Name()), "model": model} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			require.Equal(t, command.Done, exit(args, &stdout, &stderr), stderr.String())
			assert.Contains(t, stdout.String(), "experts alone, routed as the input says")
			assert.Equal(t, name == "model", strings.Contains(stdout.String(), "SparseMixer"))
			f := p.open(t, 5) // the output has no scores, no experts and no gradient of the router
			for _, tensor := range f.Tensors() {
				same := bytes.Equal(tensorBytes(t, want, tensor.Name), tensorBytes(t, p.output, tensor.Name))
				assert.Equal(t, tensor.Name != nameDX, same, tensor.Name)
			}
		})
	}
	for name, c := range map[string]struct {
		input []string
		want  string
	}{
		"the router is another's": {[]string{nameX}, "SparseMixer"},
		"and how to go on":        {[]string{nameX}, "with scores [T, K] F32 and experts [T, K] I32 in addition to x its experts run alone"},
		"half a routing":          {[]string{nameX, nameScores}, `"experts" is missing, the file has`},
	} {
		t.Run(name, func(t *testing.T) {
			var list []safetensors.Source
			for _, of := range c.input {
				from := p.input
				if of == nameScores {
					from = want
				}
				list = append(list, contents(t, from, of)...)
			}
			path := filepath.Join(t.TempDir(), "x.safetensors")
			writeFile(t, path, list...)
			var stdout, stderr bytes.Buffer
			require.Equal(t, command.Failed, exit([]string{"-model", dir, "-layer", "1", "-input", path, "-output", p.output, "-device", "emulated"}, &stdout, &stderr))
			assert.Contains(t, stderr.String(), c.want)
		})
	}
	p.fails(t, `tensor "scores" F32 [20 2] must be F32 [20 3] ([T, K])`, p.args("-topk", "3")...)
}
