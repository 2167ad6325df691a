package layout

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSwizzle(t *testing.T) {
	for _, s := range []Swizzle{SwizzleNone, Swizzle32, Swizzle64, Swizzle128} {
		seen := map[uint32]bool{}
		for a := range uint32(4096) {
			b := s.Apply(a)
			require.Equal(t, a, s.Apply(b), "%v is its own inverse", s)
			require.Equal(t, a%16, b%16, "%v keeps chunks whole", s)
			require.Equal(t, a/s.Width(), b/s.Width(), "%v stays in the row", s)
			seen[b] = true
		}
		require.Len(t, seen, 4096)
	}
	// The expected chunk is chunk ^ (row&7), (row>>1)&3 or (row>>2)&1 for rows of 128, 64 or 32
	// bytes.
	for row := range uint32(16) {
		for chunk := range uint32(8) {
			assert.Equal(t, row*128+(chunk^row&7)*16, Swizzle128.Apply(row*128+chunk*16))
			assert.Equal(t, row*64+(chunk&3^row>>1&3)*16, Swizzle64.Apply(row*64+chunk&3*16))
			assert.Equal(t, row*32+(chunk&1^row>>2&1)*16, Swizzle32.Apply(row*32+chunk&1*16))
		}
	}
}

func TestDescriptorWorkedExamples(t *testing.T) {
	d, err := DecodeMatrixDescriptor(0x4000004000010040)
	require.NoError(t, err)
	require.Equal(t, MatrixDescriptor{Start: 0x400, LBO: 16, SBO: 1024, Swizzle: Swizzle128}, d)
	require.Equal(t, uint64(0x4000004000010040), d.Encode())

	// Row 9 and k 21 of a K-major tile: this is k 5 of the second k step, whose descriptor has an
	// address field that is larger by 2.
	d, err = DecodeMatrixDescriptor(0x4000004000010040 + 2)
	require.NoError(t, err)
	require.NoError(t, d.Check(KMajor, 64))
	assert.Equal(t, uint32(2218), d.unswizzled(KMajor, 9, 5))
	assert.Equal(t, uint32(2234), d.Address(KMajor, 9, 5))

	// This tile is MN-major: it has 128 mn, and 64 k.
	d = MatrixDescriptor{LBO: 8192, SBO: 1024, Swizzle: Swizzle128}
	require.Equal(t, uint64(512<<16|64<<32|1<<62), d.Encode())
	require.NoError(t, d.Check(MNMajor, 128))
	assert.Equal(t, uint32(9868), d.unswizzled(MNMajor, 70, 13))
	assert.Equal(t, uint32(9948), d.Address(MNMajor, 70, 13))
}

// TestDescriptorsAgreeWithTMA checks that descriptors find every element of a tile where TMA boxes
// put it. A box is width/2 elements wide; the tile is 64 deep in k and 64 or 128 wide.
func TestDescriptorsAgreeWithTMA(t *testing.T) {
	const base, depth = 0x2400 - 0x400, 64
	for _, s := range []Swizzle{Swizzle32, Swizzle64, Swizzle128} {
		w := s.Width()
		for _, mn := range []uint32{64, 128} {
			for step := range uint32(depth / 16) {
				// In K-major order, a box has w/2 k by mn rows, and the boxes follow each other in
				// k.
				k0 := step * 16
				box := base + k0/(w/2)*mn*w
				kd := MatrixDescriptor{Start: box + k0%(w/2)*2, LBO: 16, SBO: 8 * w, Swizzle: s}
				require.NoError(t, kd.Check(KMajor, mn))
				// In MN-major order, a box has w/2 mn by depth k, and the boxes follow each other
				// in mn.
				md := MatrixDescriptor{Start: base + step*2*8*w, LBO: depth * w, SBO: 8 * w, Swizzle: s}
				require.NoError(t, md.Check(MNMajor, mn))
				for i := range mn {
					for k := range uint32(16) {
						require.Equal(t, s.Apply(box+i*w+(k0+k)%(w/2)*2), kd.Address(KMajor, i, k))
						require.Equal(t, s.Apply(base+i/(w/2)*depth*w+(k0+k)*w+i%(w/2)*2), md.Address(MNMajor, i, k))
					}
				}
			}
		}
	}
}

