package emu_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver/emulated"
	"sonicmoe/driver/gpu"
	"sonicmoe/ptx/emu/layout"
)

// sparseTile has what a tile needs in addition if A is sparse.
type sparseTile struct {
	chunk    int // number of elements of a row that 4 bits of metadata describe
	bits     int // bits of an element
	lanes    int // in each group of four lanes, the number of lanes that provide metadata
	selector int
	// nibbles lists the values of a chunk's 4 bits that the manual defines.
	nibbles []uint32
}

var (
	orderedNibbles = []uint32{0b0100, 0b1000, 0b1001, 0b1100, 0b1101, 0b1110}
	allNibbles     = append([]uint32{0b0001, 0b0010, 0b0110, 0b0011, 0b0111, 0b1011}, orderedNibbles...)
	tf32Nibbles    = []uint32{0b0100, 0b1110}
)

// share returns how many times more elements a row has than A keeps: 2, or 1 for a dense product.
func (s *sparseTile) share() int {
	if s == nil {
		return 1
	}
	return 2
}

// operands returns the PTX text of the metadata operands: register and selector.
func (s *sparseTile) operands() string {
	if s == nil {
		return ""
	}
	return fmt.Sprintf(", %%e, %d", s.selector)
}

// draw returns a random word of valid metadata.
func (s *sparseTile) draw(r *rand.Rand) (word uint32) {
	if s == nil {
		return 0
	}
	for i := range 8 {
		word |= s.nibbles[r.IntN(len(s.nibbles))] << (4 * i)
	}
	return word
}

// place returns the thread that holds the metadata of a chunk of a row, and the first bit in its
// word, after the manual's figures. A word has the metadata of 8 chunks. For elements of up to a
// byte, all 8 chunks belong to one row: even lanes hold rows 0 to 7 of a warp, odd lanes rows 8 to
// 15. For wider elements, the lower half of a word belongs to one of rows 0 to 7, the upper half to
// one of rows 8 to 15.
func (s *sparseTile) place(row, chunk int) (thread, bit int) {
	thread = row/16*32 + row%8*4 + s.selector*s.lanes
	if s.bits <= 8 {
		return thread + row/8%2 + chunk/8*2, chunk % 8 * 4
	}
	return thread + chunk/4, row/8%2*16 + chunk%4*4
}

// pick returns the elements of a column of B, b, that the elements of a row of A multiply.
func pick[T any](s *sparseTile, metadata []byte, row int, b []T) (picked []T) {
	if s == nil {
		return b
	}
	for chunk := range len(b) / s.chunk {
		thread, bit := s.place(row, chunk)
		nibble := binary.LittleEndian.Uint32(metadata[4*thread:]) >> bit & 15
		of := b[chunk*s.chunk:][:s.chunk]
		switch s.chunk {
		case 2: // each index picks one half of the chunk: elements 0 and 1, or elements 2 and 3
			picked = append(picked, of[nibble&3/2])
		case 4:
			picked = append(picked, of[nibble&3], of[nibble>>2])
		case 8:
			picked = append(picked, of[nibble&3*2], of[nibble&3*2+1], of[nibble>>2*2], of[nibble>>2*2+1])
		}
	}
	return picked
}

// sparsely returns the product of type t with a sparse A. A fills the same registers or bytes as in
// the dense product.
func sparsely(t tileType, selector int, ordered bool) tileType {
	s := &sparseTile{chunk: 4, bits: 8 * t.a.bytes(), selector: selector, nibbles: allNibbles}
	t.version = "8.5"
	old, sp := "mma.sync", "mma.sp.sync"
	if ordered {
		sp, s.nibbles = "mma.sp::ordered_metadata.sync", orderedNibbles
	}
	if t.registersB == 0 {
		old, sp = "mma_async", "mma_async.sp"
	} else {
		t.registersB = t.registersA
	}
	if t.a == tf32 {
		s.chunk, s.nibbles = 2, tf32Nibbles
	}
	t.sparse = s
	k := t.depth()
	s.lanes = k / s.chunk / 4
	t.op = strings.Replace(strings.Replace(t.op, old, sp, 1), fmt.Sprintf("k%d.", k/2), fmt.Sprintf("k%d.", k), 1)
	t.name = strings.Replace(strings.Replace(t.name, "mma", "mma.sp", 1), fmt.Sprintf("k%d.", k/2), fmt.Sprintf("k%d.", k), 1)
	t.name += fmt.Sprintf(" selector %d", selector)
	if ordered {
		t.name += " ordered"
	}
	return t
}

