package tile_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/jit/internal/probe"
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
	"sonicmoe/ptx/emu/layout"
)

var early = probe.Timings()[0]

// element returns the address of a word in a swizzled tile: elements 2c and 2c+1 of a row.
func element(at ptx.Shared, row, c ptx.U32) ptx.Shared {
	return at.Plus(tile.Swizzled(row, c.ShrI(2))).Plus(c.AndI(3).ShlI(2))
}

// TestSwizzled compares Swizzled with the chip's 128-byte swizzle.
func TestSwizzled(t *testing.T) {
	const rows, chunks = 64, tile.RowBytes / 16
	k := ptx.NewKernel("k")
	out := k.ParamPtr("out")
	tid := k.TidX()
	ptx.StGlobal(out.Index(tid, 4), tile.Swizzled(tid.ShrI(3), tid.AndI(7)))
	p := probe.New(t, k, rows*chunks, 0)
	at := p.Room(rows * chunks)
	p.Run(early, 1, at)
	seen := map[uint32]bool{}
	for i, got := range p.Read(at, rows*chunks) {
		require.Equal(t, layout.Swizzle128.Apply(uint32(i*16)), got, "row %d chunk %d", i/chunks, i%chunks)
		require.False(t, seen[got], "two chunks at %d", got)
		seen[got] = true
	}
}

// TestDescriptor checks that a descriptor has the right swizzle mode and no reserved bit, and that
// it starts at the right address: at the first column of the given step, in the given row.
func TestDescriptor(t *testing.T) {
	const tiles = 5
	steps := []struct{ i, row int }{{0, 0}, {1, 0}, {2, 0}, {3, 0}, {0, 64}, {3, 64}, {1, 8}}
	k := ptx.NewKernel("k")
	out := k.ParamPtr("out")
	for n := range tiles {
		d := tile.NewDescriptor(k, k.SharedBase().At(n*40<<10))
		for i, s := range steps {
			lo, hi := d.Step(s.i, s.row).Unpack()
			ptx.StGlobal(out.At(8*(n*len(steps)+i)), lo, hi)
		}
	}
	p := probe.New(t, k, 32, tiles*40<<10)
	at := p.Room(2 * tiles * len(steps))
	p.Run(early, 1, at)
	words := p.Read(at, 2*tiles*len(steps))
	first, err := layout.DecodeMatrixDescriptor(uint64(words[1])<<32 | uint64(words[0]))
	require.NoError(t, err)
	require.Zero(t, first.Start%1024, "dynamic shared memory starts on 1024 bytes")
	for i := range tiles * len(steps) {
		got, err := layout.DecodeMatrixDescriptor(uint64(words[2*i+1])<<32 | uint64(words[2*i]))
		require.NoError(t, err)
		s := steps[i%len(steps)]
		require.Equal(t, layout.MatrixDescriptor{
			Start: first.Start + uint32(i/len(steps)*40<<10+s.row*tile.RowBytes+s.i*tile.KStep*2),
			LBO:   16, SBO: 8 * tile.RowBytes, Swizzle: layout.Swizzle128,
		}, got, "tile %d step %+v", i/len(steps), s)
	}
}

// TestDescriptorMN does the same as TestDescriptor for MN-major tiles.
func TestDescriptorMN(t *testing.T) {
	steps := []struct{ i, row int }{{0, 0}, {1, 0}, {3, 0}, {0, 64}, {2, 192}}
	k := ptx.NewKernel("k")
	out := k.ParamPtr("out")
	d := tile.NewDescriptorMN(k, k.SharedBase().At(40<<10))
	for i, s := range steps {
		lo, hi := d.Step(s.i, s.row).Unpack()
		ptx.StGlobal(out.At(8*i), lo, hi)
	}
	p := probe.New(t, k, 32, 80<<10)
	at := p.Room(2 * len(steps))
	p.Run(early, 1, at)
	words := p.Read(at, 2*len(steps))
	var first uint32
	for i, s := range steps {
		got, err := layout.DecodeMatrixDescriptor(uint64(words[2*i+1])<<32 | uint64(words[2*i]))
		require.NoError(t, err)
		if i == 0 {
			first = got.Start
		}
		require.Equal(t, layout.MatrixDescriptor{
			Start: first + uint32(s.row/tile.Block*tile.BlockBytes+s.i*tile.KStep*tile.RowBytes),
			LBO:   tile.BlockBytes, SBO: 8 * tile.RowBytes, Swizzle: layout.Swizzle128,
		}, got, "step %+v", s)
	}
}

