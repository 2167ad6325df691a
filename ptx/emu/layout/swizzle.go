package layout

import "fmt"

// Swizzle is a permutation of 16-byte chunks of shared memory. TMA and the matrix descriptors
// of wgmma use the same permutations. The values are the numbers in tensor maps; descriptors
// number the modes differently.
type Swizzle uint8

// The modes, by the width in bytes of the rows within which chunks move.
const (
	SwizzleNone Swizzle = iota
	Swizzle32
	Swizzle64
	Swizzle128
)

// String returns the mode's name.
func (s Swizzle) String() string {
	switch s {
	case SwizzleNone:
		return "no swizzle"
	case Swizzle32, Swizzle64, Swizzle128:
		return fmt.Sprintf("%dB swizzle", s.Width())
	}
	return fmt.Sprintf("Swizzle(%d)", uint8(s))
}

// Width returns the bytes of a swizzled row: 32, 64 or 128. Without swizzle it is 16, a chunk
// that no mode splits.
func (s Swizzle) Width() uint32 { return 16 << s }

// Period returns the number of bytes after which the pattern repeats: 8 rows.
func (s Swizzle) Period() uint32 { return 8 * s.Width() }

// Apply returns the address of the byte that would be at address without swizzle. It acts on
// the absolute shared address, not on an offset in a tile: bits 4 and up are XORed with the
// same number of bits from 7 up. It is its own inverse.
func (s Swizzle) Apply(address uint32) uint32 {
	mask := uint32(1)<<s - 1
	return address ^ (address>>7&mask)<<4
}