func sparseTiles() (list []tileType) {
	for _, t := range denseTiles {
		switch {
		case strings.HasPrefix(t.name, "wgmma"):
			list = append(list, sparsely(t, 0, false))
			if t.a.bytes() > 1 {
				list = append(list, sparsely(t, 1, false))
			}
		case t.a.bytes() == 1 && !t.a.integer():
			if t.registersA == 4 && !t.halves {
				list = append(list, sparsely(t, 0, false), sparsely(t, 0, true))
			}
		case t.registersA == 4 && t.a.bytes() == 1:
			list = append(list, sparsely(t, 0, true), sparsely(saturating(t), 0, false))
		case t.registersA == 4 || t.a.bytes() == 1:
			list = append(list, sparsely(t, 0, false), sparsely(t, 1, true))
		default:
			list = append(list, sparsely(t, 0, false), sparsely(t, 1, true), sparsely(t, 2, true), sparsely(t, 3, false))
		}
	}
	return list
}

// one returns the bits of an element of value 1.
func (b bits) one() uint32 {
	if b.integer() {
		return 1
	}
	return uint32(1<<(b.exponent-1)-1) << b.fraction
}

// TestSparseMetadata checks that each 4 bits of metadata select the elements of the chunk and row
// that the manual says. There is one tile for each 4 bits of each thread. In it, all other metadata
// pick the first half of their chunk. In the second half of each chunk, the columns of B spell the
// chunk's number in binary.
func TestSparseMetadata(t *testing.T) {
	dev := eitherDevice(t, emulated.Options{})
	for _, ty := range sparseTiles() {
		t.Run(ty.name, func(t *testing.T) {
			s, size := ty.sparse, ty.a.bytes()
			const marked = 7 // in this column of B every element is 1
			element := func(one bool, b bits) []byte {
				x := uint32(0)
				if one {
					x = b.one()
				}
				return binary.LittleEndian.AppendUint32(nil, x)[:size]
			}
			var tile [tileBytes]byte
			for at := 0; at < bAt; at += size {
				copy(tile[at:], element(true, ty.a))
			}
			for k := range ty.depth() {
				for column := range marked + 1 {
					at := k*size/16*128 + column*16 + k*size%16 // byte offset at which tileType.operands reads the element
					if ty.registersB > 0 {
						at = k*size/16*128 + (column*4+k*size/4%4)*4 + k*size%4
					}
					bit := column == marked || k/s.chunk>>column&1 != 0
					copy(tile[bAt+at:], element(bit && k%s.chunk >= s.chunk/2, ty.b))
				}
			}
			threads := 8 // two groups of four threads; the lanes of a group provide metadata together
			if os.Getenv("SONICMOE_DEVICE") == "cuda" {
				threads = 128
			}
			const first, second = 0x4, 0xe
			var image []byte
			for thread := range threads {
				for nibble := range 8 {
					for i := range 128 {
						word := uint32(first * 0x11111111)
						if i == thread {
							word += (second - first) << (4 * nibble)
						}
						binary.LittleEndian.PutUint32(tile[metadataAt+4*i:], word)
					}
					image = append(image, tile[:]...)
				}
			}
			got := ty.run(t, dev, image, make([]byte, threads*8*tileSums*4))
			var wrong []string
			for at := range threads * 8 {
				var sums [64][8]bool
				for i := range tileSums {
					row, column := layout.AccumulatorPosition(i%128, i/128)
					sums[row][column] = got[at*tileSums+i] != 0
				}
				found, want := "", ""
				for row := range sums {
					if sums[row][marked] {
						chunk := 0
						for bit := range marked {
							if sums[row][bit] {
								chunk += 1 << bit
							}
						}
						found += fmt.Sprintf(" row %d chunk %d", row, chunk)
					}
					for chunk := range ty.depth() / s.chunk {
						if thread, bit := s.place(row, chunk); thread == at/8 && bit == at%8*4 {
							want += fmt.Sprintf(" row %d chunk %d", row, chunk)
						}
					}
				}
				if found != want {
					wrong = append(wrong, fmt.Sprintf("thread %d bit %d:%s, not%s", at/8, at%8*4, found, want))
				}
			}
			require.Empty(t, wrong[:min(len(wrong), 40)], "%d of %d places", len(wrong), threads*8)
		})
	}
}

