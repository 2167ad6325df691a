package safetensors_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/moe/checkpoint/safetensors"
)

// file returns a complete file with a header and some bytes of data.
func file(header string, data int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	b = append(b, header...)
	for i := range data {
		b = append(b, byte(i))
	}
	return b
}

func read(b []byte) (*safetensors.File, error) {
	return safetensors.New(bytes.NewReader(b), int64(len(b)))
}

func TestReadByHand(t *testing.T) {
	f, err := read(file(`{"b":{"shape":[2],"data_offsets":[12,16],"dtype":"BF16"},`+
		`"__metadata__":{"format":"pt"}, "a":{"dtype":"F32","shape":[3,1],"data_offsets":[0,12]},`+
		`"scalar":{"dtype":"U8","shape":[],"data_offsets":[16,17]},`+
		`"empty":{"dtype":"I32","shape":[4,0],"data_offsets":[16,16]}}   `, 17))
	require.NoError(t, err)
	var names []string
	for _, tensor := range f.Tensors() {
		names = append(names, tensor.String())
	}
	assert.Equal(t, []string{"a F32 [3 1]", "b BF16 [2]", "empty I32 [4 0]", "scalar U8 []"}, names)
	assert.Equal(t, map[string]string{"format": "pt"}, f.Metadata())

	b, err := f.Tensor("b")
	require.NoError(t, err)
	assert.Equal(t, safetensors.Tensor{Name: "b", DType: "BF16", Shape: []int64{2}, Begin: 12, End: 16}, b)
	buf := make([]byte, 4)
	_, err = f.ReadAt("b", buf, 0)
	require.NoError(t, err)
	assert.Equal(t, []byte{12, 13, 14, 15}, buf)
	n, err := f.ReadAt("b", buf, 3)
	assert.Equal(t, 1, n, "nothing of the next tensor")
	assert.Equal(t, io.EOF, err)
	_, err = f.ReadAt("b", buf, -1)
	assert.Error(t, err)
	_, err = f.ReadAt("c", buf, 0)
	assert.EqualError(t, err, `safetensors: tensor "c": the file has no such tensor, it has 4: ["a" "b" "empty" "scalar"]`)
	section, err := f.Section("scalar")
	require.NoError(t, err)
	all, err := io.ReadAll(section)
	require.NoError(t, err)
	assert.Equal(t, []byte{16}, all)
}

