package layout

import "fmt"

// Swizzle is a permutation of the 16-byte chunks of shared memory. TMA and wgmma's matrix
// descriptors use the same permutations. The values are the numbers in tensor maps; descriptors
// have other numbers.
type Swizzle uint8

// The swizzle modes are named by the width in bytes of the rows within which chunks move.
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

// Width returns the bytes of a swizzled row: 32, 64 or 128. Without swizzle it returns 16, the size
// of a chunk, which no mode splits.
func (s Swizzle) Width() uint32 { return 16 << s }

// Period returns the number of bytes after which the swizzle pattern repeats: 8 rows.
func (s Swizzle) Period() uint32 { return 8 * s.Width() }

// Apply returns the address to which the swizzle moves the byte at an address. The swizzle depends
// on the absolute shared address, not on an offset in a tile: it XORs address bits from 4 up with
// the same number of bits from 7 up. Apply is its own inverse.
func (s Swizzle) Apply(address uint32) uint32 {
	mask := uint32(1)<<s - 1
	return address ^ (address>>7&mask)<<4
}