// TestDescriptorGroup checks that Group and Address give the same addresses.
func TestDescriptorGroup(t *testing.T) {
	for _, major := range []Major{KMajor, MNMajor} {
		for _, d := range []MatrixDescriptor{
			{Start: 1024, LBO: 128, SBO: 256, Swizzle: SwizzleNone},
			{Start: 1024, LBO: 4096, SBO: 256, Swizzle: Swizzle32},
			{Start: 1024, LBO: 4096, SBO: 512, Swizzle: Swizzle64},
			{Start: 1056, LBO: 4096, SBO: 1024, Swizzle: Swizzle128},
			{Start: 1024, LBO: 4096, SBO: 1024, Swizzle: Swizzle128},
		} {
			seen := map[uint32]bool{}
			for mn := uint32(0); mn < 64; mn += 8 {
				for i, at := range d.Group(major, mn, 0) {
					require.False(t, seen[at], "two chunks at one address")
					seen[at] = true
					for e := range uint32(8) {
						row, k := mn+uint32(i/2), uint32(i%2*8)+e
						if major == MNMajor {
							row, k = mn+e, uint32(i)
						}
						require.Equal(t, d.Address(major, row, k), at+2*e, "%v %v", major, d)
					}
				}
			}
		}
	}
}

func TestDescriptorErrors(t *testing.T) {
	for bit := range 64 {
		_, err := DecodeMatrixDescriptor(1 << bit)
		reserved := bit == 14 || bit == 15 || bit == 30 || bit == 31 || bit >= 46 && bit <= 48 || bit >= 52 && bit <= 61
		if reserved {
			assert.ErrorContains(t, err, "reserved bits", "bit %d", bit)
		} else {
			assert.NoError(t, err, "bit %d", bit)
		}
	}
	tests := []struct {
		d     MatrixDescriptor
		major Major
		mn    uint32
		want  string
	}{
		{MatrixDescriptor{Start: 0x470, Swizzle: Swizzle128}, KMajor, 64, "run past its 128 bytes"},
		{MatrixDescriptor{Start: 0x410, Swizzle: Swizzle32}, KMajor, 64, "run past its 32 bytes"},
		{MatrixDescriptor{Start: 0x440, Swizzle: Swizzle128}, MNMajor, 64, "64 elements from start 0x440"},
		{MatrixDescriptor{Start: 0x400, BaseOffset: 1, Swizzle: Swizzle128}, KMajor, 64, "base offset 1 is not emulated"},
	}
	for _, c := range tests {
		assert.ErrorContains(t, c.d.Check(c.major, c.mn), c.want)
	}
	assert.NoError(t, MatrixDescriptor{Start: 0x480, Swizzle: Swizzle128}.Check(KMajor, 64))
	assert.NoError(t, MatrixDescriptor{Start: 0x440, Swizzle: Swizzle128}.Check(MNMajor, 32))
	assert.NoError(t, MatrixDescriptor{Start: 0x470}.Check(KMajor, 64))
}

func TestFragments(t *testing.T) {
	row, col := AccumulatorPosition(77, 6)
	assert.Equal(t, [2]int{43, 10}, [2]int{row, col})
	const n = 256
	seen := map[[2]int]bool{}
	for thread := range 128 {
		for i := range n / 2 {
			row, col := AccumulatorPosition(thread, i)
			require.True(t, row < 64 && col < n)
			seen[[2]int{row, col}] = true
			// Columns 16q to 16q+15 of the accumulator, packed in pairs, are A of k step q.
			q := i / 8
			arow, k := APosition(thread, i%8/2, i&1, 2)
			require.Equal(t, [2]int{row, col}, [2]int{arow, 16*q + k})
		}
	}
	require.Len(t, seen, 64*n)
}

// TestStoreMatrixMatchesAccumulator checks an epilogue with stmatrix.x4, which stores four packed
// registers of a block of 16 columns. Lane l gives the address of row 16w + (l&7) + 8*(m&1) and
// chunk 2q + (m>>1), where w is the warp, m the matrix (l/8) and q the block.
func TestStoreMatrixMatchesAccumulator(t *testing.T) {
	for lane := range 32 {
		for j := range 4 {
			for half := range 2 {
				wantRow, wantCol := AccumulatorPosition(lane, 2*j+half)
				r, c := MatrixPosition(lane, half, false)
				source := MatrixRowLane(j, r)
				m := source >> 3
				require.Equal(t, [2]int{wantRow, wantCol}, [2]int{source&7 + 8*(m&1), 8*(m>>1) + c})
				tr, tc := MatrixPosition(lane, half, true)
				require.Equal(t, [2]int{c, r}, [2]int{tr, tc})
			}
		}
	}
}