// product returns a kernel that computes A·Bᵀ for one 64-deep tile, with 128 rows of A and n rows
// of B. It fills the tiles word by word through Swizzled, multiplies through descriptors, and
// stores through Fragment. Each of two warpgroups takes 64 rows. The two elements of a word of B
// are neighbours in k or, if B is MN-major, in n.
func product(of tile.Element, n int, bMN bool) *ptx.Kernel {
	const threads, words = 256, tile.K / 2
	k := ptx.NewKernel("k")
	k.SetLaunchBounds(threads, 1)
	a, b, out := k.ParamPtr("a"), k.ParamPtr("b"), k.ParamPtr("out")
	tid := k.TidX()
	aAt := k.SharedBase()
	bAt := aAt.At(128 * tile.RowBytes)
	fill := func(to ptx.Shared, from ptx.Global, rows int) {
		k.For(tid, ptx.Uint(rows*words), ptx.Uint(threads), func(i ptx.U32) {
			ptx.StShared(element(to, i.DivI(words), i.RemI(words)), ptx.LdGlobal[ptx.U32](from.Index(i, 4)))
		})
	}
	fill(aAt, a, 128)
	newB := tile.NewDescriptor
	if bMN {
		newB = tile.NewDescriptorMN
		for block := range n / tile.Block {
			fill(bAt.At(block*tile.BlockBytes), b.At(block*tile.BlockBytes), tile.K)
		}
	} else {
		fill(bAt, b, n)
	}
	k.FenceProxyAsync(".shared::cta")
	k.BarSync(ptx.Uint(0))
	wg := tid.ShrI(7)
	acc := k.Accumulators(n / 2)
	store := func(first int) {
		da, db := tile.NewDescriptor(k, aAt), newB(k, bAt)
		k.WgmmaFence()
		for i := range tile.K / tile.KStep {
			scale := ptx.True()
			if i == 0 {
				scale = ptx.False()
			}
			of.Wgmma(k, acc, da.Step(i, first), db.Step(i, 0), scale, false, bMN)
		}
		k.WgmmaCommit()
		k.WgmmaWait(0)
		f := tile.NewFragment(tid.AndI(127))
		for i, v := range acc {
			row := f.Row.AddI(first + i/2%2*8)
			ptx.StGlobal(out.Index(row.MulI(n).Add(f.Column).AddI(i/4*8+i%2), 4), v)
		}
	}
	k.IfElse(wg.EqI(0), func() { store(0) }, func() { store(64) })
	return k
}

// format is an element format, with a function that rounds a number to it.
type format struct {
	name    string
	element tile.Element
	bits    func(float32) uint16
}

var formats = []format{
	{"bf16", tile.BF16, func(x float32) uint16 { return nearest(x, 16, 0) }},
	{"fp16", tile.F16, func(x float32) uint16 { return nearest(x, 13, 127-15) }},
}

// nearest rounds 0 or a normal number to the format. The format's fraction has `shorter` fewer bits
// than FP32's, and its exponent bias is smaller by `less`.
func nearest(x float32, shorter, less uint32) uint16 {
	bits := math.Float32bits(x)
	sign, magnitude := uint16(bits>>16)&0x8000, bits&math.MaxInt32
	if magnitude == 0 {
		return sign
	}
	return sign | uint16((magnitude+1<<(shorter-1)-1+magnitude>>shorter&1)>>shorter-less<<(23-shorter))
}

// pair packs two small integers of the format into a word.
func (f format) pair(lo, hi int) uint32 {
	return uint32(f.bits(float32(lo))) | uint32(f.bits(float32(hi)))<<16
}

