package emu

import "fmt"

// Swizzle is a permutation of 16-byte chunks of shared memory, the same one
// for TMA and for the matrix descriptors of wgmma. The values are those of
// tensor maps; descriptors number the modes differently.
type Swizzle uint8

// The modes, by the width in bytes of the rows in which chunks move.
const (
	SwizzleNone Swizzle = iota
	Swizzle32
	Swizzle64
	Swizzle128
)

// String is the mode's name.
func (s Swizzle) String() string {
	switch s {
	case SwizzleNone:
		return "no swizzle"
	case Swizzle32, Swizzle64, Swizzle128:
		return fmt.Sprintf("%dB swizzle", s.Width())
	}
	return fmt.Sprintf("Swizzle(%d)", uint8(s))
}

// Width is the bytes of a swizzled row: 32, 64 or 128, and 16 without swizzle,
// the chunk that no mode splits.
func (s Swizzle) Width() uint32 { return 16 << s }

// Period is the bytes after which the pattern repeats: 8 rows.
func (s Swizzle) Period() uint32 { return 8 * s.Width() }

// Apply gives the place of the byte that would be at address without swizzle.
// It acts on bits of the absolute shared address, not of an offset in a tile:
// bits 4 and up are XORed with as many bits from 7 up. It is its own inverse.
func (s Swizzle) Apply(address uint32) uint32 {
	mask := uint32(1)<<s - 1
	return address ^ (address>>7&mask)<<4
}
