// Package fatbin reads fat binaries, the containers in which nvcc puts a program's PTX and machine
// code.
package fatbin

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"regexp"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// Magic is the beginning of a fat binary, as a little-endian number.
const Magic = 0xba55ed50

// HeaderBytes is the size of the fixed part of a fat binary's header.
const HeaderBytes = 16

// Kinds of entries: a PTX text, or an ELF file with machine code.
const (
	kindPTX = 1
	kindELF = 2
)

// Bits of an entry's flags, which tell how the image is compressed.
const (
	flagLZ4  = 0x2000
	flagZstd = 0x8000
)

// entryBytes is the size of the fixed part of an entry's header.
const entryBytes = 64

// maxText is the largest size of a PTX text in bytes.
const maxText = 1 << 28

// ErrNoPTX reports that a fat binary has no PTX that a Hopper chip runs.
var ErrNoPTX = errors.New("no PTX for a Hopper chip")

// Size returns the size of the fat binary that begins with the given bytes, at least HeaderBytes.
func Size(header []byte) (int, error) {
	if len(header) < HeaderBytes || binary.LittleEndian.Uint32(header) != Magic {
		return 0, fmt.Errorf("fat binary: want %#x at the beginning", uint32(Magic))
	}
	own, rest := int(binary.LittleEndian.Uint16(header[6:])), binary.LittleEndian.Uint64(header[8:])
	if own < HeaderBytes || rest > maxText {
		return 0, fmt.Errorf("fat binary: header of %d bytes and content of %d, want at least %d, and at most %d", own, rest, HeaderBytes, maxText)
	}
	return own + int(rest), nil
}

// PTX returns the best PTX text of a fat binary for a Hopper chip: the text with the newest target
// up to sm_90a. The error is ErrNoPTX if there is none.
func PTX(data []byte) ([]byte, error) {
	size, err := Size(data)
	if err != nil {
		return nil, err
	}
	if len(data) < size {
		return nil, fmt.Errorf("fat binary: %d bytes, the header promises %d", len(data), size)
	}
	var best []byte
	newest, machine := -1, map[uint32]bool{}
	le := binary.LittleEndian
	for at := int(le.Uint16(data[6:])); at < size; {
		e, err := readEntry(data[at:size])
		if err != nil {
			return nil, fmt.Errorf("fat binary: entry at byte %d: %w", at, err)
		}
		at += e.bytes
		if e.kind != kindPTX {
			machine[e.arch] = true
			continue
		}
		text, err := e.text()
		if err != nil {
			return nil, fmt.Errorf("fat binary: PTX of sm_%d: %w", e.arch, err)
		}
		if t := target(text); t > newest && t <= 2*90+1 {
			best, newest = text, t
		}
	}
	if best == nil {
		var chips []uint32
		for chip := range machine {
			chips = append(chips, chip)
		}
		return nil, fmt.Errorf("%w: there is only machine code, for the chips %d: compile with -gencode arch=compute_90a,code=compute_90a", ErrNoPTX, chips)
	}
	return best, nil
}

var targetLine = regexp.MustCompile(`(?m)^\s*\.target\s+sm_(\d+)(a?)`)

// target returns a number that orders the targets of PTX texts. It is twice the number after sm_,
// plus 1 for a target such as sm_90a. It is -1 if the text has no target.
func target(text []byte) int {
	m := targetLine.FindSubmatch(text)
	if m == nil {
		return -1
	}
	n := 0
	fmt.Sscan(string(m[1]), &n) // the expression matched digits
	return 2*n + len(m[2])
}

// entry is one image of a fat binary.
type entry struct {
	kind    uint16
	arch    uint32
	flags   uint64
	packed  []byte // the image as stored
	whole   uint64 // bytes of the image before compression, 0 if it is not compressed
	bytes   int    // bytes of the entry, with its header
	content uint32 // bytes of the compressed image, without padding
}

func readEntry(b []byte) (entry, error) {
	le := binary.LittleEndian
	if len(b) < entryBytes {
		return entry{}, fmt.Errorf("%d bytes are left, want %d", len(b), entryBytes)
	}
	e := entry{kind: le.Uint16(b), content: le.Uint32(b[16:]), arch: le.Uint32(b[28:]), flags: le.Uint64(b[40:]), whole: le.Uint64(b[56:])}
	header, size := uint64(le.Uint32(b[4:])), le.Uint64(b[8:])
	if header < entryBytes || header > uint64(len(b)) || size > uint64(len(b))-header {
		return entry{}, fmt.Errorf("header of %d bytes and image of %d bytes, but %d bytes are left", header, size, len(b))
	}
	e.packed, e.bytes = b[header:header+size], int(header+size)
	return e, nil
}

// text returns the decompressed PTX.
func (e entry) text() ([]byte, error) {
	if e.flags&(flagLZ4|flagZstd) == 0 {
		return bytes.TrimRight(e.packed, "\x00"), nil
	}
	if e.whole > maxText || uint64(e.content) > uint64(len(e.packed)) {
		return nil, fmt.Errorf("%d compressed bytes, want at most %d; %d bytes of text, want at most %d", e.content, len(e.packed), e.whole, maxText)
	}
	packed, text := e.packed[:e.content], make([]byte, e.whole)
	var err error
	n := 0
	if e.flags&flagZstd != 0 {
		var d *zstd.Decoder
		if d, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxText)); err != nil {
			return nil, err
		}
		defer d.Close()
		text, err = d.DecodeAll(packed, text[:0])
		n = len(text)
	} else {
		n, err = lz4.UncompressBlock(packed, text)
	}
	if err == nil && uint64(n) != e.whole {
		err = fmt.Errorf("decompression gave %d bytes, want %d", n, e.whole)
	}
	return bytes.TrimRight(text, "\x00"), err
}