// TestLayoutsMultiply checks that Swizzled, Descriptor and Fragment agree with each other and with
// wgmma: used together, they must give a matrix product.
func TestLayoutsMultiply(t *testing.T) {
	a := func(row, k int) int { return (row*7+k*3+row*k)%11 - 5 }
	b := func(row, k int) int { return (row*5+k*k)%13 - 6 }
	words := func(of format, rows int, v func(row, k int) int) (list []uint32) {
		for row := range rows {
			for k := 0; k < tile.K; k += 2 {
				list = append(list, of.pair(v(row, k), v(row, k+1)))
			}
		}
		return list
	}
	blocks := func(of format, n int) (list []uint32) { // one block for each 64 rows; a block has, for each k, the elements of its rows
		for i := range n * tile.K / 2 {
			row, k := i/(tile.K*32)*64+i%32*2, i/32%tile.K
			list = append(list, of.pair(b(row, k), b(row+1, k)))
		}
		return list
	}
	for _, c := range []struct {
		of format
		n  int
		mn bool
	}{{formats[0], 8, false}, {formats[0], 64, false}, {formats[0], 72, false}, {formats[0], 256, false},
		{formats[0], 64, true}, {formats[0], 128, true}, {formats[0], 192, true}, {formats[0], 256, true},
		{formats[1], 72, false}, {formats[1], 192, true}} {
		n := c.n
		t.Run(fmt.Sprintf("%s N=%d MN-major B %v", c.of.name, n, c.mn), func(t *testing.T) {
			bWords := words(c.of, n, b)
			if c.mn {
				bWords = blocks(c.of, n)
			}
			p := probe.New(t, product(c.of.element, n, c.mn), 256, (128+n)*tile.RowBytes)
			for _, timing := range probe.Timings() {
				out := p.Room(128 * n)
				p.Run(timing, 1, p.Words(words(c.of, 128, a)...), p.Words(bWords...), out)
				for i, bits := range p.Read(out, 128*n) {
					var want int
					for k := range tile.K {
						want += a(i/n, k) * b(i%n, k)
					}
					if got := math.Float32frombits(bits); got != float32(want) {
						require.Equal(t, float32(want), got, "row %d column %d, %s", i/n, i%n, timing.Name)
					}
				}
			}
		})
	}
}

// TestStaging checks that Staging writes the rounded values at the offsets of Swizzled. A
// transposed staging writes columns as rows.
func TestStaging(t *testing.T) {
	for _, of := range formats {
		t.Run(of.name, func(t *testing.T) {
			testStaging(t, of, tile.NewStaging, func(line, i int) int { return 64*line + i })
		})
		t.Run(of.name+" transposed", func(t *testing.T) {
			testStaging(t, of, tile.NewTransposedStaging, func(line, i int) int { return 64*i + line })
		})
	}
}

// TestElement checks for each instruction of a format that values out of range become infinite, and
// that representable values are kept.
func TestElement(t *testing.T) {
	for _, tt := range []struct {
		of     tile.Element
		number float32
		bits   uint32
		wide   float32
	}{
		{tile.BF16, 1 + 0x1p-8, 0x3f80, 1}, // ties to even
		{tile.BF16, 65520, 0x4780, 65536},
		{tile.BF16, math.MaxFloat32, 0x7f80, float32(math.Inf(1))},
		{tile.F16, 1 + 0x1p-8, 0x3c04, 1 + 0x1p-8},
		{tile.F16, 65519, 0x7bff, 65504},
		{tile.F16, 65520, 0x7c00, float32(math.Inf(1))},
		{tile.F16, 0x1p-24, 1, 0x1p-24},
		{tile.F16, 0x1.8p-25, 1, 0x1p-24},
		{tile.F16, 0x1p-25, 0, 0},
	} {
		k := ptx.NewKernel("k")
		out, v := k.ParamPtr("out"), ptx.Materialize(k, ptx.Float(float64(tt.number)))
		word := tt.of.Pack(k, v, v.Neg())
		lo, hi := tt.of.Unpack(word)
		one := tt.of.Round(v)
		got := []ptx.U32{word, lo.Bits(), hi.Bits(), one.U32(), tt.of.Wide(one).Bits(), tt.of.Upper(one.U32().ShlI(16)).Bits()}
		for i, w := range got {
			ptx.StGlobal(out.At(4*i), w)
		}
		p := probe.New(t, k, 1, 0)
		at := p.Room(len(got))
		p.Run(early, 1, at)
		wide := math.Float32bits(tt.wide)
		require.Equal(t, []uint32{tt.bits | (tt.bits|0x8000)<<16, wide, wide | 1<<31, tt.bits, wide, wide}, p.Read(at, len(got)), "%v %g", tt.of, tt.number)
	}
}

// testStaging checks that the sub-tile that a Staging writes has the value want(l, i) at element i
// of row l.
func testStaging(t *testing.T, of format, newStaging func(*ptx.Kernel, tile.Element, ptx.U32) tile.Staging, want func(line, i int) int) {
	const threads, words = 128, 32
	k := ptx.NewKernel("k")
	k.SetLaunchBounds(threads, 1)
	out := k.ParamPtr("out")
	tid := k.TidX()
	f := tile.NewFragment(tid)
	staging := newStaging(k, of.element, tid)
	acc := make([]ptx.F32, 32)
	for i := range acc {
		// The value is 64·row + column, plus a fraction that rounding removes.
		at := f.Row.AddI(i / 2 % 2 * 8).MulI(64).Add(f.Column).AddI(i/4*8 + i%2)
		acc[i] = at.F32().Mul(ptx.Float(1 + 0x1p-20))
	}
	slot := k.SharedBase().At(tile.StagingBytes)
	staging.Store(slot, acc)
	k.BarSync(ptx.Uint(0))
	k.For(tid, ptx.Uint(64*words), ptx.Uint(threads), func(i ptx.U32) {
		ptx.StGlobal(out.Index(i, 4), ptx.LdShared[ptx.U32](element(slot, i.DivI(words), i.RemI(words))))
	})
	p := probe.New(t, k, threads, 2*tile.StagingBytes)
	at := p.Room(64 * words)
	p.Run(early, 1, at)
	nearest := func(i int) uint32 { return uint32(of.bits(float32(i) * (1 + 0x1p-20))) }
	for i, got := range p.Read(at, 64*words) {
		line, first := i/words, 2*i%64
		require.Equal(t, nearest(want(line, first))|nearest(want(line, first+1))<<16, got, "line %d elements %d and next", line, first)
	}
}

