package safetensors_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/outside"
	"sonicmoe/moe/checkpoint/safetensors"
)

func layerSources() []safetensors.Source {
	count := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(i * 7)
		}
		return b
	}
	return []safetensors.Source{
		source("flags", "BOOL", []int64{3}, []byte{1, 0, 1}),
		source("experts.w1", "BF16", []int64{2, 4, 3}, count(48)),
		source("scores", "F32", []int64{2}, count(8)),
		source("<été>\n\"quoted\"", "I32", nil, count(4)),
		source("none", "F32", []int64{0, 5}, nil),
	}
}

func TestWriteThenRead(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, safetensors.Write(&b, map[string]string{"format": "pt", "note": "a < b"}, layerSources()...))
	assert.Zero(t, (8+binary.LittleEndian.Uint64(b.Bytes()))%8, "data is aligned")
	f, err := read(b.Bytes())
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"format": "pt", "note": "a < b"}, f.Metadata())
	require.Len(t, f.Tensors(), 5)
	for _, s := range layerSources() {
		want, err := io.ReadAll(s.Data)
		require.NoError(t, err)
		got, err := f.Tensor(s.Name)
		require.NoError(t, err)
		assert.Equal(t, s.DType, got.DType)
		assert.Equal(t, append([]int64{}, s.Shape...), got.Shape)
		buf := make([]byte, len(want))
		_, err = f.ReadAt(s.Name, buf, 0)
		require.NoError(t, err)
		assert.Equal(t, want, buf)
		size, err := safetensors.Tensor{DType: s.DType}.Bytes()
		require.NoError(t, err)
		assert.Zero(t, got.Begin%size, "%s is not aligned", s.Name)
	}
	var again bytes.Buffer
	require.NoError(t, safetensors.Write(&again, map[string]string{"note": "a < b", "format": "pt"}, layerSources()...))
	assert.Equal(t, b.Bytes(), again.Bytes(), "equal input, equal bytes")
}

func TestWriteNothing(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, safetensors.Write(&b, nil))
	f, err := read(b.Bytes())
	require.NoError(t, err)
	assert.Empty(t, f.Tensors())
	assert.Nil(t, f.Metadata())
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("disk is full") }
func (failing) Read([]byte) (int, error)  { return 0, errors.New("cable is out") }

func TestWriteRefuses(t *testing.T) {
	good := source("a", "U8", []int64{2}, []byte{1, 2})
	tests := []struct {
		name    string
		sources []safetensors.Source
		want    string
	}{
		{"same name", []safetensors.Source{good, good}, `tensor "a": the name is taken`},
		{"metadata's name", []safetensors.Source{source("__metadata__", "U8", nil, []byte{1})}, "the name is taken"},
		{"name not UTF-8", []safetensors.Source{source("\xff", "U8", nil, []byte{1})}, "the name is not UTF-8"},
		{"dtype", []safetensors.Source{source("a", "", nil, nil)}, `dtype "" is unknown`},
		{"shape", []safetensors.Source{source("a", "U8", []int64{-1}, nil)}, "has a negative extent"},
		{"short", []safetensors.Source{source("a", "U8", []int64{3}, []byte{1, 2})}, "Data ended after 2 bytes, must give 3"},
		{"long", []safetensors.Source{source("a", "U8", []int64{1}, []byte{1, 2})}, "Data gives more than its 1 bytes"},
		{"nil", []safetensors.Source{{Name: "a", DType: "U8", Shape: []int64{1}}}, "Data is nil, must give 1 bytes"},
		{"failing", []safetensors.Source{{Name: "a", DType: "U8", Shape: []int64{1}, Data: failing{}}}, "cable is out"},
		{"too large", []safetensors.Source{source("a", "U8", []int64{1 << 59}, nil), source("b", "F64", []int64{1 << 56}, nil),
			source("c", "F64", []int64{1 << 56}, nil)}, "Data ended after 0 bytes"},
	}
	for _, tt := range tests {
		err := safetensors.Write(io.Discard, nil, tt.sources...)
		require.ErrorContains(t, err, tt.want, tt.name)
	}
	require.ErrorContains(t, safetensors.Write(failing{}, nil, good), "disk is full")
	require.ErrorContains(t, safetensors.Write(io.Discard, map[string]string{"k": "\xff"}), "is not UTF-8")
}

// python runs a script that uses the reference implementation. It skips the test if Python or the
// implementation is missing.
func python(t *testing.T, script string, args ...string) string {
	t.Helper()
	out, err := exec.Command(outside.Python(t, "numpy", "safetensors"), append([]string{"-c", script}, args...)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}

func TestPythonReadsOurs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ours.safetensors")
	w, err := os.Create(path)
	require.NoError(t, err)
	require.NoError(t, safetensors.Write(w, map[string]string{"format": "pt"}, layerSources()...))
	require.NoError(t, w.Close())
	out := python(t, `
import sys, safetensors
for name, t in sorted(safetensors.deserialize(open(sys.argv[1], "rb").read())):
    print(ascii(name), t["dtype"], t["shape"], bytes(t["data"]).hex())
with safetensors.safe_open(sys.argv[1], "np") as f:
    print(f.metadata())
`, path)
	assert.Contains(t, out, "'experts.w1' BF16 [2, 4, 3] 00070e15")
	assert.Contains(t, out, "'flags' BOOL [3] 010001")
	assert.Contains(t, out, "'scores' F32 [2] 00070e151c232a31")
	assert.Contains(t, out, `'<\xe9t\xe9>\n"quoted"' I32 [] 00070e15`)
	assert.Contains(t, out, "'none' F32 [0, 5] \n")
	assert.Contains(t, out, "{'format': 'pt'}")
}

func TestWeReadPythons(t *testing.T) {
	path := filepath.Join(t.TempDir(), "theirs.safetensors")
	python(t, `
import sys, numpy, safetensors.numpy
t = {"w": numpy.arange(4, dtype=numpy.float16).reshape(2, 2), "s": numpy.array(1.5, dtype=numpy.float32)}
safetensors.numpy.save_file(t, sys.argv[1], {"format": "np"})
`, path)
	f, err := safetensors.Open(t.Context(), path)
	require.NoError(t, err)
	defer f.Close()
	assert.Equal(t, map[string]string{"format": "np"}, f.Metadata())
	var list []string
	for _, tensor := range f.Tensors() {
		list = append(list, tensor.String())
	}
	assert.Equal(t, "s F32 [],w F16 [2 2]", strings.Join(list, ","))
	buf := make([]byte, 8)
	_, err = f.ReadAt("w", buf, 0)
	require.NoError(t, err)
	assert.Equal(t, []byte{0, 0, 0, 0x3c, 0, 0x40, 0, 0x42}, buf, "0, 1, 2, 3")
}
