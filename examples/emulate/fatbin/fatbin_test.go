package fatbin

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// image is an entry of a fat binary that the tests write.
type image struct {
	kind  uint16
	arch  uint32
	flags uint64
	text  string
}

// write returns a fat binary.
func write(t *testing.T, images ...image) []byte {
	le := binary.LittleEndian
	var body []byte
	for _, im := range images {
		packed, content, whole := []byte(im.text), 0, 0
		switch im.flags {
		case flagLZ4:
			buf := make([]byte, lz4.CompressBlockBound(len(packed)))
			n, err := lz4.CompressBlock(packed, buf, nil)
			require.NoError(t, err)
			require.NotZero(t, n)
			whole, content, packed = len(packed), n, buf[:n]
		case flagZstd:
			w, err := zstd.NewWriter(nil)
			require.NoError(t, err)
			whole, packed = len(packed), w.EncodeAll(packed, nil)
			content = len(packed)
		}
		packed = append(packed, make([]byte, (8-len(packed)%8)%8)...)
		h := make([]byte, 80)
		le.PutUint16(h, im.kind)
		le.PutUint16(h[2:], 0x101)
		le.PutUint32(h[4:], 80)
		le.PutUint64(h[8:], uint64(len(packed)))
		le.PutUint32(h[16:], uint32(content))
		le.PutUint32(h[28:], im.arch)
		le.PutUint64(h[40:], im.flags)
		le.PutUint64(h[56:], uint64(whole))
		body = append(append(body, h...), packed...)
	}
	h := le.AppendUint32(nil, Magic)
	h = le.AppendUint16(le.AppendUint16(h, 1), HeaderBytes)
	return append(le.AppendUint64(h, uint64(len(body))), body...)
}

// ptx returns a text with the given target, long enough to be compressed.
func ptx(target string) string {
	return "//\n.version 8.0\n.target " + target + "\n" + strings.Repeat("// filler filler\n", 20)
}

// TestPTX checks which text is chosen, and that compressed texts are read.
func TestPTX(t *testing.T) {
	for name, c := range map[string]struct {
		images []image
		want   string
	}{
		"plain":          {[]image{{kindPTX, 90, 0, ptx("sm_90")}}, "sm_90"},
		"LZ4":            {[]image{{kindPTX, 90, flagLZ4, ptx("sm_90a")}}, "sm_90a"},
		"Zstandard":      {[]image{{kindPTX, 90, flagZstd, ptx("sm_90a")}}, "sm_90a"},
		"the chip's own": {[]image{{kindPTX, 90, flagZstd, ptx("sm_90a")}, {kindPTX, 90, 0, ptx("sm_90")}}, "sm_90a"},
		"not newer":      {[]image{{kindPTX, 80, 0, ptx("sm_80")}, {kindPTX, 100, 0, ptx("sm_100a")}}, "sm_80"},
		"beside code":    {[]image{{kindELF, 90, flagZstd, ptx("machine code")}, {kindPTX, 86, 0, ptx("sm_86")}}, "sm_86"},
	} {
		t.Run(name, func(t *testing.T) {
			text, err := PTX(append(write(t, c.images...), "what follows"...))
			require.NoError(t, err)
			assert.Equal(t, ptx(c.want), string(text))
		})
	}
}

// TestWrong checks that damaged and useless fat binaries are errors, and that no cut panics.
func TestWrong(t *testing.T) {
	_, err := PTX(write(t, image{kindELF, 90, 0, "machine code"}))
	require.ErrorIs(t, err, ErrNoPTX)
	assert.ErrorContains(t, err, "only machine code, for the chips [90]: compile with -gencode arch=compute_90a,code=compute_90a")
	_, err = PTX(write(t, image{kindPTX, 100, 0, ptx("sm_100")}))
	require.ErrorIs(t, err, ErrNoPTX)
	_, err = PTX([]byte("no fat binary, but long enough"))
	require.ErrorContains(t, err, "want 0xba55ed50")
	for _, flags := range []uint64{flagLZ4, flagZstd} {
		good := write(t, image{kindPTX, 90, flags, ptx("sm_90")})
		for n := range len(good) {
			_, err := PTX(good[:n])
			require.Error(t, err, "%d bytes", n)
			short := bytes.Clone(good[:n])
			if n >= HeaderBytes {
				binary.LittleEndian.PutUint64(short[8:], uint64(n-HeaderBytes))
				_, err = PTX(short)
				require.Error(t, err, "content of %d bytes", n)
			}
		}
		binary.LittleEndian.PutUint64(good[HeaderBytes+56:], 1<<40)
		_, err := PTX(good)
		require.ErrorContains(t, err, "1099511627776 bytes of text")
	}
}

func FuzzPTX(f *testing.F) {
	f.Add([]byte("\x50\xed\x55\xba\x01\x00\x10\x00\x00\x00\x00\x00\x00\x00\x00\x00"))
	f.Fuzz(func(_ *testing.T, data []byte) {
		if len(data) < 1<<16 {
			PTX(data) // must not panic
		}
	})
}
