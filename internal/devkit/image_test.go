package devkit_test

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver/gpu"
	"sonicmoe/internal/devkit"
	"sonicmoe/internal/outside"
	"sonicmoe/ptx/ptxas"
)

// elfImage returns a small ELF file for a GPU. It consists of the header, the section names,
// three section headers, and at the end the section .text with four bytes.
func elfImage(abi byte, flags uint32) []byte {
	const names, headers, text = 64, 96, 96 + 3*64
	b := make([]byte, text+4)
	copy(b, "\x7fELF\x02\x01\x01\x33")
	b[8] = abi
	le := binary.LittleEndian
	le.PutUint16(b[16:], 2)   // an executable
	le.PutUint16(b[18:], 190) // CUDA
	le.PutUint32(b[20:], 1)
	le.PutUint64(b[40:], headers)
	le.PutUint32(b[48:], flags)
	le.PutUint16(b[52:], 64) // the size of the header
	le.PutUint16(b[58:], 64) // the size of a section header
	le.PutUint16(b[60:], 3)
	le.PutUint16(b[62:], 1) // the names are section 1
	copy(b[names:], "\x00.shstrtab\x00.text\x00")
	section := func(i int, name, kind uint32, offset, size uint64) {
		h := b[headers+64*i:]
		le.PutUint32(h, name)
		le.PutUint32(h[4:], kind)
		le.PutUint64(h[24:], offset)
		le.PutUint64(h[32:], size)
	}
	section(1, 1, 3, names, 17)
	section(2, 11, 1, text, 4)
	return b
}

// TestCheckImage checks images with the flags that ptxas 12.0, 12.4, 12.9 (ABI version 7), 13.0
// and 13.1 (ABI version 8) write.
func TestCheckImage(t *testing.T) {
	const hopper7, hopper8 = 0x005a0d5a, 0x06005a04
	good := elfImage(8, hopper8)
	change := func(f func(b []byte)) []byte {
		b := elfImage(8, hopper8)
		f(b)
		return b
	}
	for name, c := range map[string]struct {
		code []byte
		arch string
		says string // part of the error, or "" for a valid image
	}{
		"sm_90a of 12.x":            {elfImage(7, hopper7), "sm_90a", ""},
		"sm_90a of 13.x":            {good, "sm_90a", ""},
		"for any":                   {good, "", ""},
		"sm_100a of 12.9":           {elfImage(8, 0x0600640a), "sm_100a", ""},
		"sm_90 of 12.x":             {elfImage(7, 0x005a055a), "sm_90a", "an image for sm_90, must be for sm_90a"},
		"sm_90a of 12.x for sm_90":  {elfImage(7, hopper7), "sm_90", "an image for sm_90a, must be for sm_90"},
		"sm_80 of 12.x":             {elfImage(7, 0x00500550), "sm_90a", "an image for sm_80"},
		"sm_80 of 13.x":             {elfImage(8, 0x06005004), "sm_90a", "an image for sm_80"},
		"sm_100 of 13.x":            {elfImage(8, 0x06006402), "sm_90a", "an image for sm_100"},
		"text":                      {[]byte("EVIL MACHINE CODE"), "sm_90a", "17 bytes that are no ELF file"},
		"nothing":                   {nil, "sm_90a", "0 bytes"},
		"x86":                       {change(func(b []byte) { b[18] = 62 }), "", "for machine 62"},
		"of CUDA 12.8":              {change(func(b []byte) { b[20] = 128 }), "", ""},
		"32 bits":                   {change(func(b []byte) { b[4] = 1 }), "", "ELF"},
		"a header alone":            {good[:64], "sm_90a", "no ELF file"},
		"the last byte is missing":  {good[:len(good)-1], "sm_90a", "section .text has 4 bytes"},
		"a section beyond the end":  {change(func(b []byte) { binary.LittleEndian.PutUint64(b[96+2*64+24:], 1<<63-8) }), "", "section .text has 4 bytes"},
		"a section larger than all": {change(func(b []byte) { binary.LittleEndian.PutUint64(b[96+2*64+32:], 5) }), "", "section .text has 5 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			err := devkit.CheckImage(c.code, c.arch)
			if c.says == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, gpu.ErrWrongImage)
			assert.ErrorContains(t, err, c.says)
		})
	}
}

// TestCheckImageSegments checks that a segment past the end of the file is found.
func TestCheckImageSegments(t *testing.T) {
	image := func(offset, size uint64) []byte {
		b := append(elfImage(8, 0x06005a04), make([]byte, 56)...)
		le := binary.LittleEndian
		at := len(b) - 56
		le.PutUint64(b[32:], uint64(at))
		le.PutUint16(b[54:], 56)
		le.PutUint16(b[56:], 1)
		le.PutUint32(b[at:], 1) // a segment to be loaded
		le.PutUint64(b[at+8:], offset)
		le.PutUint64(b[at+32:], size)
		return b
	}
	n := uint64(len(image(0, 0)))
	require.NoError(t, devkit.CheckImage(image(8, n-8), "sm_90a"))
	assert.ErrorContains(t, devkit.CheckImage(image(8, n-7), "sm_90a"), "segment 0")
	assert.ErrorIs(t, devkit.CheckImage(image(1<<62, 1<<62), "sm_90a"), gpu.ErrWrongImage)
}

// TestCheckImageOfPtxas checks that the output of the installed assembler is for the
// requested architecture, and that an image without its last bytes is refused.
func TestCheckImageOfPtxas(t *testing.T) {
	outside.Ptxas(t)
	for _, arch := range []string{"sm_80", "sm_90", "sm_90a"} {
		code, _, err := ptxas.AssembleFor(t.Context(), arch, []byte(".version 8.0\n.target "+arch+"\n.visible .entry k() { ret; }\n"))
		require.NoError(t, err)
		require.NoError(t, devkit.CheckImage(code, arch))
		require.NoError(t, devkit.CheckImage(code, ""))
		require.Error(t, devkit.CheckImage(code, "sm_70"))
		require.Error(t, devkit.CheckImage(code[:len(code)-1], arch))
		require.Error(t, devkit.CheckImage(code[:len(code)/2], arch))
	}
}

// FuzzCheckImage alters a valid image. CheckImage must not panic, and the sections and segments
// of an accepted image must lie in the file.
func FuzzCheckImage(f *testing.F) {
	f.Add(elfImage(7, 0x005a0d5a))
	f.Add(elfImage(8, 0x06005a04))
	f.Fuzz(func(t *testing.T, code []byte) {
		if devkit.CheckImage(code, "sm_90a") != nil {
			return
		}
		if err := devkit.CheckImage(code, ""); err != nil {
			t.Fatal(err)
		}
		if devkit.CheckImage(code, "sm_80") == nil {
			t.Fatal("an image for two architectures")
		}
	})
}