// TestSparseLayouts checks the layouts of operands in shared memory, with every swizzle. B of a
// sparse product has twice the k extent of a dense one, in either major order; A has the same
// extent.
func TestSparseLayouts(t *testing.T) {
	dev := eitherDevice(t, emulated.Options{Races: true})
	const n, depth, bytes, base = 64, 32, 32 << 10, 0x400
	for _, s := range []layout.Swizzle{layout.SwizzleNone, layout.Swizzle32, layout.Swizzle64, layout.Swizzle128} {
		for majors := range 4 {
			of := [2]layout.Major{layout.Major(majors & 1), layout.Major(majors >> 1)}
			t.Run(fmt.Sprintf("%v %v %v", s, of[0], of[1]), func(t *testing.T) {
				r := rand.New(rand.NewPCG(4, uint64(majors)))
				memory := make([]byte, bytes)
				tile := func(start uint32, major layout.Major, rows, depth int) (uint64, [][]float32) {
					d := layout.MatrixDescriptor{Start: start, LBO: 2048, SBO: 256, Swizzle: s}
					if s != layout.SwizzleNone {
						d.LBO, d.SBO = 4096, s.Period()
					}
					list := make([][]float32, rows)
					for row := range list {
						for k := range depth {
							x := float32(r.IntN(17) - 8)
							list[row] = append(list[row], x)
							binary.LittleEndian.PutUint16(memory[d.Address(major, uint32(row), uint32(k))-base:], uint16(math.Float32bits(x)>>16))
						}
					}
					return d.Encode(), list
				}
				a, x := tile(base, of[0], 64, depth/2)
				b, y := tile(base+bytes/2, of[1], n, depth)
				tl := sparsely(wgmmaOf(bf16, bf16, false, ""), 1, false)
				var metadata []byte
				for range 128 {
					metadata = binary.LittleEndian.AppendUint32(metadata, tl.sparse.draw(r))
				}
				var sums []string
				for i := range n / 2 {
					sums = append(sums, fmt.Sprintf("%%f%d", i))
				}
				text := fmt.Sprintf(`.version 8.2
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 operands[];
.visible .entry tile(.param .u64 image, .param .u64 sums, .param .u64 a, .param .u64 b)
{
.reg .b32 %%t, %%i, %%at, %%x, %%e, %%off;
.reg .b64 %%image, %%sums, %%q, %%da, %%db, %%base;
.reg .f32 %%f<%d>;
.reg .pred %%p;
ld.param.u64 %%image, [image];
ld.param.u64 %%sums, [sums];
ld.param.u64 %%da, [a];
ld.param.u64 %%db, [b];
mov.u32 %%t, %%tid.x;
shl.b32 %%i, %%t, 2;
mov.u32 %%at, operands;
fill:
cvt.u64.u32 %%q, %%i;
add.u64 %%q, %%q, %%image;
ld.global.b32 %%x, [%%q];
add.u32 %%off, %%at, %%i;
st.shared.b32 [%%off], %%x;
add.u32 %%i, %%i, 512;
setp.lt.u32 %%p, %%i, %d;
@%%p bra fill;
mul.wide.u32 %%q, %%t, 4;
add.u64 %%sums, %%sums, %%q;
add.u64 %%q, %%q, %%image;
ld.global.b32 %%e, [%%q+%d];
fence.proxy.async.shared::cta;
bar.sync 0;
sub.u32 %%at, %%at, %d; // what the descriptors count from
shr.u32 %%at, %%at, 4;
cvt.u64.u32 %%base, %%at;
add.u64 %%da, %%da, %%base;
add.u64 %%db, %%db, %%base;
wgmma.fence.sync.aligned;
wgmma.mma_async.sp.sync.aligned.m64n%dk32.f32.bf16.bf16 {%s}, %%da, %%db, %%e, 1, 0, 1, 1, %d, %d;
wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 0;
`, n/2, bytes, bytes, base, n, strings.Join(sums, ", "), of[0], of[1])
				for i, f := range sums {
					text += fmt.Sprintf("st.global.f32 [%%sums+%d], %s;\n", 512*i, f)
				}
				text += "ret;\n}\n"
				bed := &bed{t, dev}
				out := bed.put(make([]byte, 4*64*n))
				params := binary.LittleEndian.AppendUint64(nil, uint64(bed.put(slices.Concat(memory, metadata))))
				for _, p := range []uint64{uint64(out), a, b} {
					params = binary.LittleEndian.AppendUint64(params, p)
				}
				bed.launch([]byte(text), "tile", gpu.Launch{Grid: gpu.Dim3{X: 1}, Block: gpu.Dim3{X: 128}, SharedBytes: bytes}, params)
				got := bed.get(out, 4*64*n)
				for thread := range 128 {
					for i := range n / 2 {
						row, column := layout.AccumulatorPosition(thread, i)
						want := float32(0)
						for k, b := range pick(tl.sparse, metadata, row, y[column]) {
							want += x[row][k] * b
						}
						require.Equal(t, want, math.Float32frombits(binary.LittleEndian.Uint32(got[512*i+4*thread:])), "row %d column %d", row, column)
					}
				}
			})
		}
	}
}
