package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
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

// numbers returns the bytes of n words: 3, 4, 5 …
func numbers(n int) (data []byte) {
	for i := range n {
		data = binary.LittleEndian.AppendUint32(data, uint32(i+3))
	}
	return data
}

// npyFile returns a .npy file of the given format version.
func npyFile(version byte, header string, data []byte) string {
	size := binary.LittleEndian.AppendUint16(nil, uint16(len(header)))
	if version > 1 {
		size = binary.LittleEndian.AppendUint32(nil, uint32(len(header)))
	}
	return npyMagic + string([]byte{version, 0}) + string(size) + header + string(data)
}

// tensorsFile returns a safetensors file in which all tensors have the same data.
func tensorsFile(t *testing.T, data []byte, names ...string) string {
	var b bytes.Buffer
	var list []safetensors.Source
	for _, name := range names {
		list = append(list, safetensors.Source{Name: name, DType: "U32", Shape: []int64{int64(len(data) / 4)}, Data: bytes.NewReader(data)})
	}
	require.NoError(t, safetensors.Write(&b, nil, list...))
	return b.String()
}

// launchWith writes a launch file for the kernel sum, with files next to it. input is the JSON
// of the input buffer.
func launchWith(t *testing.T, input string, files map[string]string) string {
	dir := t.TempDir()
	for name, text := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	path := filepath.Join(dir, "launch.json")
	text := fmt.Sprintf(`{"kernel": "sum", "grid": [3], "block": [64], "buffers": {"in": %s, "out": {"words": 3, "type": "u32", "show": 3}}, "params": [{"buffer": "in"}, {"buffer": "out"}]}`, input)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// TestBufferFiles checks that a buffer has the numbers of its file, and that numpy and
// safetensors can read the files that -dump writes.
func TestBufferFiles(t *testing.T) {
	mended := mend(t)
	const header = "{'descr': '<u4', 'fortran_order': False, 'shape': (3, 64), }\n"
	files := map[string]string{
		"one.npy": npyFile(1, header, numbers(192)), "two.npy": npyFile(2, header, numbers(192)),
		"one.safetensors": tensorsFile(t, numbers(192), "x"), "two.safetensors": tensorsFile(t, numbers(192), "x", "y"),
	}
	for _, input := range []string{
		`{"type": "u32", "file": "one.npy"}`, `{"type": "u32", "file": "two.npy", "words": 192}`,
		`{"type": "u32", "file": "one.safetensors"}`, `{"type": "u32", "file": "two.safetensors", "tensor": "y"}`,
	} {
		var out strings.Builder
		launch := launchWith(t, input, files)
		dir := filepath.Dir(launch)
		at := func(name string) string { return "out=" + filepath.Join(dir, name) }
		require.NoError(t, run(t.Context(), arguments(mended, launch, "-dump", at("o.npy"), "-dump", at("o.safetensors"), "-dump", at("o.bin"), "-dump", "in="+filepath.Join(dir, "in.bin")), &out, io.Discard), input)
		read, err := os.ReadFile(filepath.Join(dir, "in.bin"))
		require.NoError(t, err)
		require.Equal(t, numbers(192), read, input)
		require.Contains(t, out.String(), "out: 2208 6304 10400\n", input)
		want, err := os.ReadFile(filepath.Join(dir, "o.bin"))
		require.NoError(t, err)
		require.Equal(t, []uint32{2208, 6304, 10400}, []uint32{binary.LittleEndian.Uint32(want), binary.LittleEndian.Uint32(want[4:]), binary.LittleEndian.Uint32(want[8:])})
		written, err := os.ReadFile(filepath.Join(dir, "o.npy"))
		require.NoError(t, err)
		require.Zero(t, (len(written)-len(want))%64)
		got, err := npy(written)
		require.NoError(t, err)
		require.Equal(t, want, got)
		written, err = os.ReadFile(filepath.Join(dir, "o.safetensors"))
		require.NoError(t, err)
		got, err = buffer{Tensor: "out"}.tensor(written)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}

// TestNumpyReads checks that numpy reads the right numbers from a file that -dump wrote.
func TestNumpyReads(t *testing.T) {
	python := outside.Python(t, "numpy")
	launch := launchWith(t, `{"type": "u32", "fill": "ones", "words": 192}`, nil)
	file := filepath.Join(t.TempDir(), "o.npy")
	require.NoError(t, run(t.Context(), arguments(mend(t), launch, "-dump", "out="+file), io.Discard, io.Discard))
	text, err := exec.CommandContext(t.Context(), python, "-c", "import numpy; a = numpy.load('"+file+"'); print(a.dtype, a.tolist())").CombinedOutput()
	require.NoError(t, err, string(text))
	require.Equal(t, "uint32 [64, 64, 64]\n", string(text))
}

// TestFills checks that each fill gives the right numbers, for each element type.
func TestFills(t *testing.T) {
	for kind := range kinds {
		for fill, want := range map[string]string{"zero": " 0 0 0 0", "ones": " 1 1 1 1", "ramp": " 0 1 2 3", "normal": ""} {
			if kind == "u32" && fill == "normal" {
				continue
			}
			var out strings.Builder
			launch := launchWith(t, fmt.Sprintf(`{"type": %q, "fill": %q, "words": 192, "show": 4}`, kind, fill), nil)
			require.NoError(t, run(t.Context(), arguments(mend(t), launch, "-check", "0"), &out, io.Discard))
			require.Contains(t, out.String(), "in:"+want, "%s %s", kind, fill)
			if fill == "normal" {
				require.Regexp(t, `in:( -?\d\S*[.e-]\S*){4}\n`, out.String(), kind)
			}
		}
	}
}

// TestWrongFiles checks that an error names the file and says what is wrong with it.
func TestWrongFiles(t *testing.T) {
	const header = "{'descr': '<u4', 'fortran_order': False, 'shape': (192,), }\n"
	files := map[string]string{
		"short.npy": "x", "cut.npy": npyFile(1, header, nil)[:20], "empty.npy": npyFile(1, header, nil), "odd.npy": npyFile(1, header, []byte("xyz")),
		"columns.npy": npyFile(1, strings.Replace(header, "False", "True", 1), numbers(1)), "big.npy": npyFile(1, strings.Replace(header, "<u4", ">u4", 1), numbers(1)),
		"none.npy": npyFile(1, "{}", numbers(1)), "good.npy": npyFile(1, header, numbers(192)), "two.safetensors": tensorsFile(t, numbers(192), "x", "y"), "x.bin": "",
	}
	for input, want := range map[string]string{
		`{"type": "u32", "file": "none"}`:                     "no such file",
		`{"type": "u32", "file": "short.npy"}`:                "short.npy: is no .npy file",
		`{"type": "u32", "file": "cut.npy"}`:                  "cut.npy: ends within its header",
		`{"type": "u32", "file": "empty.npy"}`:                "empty.npy: has 0 bytes of elements, must have a positive multiple of 4",
		`{"type": "u32", "file": "odd.npy"}`:                  "odd.npy: has 3 bytes of elements",
		`{"type": "u32", "file": "columns.npy"}`:              "must have rows",
		`{"type": "u32", "file": "big.npy"}`:                  `has elements ">u4", must have little-endian numbers`,
		`{"type": "u32", "file": "none.npy"}`:                 "must have descr and fortran_order",
		`{"type": "u32", "file": "good.npy", "words": 191}`:   "good.npy has 192 words, words is 191, must be equal or absent",
		`{"type": "u32", "file": "good.npy", "fill": "ones"}`: "file good.npy and fill ones are given",
		`{"type": "u32", "file": "x.bin"}`:                    "x.bin: must end in .npy or .safetensors",
		`{"type": "u32", "file": "two.safetensors"}`:          "two.safetensors: ",
		`{"type": "u32", "tensor": "x"}`:                      "tensor x needs a file",
		`{"type": "u8", "words": 4}`:                          `type "u8", must be u32, f32, bf16 or f16`,
		`{"type": "u32", "words": -4}`:                        "words is -4",
		`{"type": "u32", "words": 4, "fill": "normal"}`:       `fill "normal" of type u32`,
	} {
		assert.ErrorContains(t, run(t.Context(), arguments(kernelFile, launchWith(t, input, files)), io.Discard, io.Discard), want, input)
	}
	launch := launchWith(t, `{"type": "bf16", "words": 192, "fill": "ones"}`, nil)
	for flag, want := range map[string]string{
		"out": "must be BUFFER=FILE", "out=x.txt": "must be BUFFER=FILE", "=x.npy": "must be BUFFER=FILE",
		"no=x.npy": "there is no buffer of that name", "in=x.npy": ".npy files have no bf16",
	} {
		assert.ErrorContains(t, run(t.Context(), arguments(kernelFile, launch, "-dump", flag), io.Discard, io.Discard), want, flag)
	}
}