func TestRefusesDamage(t *testing.T) {
	const a = `"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}`
	tests := []struct {
		name, header string
		data         int
		want         string
	}{
		{"no object", `[]`, 0, "header: doesn't begin with '{'"},
		{"empty", ``, 0, "header: doesn't begin with '{'"},
		{"cut short", `{` + a, 8, "header: is not JSON near byte"},
		{"not UTF-8", "{\"\xff\":{}}", 0, "header: is not UTF-8"},
		{"after the end", `{` + a + `}x`, 8, "header: has something after its end"},
		{"an open string after the end", `{` + a + `}"x`, 8, "header: has something after its end"},
		{"an open string", `{"a`, 0, "it ends inside a string"},
		{"a comma too many", `{` + a + `,}`, 8, "header has } near byte"},
		{"a comma too few", `{` + a + ` ` + a + `}`, 8, `must have ',' or '}'`},
		{"a line in a string", "{\"a\n\":{}}", 0, "is not JSON near byte"},
		{"a wrong escape", `{"\x":{}}`, 0, "is not JSON near byte"},
		{"not of JSON", `{'a'}`, 0, "unexpected character '\\''"},
		{"minus 0", `{"a":{"dtype":"U8","shape":[-0],"data_offsets":[0,0]}}`, 0, "shape has -0, must be integers"},
		{"leading 0", `{"a":{"dtype":"U8","shape":[00],"data_offsets":[0,0]}}`, 0, "shape has 00, must be integers"},
		{"number in quotes", `{"a":{"dtype":"U8","shape":["0"],"data_offsets":[0,0]}}`, 0, `shape has "0", must be integers`},
		{"65 extents", `{"a":{"dtype":"U8","shape":[1` + strings.Repeat(",1", 64) + `],"data_offsets":[0,1]}}`, 1, "shape has more than 64 numbers"},
		{"two objects", `{` + a + `}{}`, 8, "header: has something after its end"},
		{"too little data", `{` + a + `}`, 7, `tensor "a": ends at byte 8 of the data, but the file has only 7 bytes of data: is it complete?`},
		{"trailing garbage", `{` + a + `}`, 9, "header: its tensors end at 8, but 9 bytes of data follow it"},
		{"no tensors but data", `{}`, 1, "header: its tensors end at 0, but 1 bytes of data follow it"},
		{"same name", `{` + a + `,` + a + `}`, 8, `tensor "a": the name stands twice in the header`},
		{"same name, escaped", `{` + a + `,` + strings.Replace(a, `"a"`, `"\u0061"`, 1) + `}`, 8, `the name stands twice`},
		{"metadata twice", `{"__metadata__":{},"__metadata__":{}}`, 0, "the name stands twice"},
		{"metadata key twice", `{"__metadata__":{"k":"1","k":"2"}}`, 0, `__metadata__ has the key "k" twice`},
		{"metadata number", `{"__metadata__":{"k":1}}`, 0, "__metadata__ has 1 near byte 22, must have a string"},
		{"metadata list", `{"__metadata__":[]}`, 0, "__metadata__ has [ near byte"},
		{"overlap", `{` + a + `,"b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}`, 8,
			`tensor "b": begins at 4, inside the tensor before it, which ends at 8`},
		{"same place", `{` + a + `,"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, 8, "inside the tensor before it"},
		{"gap", `{` + a + `,"b":{"dtype":"U8","shape":[1],"data_offsets":[9,10]}}`, 10, `tensor "b": begins at 9, leaving a gap after 8`},
		{"gap at the start", `{"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}`, 2, "begins at 1, leaving a gap after 0"},
		{"negative offset", `{"a":{"dtype":"U8","shape":[1],"data_offsets":[-1,0]}}`, 2, "data_offsets has -1, must be integers"},
		{"backwards", `{"a":{"dtype":"U8","shape":[1],"data_offsets":[2,1]}}`, 2, "data_offsets [2, 1] are not in order"},
		{"huge offset", `{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,9223372036854775807]}}`, 1, "the file has only 1 bytes of data"},
		{"offset over int64", `{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,18446744073709551615]}}`, 1, "data_offsets has 18446744073709551615"},
		{"fraction", `{"a":{"dtype":"U8","shape":[1.5],"data_offsets":[0,1]}}`, 1, "shape has 1.5, must be integers"},
		{"exponent", `{"a":{"dtype":"U8","shape":[1e0],"data_offsets":[0,1]}}`, 1, "shape has 1e0, must be integers"},
		{"three offsets", `{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,1]}}`, 1, "data_offsets has 3 numbers, must have 2"},
		{"wrong size", `{"a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,8]}}`, 8,
			`tensor "a": data_offsets [0, 8] hold 8 bytes, but BF16 [2 3] takes 12`},
		{"overflowing shape", `{"a":{"dtype":"F32","shape":[4294967296,4294967296,4],"data_offsets":[0,8]}}`, 8, "has more bits than 2^63"},
		{"shape that wraps to 0", `{"a":{"dtype":"F32","shape":[9223372036854775807,9223372036854775807],"data_offsets":[0,0]}}`, 0, "has more bits than 2^63"},
		{"half a byte", `{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}}`, 2, "is 12 bits, not whole bytes"},
		{"unknown dtype", `{"a":{"dtype":"F13","shape":[2],"data_offsets":[0,8]}}`, 8, `dtype "F13" is unknown`},
		{"dtype number", `{"a":{"dtype":1,"shape":[2],"data_offsets":[0,8]}}`, 8, "dtype has 1 near byte"},
		{"shape null", `{"a":{"dtype":"U8","shape":null,"data_offsets":[0,8]}}`, 8, "shape has null near byte"},
		{"no dtype", `{"a":{"shape":[2],"data_offsets":[0,8]}}`, 8, `tensor "a": dtype is missing`},
		{"no shape", `{"a":{"dtype":"F32","data_offsets":[0,8]}}`, 8, `tensor "a": shape is missing`},
		{"no offsets", `{"a":{"dtype":"F32","shape":[2]}}`, 8, `tensor "a": data_offsets is missing`},
		{"key twice", `{"a":{"dtype":"F32","dtype":"U8","shape":[2],"data_offsets":[0,8]}}`, 8, `tensor "a": dtype stands twice`},
		{"unknown key", `{"a":{"dtype":"F32","strides":[1]}}`, 8, `unknown key "strides", must be dtype, shape or data_offsets`},
		{"tensor is a list", `{"a":[]}`, 0, `tensor "a" has [ near byte 6, must have {`},
		{"deeply nested", `{"a":{"shape":` + strings.Repeat("[", 1_000_000) + `}}`, 0, "shape has [, must be integers"},
		{"deep objects", strings.Repeat(`{"a":`, 1_000_000), 0, `unknown key "a"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := read(file(tt.header, tt.data))
			require.ErrorContains(t, err, tt.want)
			assert.Less(t, len(err.Error()), 300, "an error must not quote a hostile file at length")
		})
	}
}

// TestLongHeaders checks that a header takes memory in proportion to the number of its tensors, and
// time in proportion to its length. Strings may be longer than the read buffer, with escapes and
// quotes at any place in the buffer.
func TestLongHeaders(t *testing.T) {
	for _, n := range []int{1<<16 - 9, 1<<16 - 8, 1<<16 - 7, 1 << 20} {
		name := strings.Repeat("é", n/4) + strings.Repeat(`\"\\`, n/8) + "x"
		f, err := read(file(`{"`+name+`":{"dtype":"U8","shape":[],"data_offsets":[0,1]}}`, 1))
		require.NoError(t, err)
		assert.Equal(t, strings.Repeat("é", n/4)+strings.Repeat(`"\`, n/8)+"x", f.Tensors()[0].Name)
	}
	spaces := file("{"+strings.Repeat(" ", 16<<20)+"}", 0)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := read(spaces)
	runtime.ReadMemStats(&after)
	require.NoError(t, err)
	assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20))
}

// maxHeader is the longest accepted header.
const maxHeader = 100_000_000

func TestRefusesWrongLengths(t *testing.T) {
	valid := file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, 8)
	for size := range valid {
		_, err := read(valid[:size])
		require.Error(t, err, "cut to %d bytes", size)
	}
	for _, tt := range []struct {
		length uint64
		want   string
	}{
		{math.MaxUint64, "must have at most 100000000"},
		{1 << 63, "must have at most 100000000"},
		{maxHeader + 1, "must have at most 100000000"},
		{maxHeader, "but the file ends after 62 of them"},
		{63, "but the file ends after 62 of them"},
		{0, "doesn't begin with '{'"},
	} {
		b := bytes.Clone(valid)
		binary.LittleEndian.PutUint64(b, tt.length)
		_, err := read(b)
		require.ErrorContains(t, err, tt.want)
	}
}

// shrinking is a file that became shorter after its size was read.
type shrinking struct{ *bytes.Reader }

func TestSourceThatEndsEarly(t *testing.T) {
	b := file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, 8)
	for _, size := range []int{0, 4, 20} {
		_, err := safetensors.New(shrinking{bytes.NewReader(b[:size])}, int64(len(b)))
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	}
}

// watched records the largest offset that was read.
type watched struct {
	*bytes.Reader
	furthest int64
}

func (w *watched) ReadAt(p []byte, off int64) (int, error) {
	w.furthest = max(w.furthest, off+int64(len(p)))
	return w.Reader.ReadAt(p, off)
}

func TestReadsOnlyWhatIsAsked(t *testing.T) {
	header := `{"a":{"dtype":"U8","shape":[1000],"data_offsets":[0,1000]},"b":{"dtype":"U8","shape":[9],"data_offsets":[1000,1009]}}`
	b := file(header, 1009)
	w := &watched{Reader: bytes.NewReader(b)}
	f, err := safetensors.New(w, int64(len(b)))
	require.NoError(t, err)
	assert.Equal(t, int64(8+len(header)), w.furthest, "the header alone")
	_, err = f.ReadAt("a", make([]byte, 10), 5)
	require.NoError(t, err)
	assert.Equal(t, int64(8+len(header)+15), w.furthest)
	_, _ = f.ReadAt("b", make([]byte, 500), 0)
	assert.LessOrEqual(t, w.furthest, int64(len(b)))
}

func TestOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "layer.safetensors")
	_, err := safetensors.Open(t.Context(), path)
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = safetensors.Open(t.Context(), filepath.Dir(path))
	require.ErrorContains(t, err, "must be a regular file")
	require.NoError(t, os.WriteFile(path, []byte("no such format"), 0o600))
	_, err = safetensors.Open(t.Context(), path)
	require.ErrorContains(t, err, path)
	require.NoError(t, os.WriteFile(path, file(`{"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}`, 3), 0o600))
	f, err := safetensors.Open(t.Context(), path)
	require.NoError(t, err)
	buf := make([]byte, 3)
	_, err = f.ReadAt("a", buf, 0)
	require.NoError(t, err)
	assert.Equal(t, []byte{0, 1, 2}, buf)
	require.NoError(t, f.Close())
	_, err = f.ReadAt("a", buf, 0)
	require.ErrorIs(t, err, os.ErrClosed)
}

// FuzzHeader checks that reading any header returns an error, or tensors that cover the data
// exactly and can be written again.
func FuzzHeader(f *testing.F) {
	f.Add([]byte(`{}`), uint16(0))
	f.Add([]byte(`{"__metadata__":{"a":"b"}}`), uint16(0))
	f.Add([]byte(`{"a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]}}  `), uint16(12))
	f.Add([]byte(`{"a":{"dtype":"F4","shape":[2],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[],"data_offsets":[1,2]}}`), uint16(2))
	f.Add([]byte(`{"a":{"dtype":"U8","shape":[0,99999999999],"data_offsets":[0,0]}}`), uint16(0))
	f.Add([]byte(`{"a":[[[[`), uint16(3))
	f.Fuzz(func(t *testing.T, header []byte, data uint16) {
		b := file(string(header), int(data))
		got, err := read(b)
		if err != nil {
			return
		}
		var all []byte
		var sources []safetensors.Source
		for _, tensor := range got.Tensors() {
			section, err := got.Section(tensor.Name)
			require.NoError(t, err)
			part, err := io.ReadAll(section)
			require.NoError(t, err)
			size, err := tensor.Bytes()
			require.NoError(t, err)
			require.Len(t, part, int(size))
			all = append(all, part...)
			sources = append(sources, source(tensor.Name, tensor.DType, tensor.Shape, part))
		}
		require.Equal(t, string(b[len(b)-int(data):]), string(all))
		var again bytes.Buffer
		require.NoError(t, safetensors.Write(&again, got.Metadata(), sources...))
		second, err := read(again.Bytes())
		require.NoError(t, err)
		require.Equal(t, fmt.Sprint(got.Metadata()), fmt.Sprint(second.Metadata()))
		require.Len(t, second.Tensors(), len(got.Tensors()))
	})
}

func source(name string, dtype string, shape []int64, data []byte) safetensors.Source {
	return safetensors.Source{Name: name, DType: dtype, Shape: shape, Data: bytes.NewReader(data)}
}

// TestOtherKinds checks that files of other formats are recognised by their first bytes.
func TestOtherKinds(t *testing.T) {
	for start, kind := range map[string]string{
		`{"metadata": {"total_size": 1}}`: "JSON, such as the index of a sharded model",
		"PK\x03\x04 and more of a zip":    "a file of torch.save",
		"\x80\x02\x8a\x0al\xfc\x9cF":      "a file of torch.save",
		"GGUF\x03\x00\x00\x00\x01":        "GGUF",
	} {
		_, err := safetensors.New(strings.NewReader(start), int64(len(start)))
		require.ErrorContains(t, err, "starts as "+kind, "%q", start)
		require.ErrorContains(t, err, "no safetensors file")
	}
}