// TestWarpStaging checks that WarpStaging loads and stores fragments at the offsets of the chip's
// 64-byte swizzle, for rows of 32 elements.
func TestWarpStaging(t *testing.T) {
	const threads, words, rows = 32, 16, 16
	k := ptx.NewKernel("k")
	k.SetLaunchBounds(threads, 1)
	in, out := k.ParamPtr("in"), k.ParamPtr("out")
	lane := k.TidX()
	staging := tile.NewWarpStaging(k, lane)
	from, to := k.SharedBase(), k.SharedBase().At(tile.WarpStagingBytes)
	k.For(lane, ptx.Uint(rows*words), ptx.Uint(threads), func(i ptx.U32) {
		ptx.StShared(from.Plus(i.ShlI(2)), ptx.LdGlobal[ptx.U32](in.Index(i, 4)))
	})
	k.BarSync(ptx.Uint(0))
	f := tile.NewFragment(lane)
	loaded := staging.Load(from)
	for i, w := range loaded {
		at := f.Row.AddI(i % 2 * 8).MulI(words).Add(f.Column.ShrI(1)).AddI(4 * (i / 2))
		ptx.StGlobal(out.Index(at, 4), w)
	}
	staging.Store(to, loaded)
	k.BarSync(ptx.Uint(0))
	k.For(lane, ptx.Uint(rows*words), ptx.Uint(threads), func(i ptx.U32) {
		ptx.StGlobal(out.Index(i, 4).At(4*rows*words), ptx.LdShared[ptx.U32](to.Plus(i.ShlI(2))))
	})
	p := probe.New(t, k, threads, 2*tile.WarpStagingBytes)
	var stored, plain []uint32 // the words in the order of shared memory, and in the order of the matrix
	for i := range uint32(rows * words) {
		plain = append(plain, i*3+1)
	}
	for i := range uint32(rows * words) {
		stored = append(stored, plain[layout.Swizzle64.Apply(4*i)/4])
	}
	at := p.Room(2 * rows * words)
	p.Run(early, 1, p.Words(stored...), at)
	require.Equal(t, plain, p.Read(at, rows*words), "fragments loaded")
	require.Equal(t, stored, p.Read(at+4*rows*words, rows*words), "fragments stored")
}

// TestChunkOf compares ChunkOf with a division of 64-bit numbers, also for chunks with numbers above
// 2^32.
func TestChunkOf(t *testing.T) {
	const threads = 256
	ctas := []uint32{0, 1, 2, 3, 6, 7, 8, 44, 45, 46, 1 << 24, 1<<25 + 1, 1<<26 + 12345}
	for _, ofRow := range []int{2, 4, 6, 128, 254, 256, 360, 512, 896, 1024, 1 << 17} {
		k := ptx.NewKernel("k")
		numbers, out := k.ParamPtr("numbers"), k.ParamPtr("out")
		row, chunk := tile.ChunkOf(ptx.LdGlobal[ptx.U32](numbers.Index(k.CtaidX(), 4)), k.TidX(), threads, ofRow)
		ptx.StGlobal(out.Index(k.CtaidX().MulI(threads).Add(k.TidX()), 8), row, chunk)
		p := probe.New(t, k, threads, 0)
		at := p.Room(2 * threads * len(ctas))
		p.Run(early, len(ctas), p.Words(ctas...), at)
		got := p.Read(at, 2*threads*len(ctas))
		for i := range threads * len(ctas) {
			n := uint64(ctas[i/threads])*threads + uint64(i%threads)
			require.Equal(t, []uint32{uint32(n / uint64(ofRow)), uint32(n % uint64(ofRow))}, got[2*i:2*i+2], "chunk %d of rows of %d chunks", n, ofRow)
		}
	}
}
