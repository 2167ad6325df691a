package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"sonicmoe/internal/reference"
	"sonicmoe/moe"
	"sonicmoe/moe/checkpoint/safetensors"
)

// small is the configuration of the layer in most tests.
var small = moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 8, TopK: 2}

// weightScale makes small layers' logits and outputs of order 1.
const weightScale = 0.12

// tensors holds the inputs of a layer as bits of its type. W1 is in the order that the config
// names.
type tensors struct {
	config            moe.Config
	tokens            int
	x, router, w1, w2 []uint16
	do                []uint16 // nil if there is no backward pass
}

func randomTensors(c moe.Config, tokens int, seed uint64) tensors {
	s := c.Shapes(tokens)
	weight := func(seed uint64, n int64) []uint16 { return reference.NewNormalOf(c.Type, seed, weightScale).Values(n) }
	return tensors{
		config: c, tokens: tokens,
		x:      reference.NewNormalOf(c.Type, seed, reference.ScaleX).Values(s.X.Elements()),
		router: weight(seed+1, s.Router.Elements()),
		w1:     weight(seed+2, s.W1.Elements()),
		w2:     weight(seed+3, s.W2.Elements()),
	}
}

// withDO adds a random gradient of the output to the tensors.
func (x tensors) withDO(seed uint64) tensors {
	x.do = reference.NewNormalOf(x.config.Type, seed, reference.ScaleOutput).Values(int64(len(x.x)))
	return x
}

// bytesOf views numbers as bytes.
func bytesOf[E uint16 | int32 | float32](s []E) []byte {
	if len(s) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&s[0])), len(s)*int(unsafe.Sizeof(s[0])))
}

// numbers reads a tensor of a file and checks its type and shape.
func numbers[E uint16 | int32 | float32](t testing.TB, f *safetensors.File, name string, d string, shape ...int64) []E {
	tensor, err := f.Tensor(name)
	require.NoError(t, err)
	require.Equal(t, d, tensor.DType, name)
	require.Equal(t, shape, tensor.Shape, name)
	var e E
	list := make([]E, (tensor.End-tensor.Begin)/int64(unsafe.Sizeof(e)))
	_, err = f.ReadAt(name, bytesOf(list), 0)
	require.NoError(t, err)
	return list
}

// of returns a tensor to write to a file. Its element type is the layer's.
func (x tensors) of(name string, bits []uint16, shape ...int) safetensors.Source {
	return fileTensor(name, dtypes[x.config.Type], bytes.NewReader(bytesOf(bits)), shape...)
}

// weights returns the tensors of a weights file. separate reports whether gate and up are two
// tensors.
func (x tensors) weights(separate bool) []safetensors.Source {
	c := x.config
	list := []safetensors.Source{
		x.of(nameRouter, x.router, c.NumExperts, c.Hidden),
		x.of(nameDown, x.w2, c.NumExperts, c.Hidden, c.Intermediate),
	}
	if !separate {
		return append(list, x.of(nameGateUp, x.w1, c.NumExperts, 2*c.Intermediate, c.Hidden))
	}
	var gate, up []uint16
	half := c.Intermediate * c.Hidden
	for e := range c.NumExperts {
		gate = append(gate, x.w1[2*e*half:][:half]...)
		up = append(up, x.w1[(2*e+1)*half:][:half]...)
	}
	return append(list, x.of(nameGate, gate, c.NumExperts, c.Intermediate, c.Hidden), x.of(nameUp, up, c.NumExperts, c.Intermediate, c.Hidden))
}

func writeFile(t testing.TB, path string, list ...safetensors.Source) {
	var b bytes.Buffer
	require.NoError(t, safetensors.Write(&b, nil, list...))
	require.NoError(t, os.WriteFile(path, b.Bytes(), 0o666))
}

// paths holds the paths of the files of a run, which are in a directory of their own.
type paths struct{ dir, weights, input, output string }

func newPaths(t testing.TB) paths {
	dir := t.TempDir()
	return paths{dir, filepath.Join(dir, "w.safetensors"), filepath.Join(dir, "x.safetensors"), filepath.Join(dir, "o.safetensors")}
}

// write puts the tensors into files.
func (x tensors) write(t testing.TB, separate bool) paths {
	p := newPaths(t)
	writeFile(t, p.weights, x.weights(separate)...)
	list := []safetensors.Source{x.of(nameX, x.x, x.tokens, x.config.Hidden)}
	if x.do != nil {
		list = append(list, x.of(nameDO, x.do, x.tokens, x.config.Hidden))
	}
	writeFile(t, p.input, list...)
	return p
}

// args returns the flags for these files, without a cache.
func (p paths) args(more ...string) []string {
	return append([]string{"-weights", p.weights, "-input", p.input, "-output", p.output, "-cache", "off"}, more...)
}

// entries returns the names of the files in the directory.
func (p paths) entries(t testing.TB) []string {
	list, err := os.ReadDir(p.dir)
	require.NoError(t, err)
	var names []string
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}
