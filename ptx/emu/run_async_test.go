package emu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/ptx"
	"sonicmoe/ptx/emu/internal/arith"
	"sonicmoe/ptx/emu/internal/mma"
	"sonicmoe/ptx/emu/layout"
)

// gemm is a kernel of two warpgroups. One thread of the first loads tiles of A and B into a ring by
// TMA; the second warpgroup multiplies them.
type gemm struct {
	n, stages int
	// noWait omits the wait for the tiles. noRelease omits the arrival that releases a stage.
	// bytesOff is added to the expected number of bytes.
	noWait, noRelease bool
	bytesOff          int
}

const (
	gemmDepth  = 64 // extent in k of a stage's tiles
	gemmABytes = wgmmaRows * gemmDepth * 2
)

func (g gemm) build(t testing.TB) *program {
	k := ptx.NewKernel("k")
	k.SetLaunchBounds(256, 2) // these bounds allow 128 registers for each thread
	mapA, mapB := k.ParamTensorMap("a"), k.ParamTensorMap("b")
	out, steps := k.ParamPtr("out"), k.ParamU32("steps")
	smem := k.SharedBase()
	bBytes := g.n * gemmDepth * 2
	stageBytes := gemmABytes + (bBytes+1023)/1024*1024
	bars := smem.At(g.stages * stageBytes)
	at := func(i ptx.U32) (tile, full, empty ptx.Shared, phase ptx.U32) {
		s := i.RemI(g.stages)
		full = bars.Plus(s.MulI(16))
		return smem.Plus(s.MulI(stageBytes)), full, full.At(8), i.DivI(g.stages).AndI(1)
	}
	wait := func(bar ptx.Shared, parity ptx.U32) {
		k.Loop(func() { k.BreakIf(k.MbarrierTryWaitParity(bar, parity)) })
	}
	tid := k.TidX()
	k.If(tid.Eq(ptx.Uint(0)), func() {
		for s := range g.stages {
			k.MbarrierInit(bars.At(16*s), ptx.Uint(1))
			k.MbarrierInit(bars.At(16*s+8), ptx.Uint(128))
		}
		k.FenceMbarrierInit()
	})
	k.BarSync(ptx.Uint(0))
	k.IfElse(tid.ShrI(7).Eq(ptx.Uint(0)), func() {
		k.SetMaxNReg(40, false)
		k.If(tid.Eq(ptx.Uint(0)), func() {
			k.For(ptx.Uint(0), steps, ptx.Uint(1), func(i ptx.U32) {
				tile, full, empty, phase := at(i)
				wait(empty, phase.Xor(ptx.Uint(1)))
				k.MbarrierArriveExpectTx(full, ptx.Uint(gemmABytes+bBytes+g.bytesOff))
				k.TMALoad(tile, mapA, full, i.MulI(gemmDepth), ptx.Uint(0))
				k.TMALoad(tile.At(gemmABytes), mapB, full, i.MulI(gemmDepth), ptx.Uint(0))
			})
		})
	}, func() {
		k.SetMaxNReg(216, true)
		acc := k.Accumulators(g.n / 2)
		k.For(ptx.Uint(0), steps, ptx.Uint(1), func(i ptx.U32) {
			tile, full, empty, phase := at(i)
			if !g.noWait {
				wait(full, phase)
			}
			k.WgmmaFence()
			for kk := range gemmDepth / 16 {
				keep := ptx.True()
				if kk == 0 {
					keep = i.Ne(ptx.Uint(0))
				}
				k.Wgmma(acc, swizzledDescriptor(tile.At(32*kk)), swizzledDescriptor(tile.At(gemmABytes+32*kk)), keep, false, false)
			}
			k.WgmmaCommit()
			k.WgmmaWait(0)
			if !g.noRelease {
				k.MbarrierArrive(empty)
			}
		})
		thread := tid.AndI(127)
		for i, v := range acc { // register i of all threads is stored contiguously
			ptx.StGlobal(out.Index(thread, 4).At(512*i), v)
		}
	})
	p := build(t, k)
	p.launch.Block, p.launch.SharedBytes = [3]int{256}, g.stages*(stageBytes+16)
	return p
}

// swizzledDescriptor returns the descriptor of a K-major tile with 128-byte swizzle.
func swizzledDescriptor(s ptx.Shared) ptx.U64 {
	return s.Addr().AndI(0x3ffff).ShrI(4).U64().Or(ptx.Long(1<<16 | 64<<32 | 1<<62))
}

// matrix creates a random bf16 matrix in memory. A box of the tensor map is several of its rows.
func (p *program) matrix(rng *rand.Rand, rows, cols int) ([]uint32, layout.TensorMap) {
	elems := make([]uint32, rows*cols)
	words := make([]uint32, len(elems)/2)
	for i := range elems {
		elems[i] = uint32(arith.BF16FromF32(math.Float32bits(rng.Float32()*2 - 1)))
		words[i/2] |= elems[i] << (i % 2 * 16)
	}
	return elems, layout.TensorMap{Elem: layout.ElemBF16, Rank: 2, Address: p.u32s(words...), Dims: [5]uint64{uint64(cols), uint64(rows)},
		Strides: [4]uint64{uint64(2 * cols)}, Box: [5]uint32{gemmDepth, uint32(rows)}, Swizzle: layout.Swizzle128}
}

// arguments creates the inputs for a number of k steps. It returns the address of the result, the
// product as the emulator adds it, and the exact product.
func (g gemm) arguments(p *program, steps int) (out uint64, want []uint32, exact []float64) {
	rng := rand.New(rand.NewPCG(9, uint64(g.n)))
	depth := steps * gemmDepth
	a, mapA := p.matrix(rng, wgmmaRows, depth)
	b, mapB := p.matrix(rng, g.n, depth)
	out = p.u32s(make([]uint32, wgmmaRows*g.n)...)
	p.params(mapA, mapB, out, steps)
	want, exact = make([]uint32, wgmmaRows*g.n), make([]float64, wgmmaRows*g.n)
	multiply(bf16Elements, want, a, b, depth)
	for i := range exact {
		for k := range depth {
			exact[i] += float64(arith.ToF32(arith.F32FromBF16(uint16(a[i/g.n*depth+k])))) * float64(arith.ToF32(arith.F32FromBF16(uint16(b[i%g.n*depth+k]))))
		}
	}
	return out, want, exact
}

// multiply adds A*B to acc. Rows of A and columns of B have depth elements each.
func multiply(f *mma.Format, acc []uint32, a, b []uint32, depth int) {
	n := len(b) / depth
	for k := 0; k < depth; k += layout.SlabDepth {
		for i := range acc {
			row, column := i/n*depth+k, i%n*depth+k
			acc[i] = mma.Dot(acc[i], a[row:row+layout.SlabDepth], b[column:column+layout.SlabDepth], f)
		}
	}
}

// check compares the results that the threads stored with the product.
func (g gemm) check(t *testing.T, p *program, out uint64, want []uint32, exact []float64) {
	got := p.read(out, wgmmaRows*g.n)
	for thread := range 128 {
		for i := range g.n / 2 {
			row, col := layout.AccumulatorPosition(thread, i)
			v := got[i*128+thread]
			require.Equal(t, want[row*g.n+col], v, "row %d column %d", row, col)
			require.InDelta(t, exact[row*g.n+col], float64(arith.ToF32(v)), 1e-4)
		}
	}
}

// TestPipeline checks that a ring of TMA loads that feeds wgmma gives the chip's bits under every
// timing.
func TestPipeline(t *testing.T) {
	for _, g := range []gemm{{n: 8, stages: 2}, {n: 64, stages: 3}} {
		p := g.build(t)
		out, want, exact := g.arguments(p, 7)
		eachTiming(t, func(t *testing.T, timing Timing, seed uint64) {
			p.launch.Timing, p.launch.Seed = timing, seed
			require.NoError(t, p.run())
			g.check(t, p, out, want, exact)
		})
	}
}

// TestPipelineFaults checks that a pipeline without a wait, without a release or with a wrong byte
// count is a fault.
func TestPipelineFaults(t *testing.T) {
	for _, c := range []struct {
		name     string
		g        gemm
		kind     FaultKind
		fragment string
		says     []string
	}{
		{"no wait for the tiles", gemm{n: 8, stages: 2, noWait: true}, UninitializedShared, "wgmma.mma_async", []string{"wgmma reads A"}},
		{"stages never given back", gemm{n: 8, stages: 2, noRelease: true}, Deadlock, "mbarrier.try_wait", []string{
			"warp 0 lane 0", "parity 1", "phase 0 lacks 128 of 128 arrivals", "warpgroup 1 (warps 4-7)", "parity 0", "smem + 18432 (0x4c00)", "async_test.go:"}},
		{"bytes expected that never come", gemm{n: 8, stages: 2, bytesOff: 16}, Deadlock, "mbarrier.arrive.expect_tx", []string{
			"warp 0 announced 9232 bytes with mbarrier.arrive.expect_tx", "brought 9216: announce 9216 bytes, or copy 16 more", "lacks 0 of 1 arrivals and 16 bytes"}},
		{"fewer bytes expected", gemm{n: 8, stages: 2, bytesOff: -16}, BarrierMisuse, "cp.async.bulk.tensor", []string{"expect_tx announced too few bytes"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := c.g.build(t)
			c.g.arguments(p, 7)
			p.launch.Timing = Late
			f := requireFault(t, p.run(), c.kind, string(p.text.PTX), c.fragment)
			for _, s := range c.says {
				require.Contains(t, f.Error(), s)
			}
		})
	}
}

// TestWgmmaLayouts multiplies one tile for each pair of major orders, each swizzle and both 16-bit
// element types. The test lays out shared memory by the rule of descriptors.
func TestWgmmaLayouts(t *testing.T) {
	const n = 32
	for _, s := range []layout.Swizzle{layout.SwizzleNone, layout.Swizzle32, layout.Swizzle64, layout.Swizzle128} {
		for majors := range 4 {
			t.Run(fmt.Sprintf("%v %d", s, majors), func(t *testing.T) {
				trans := [2]bool{majors&1 == 1, majors&2 == 2}
				for _, e := range []element{bf16Element, f16Element} {
					testLayout(t, e, s, trans, n)
				}
			})
		}
	}
}

// element is a 16-bit element type of wgmma.
type element struct {
	format  *mma.Format
	fromF32 func(uint32) uint32
	issue   func(k *ptx.Kernel, acc []ptx.F32, a, b ptx.U64, keep ptx.Pred, transA, transB bool)
}

var (
	bf16Element = element{bf16Elements, arith.BF16Nearest, (*ptx.Kernel).Wgmma}
	f16Element  = element{f16Elements, arith.F16Nearest, (*ptx.Kernel).WgmmaF16}
)

func testLayout(t *testing.T, e element, s layout.Swizzle, trans [2]bool, n int) {
	k := ptx.NewKernel("k")
	image, out := k.ParamPtr("image"), k.ParamPtr("out")
	descA, descB := k.ParamU64("a"), k.ParamU64("b")
	words := k.ParamU32("words")
	smem, tid := k.SharedBase(), k.TidX()
	k.For(tid, words, ptx.Uint(128), func(i ptx.U32) {
		ptx.StShared(smem.Plus(i.ShlI(2)), ptx.LdGlobal[ptx.U32](image.Index(i, 4)))
	})
	k.FenceProxyAsync(".shared::cta")
	k.BarSync(ptx.Uint(0))
	acc := k.Accumulators(n / 2)
	k.WgmmaFence()
	e.issue(k, acc, descA, descB, ptx.False(), trans[0], trans[1])
	k.WgmmaCommit()
	k.WgmmaWait(0)
	for i, v := range acc {
		ptx.StGlobal(out.Index(tid, 4).At(512*i), v)
	}
	p := build(t, k)

	const bytes, base = 32 << 10, 0x400
	rng := rand.New(rand.NewPCG(3, uint64(s)))
	memory := make([]uint32, bytes/4)
	tile := func(start uint32, major layout.Major, mn int) (uint64, []uint32) {
		d := layout.MatrixDescriptor{Start: start, LBO: 2048, SBO: 256, Swizzle: s}
		if s != layout.SwizzleNone {
			d.LBO, d.SBO = 4096, s.Period()
		}
		require.NoError(t, d.Check(major, uint32(mn)))
		elements := make([]uint32, mn*layout.SlabDepth)
		for i := range elements {
			elements[i] = e.fromF32(math.Float32bits(rng.Float32() - 0.5))
			at := d.Address(major, uint32(i/layout.SlabDepth), uint32(i%layout.SlabDepth)) - base
			memory[at/4] = memory[at/4]&^(0xffff<<(at%4*8)) | elements[i]<<(at%4*8)
		}
		return d.Encode(), elements
	}
	major := map[bool]layout.Major{false: layout.KMajor, true: layout.MNMajor}
	a, x := tile(base, major[trans[0]], wgmmaRows)
	b, y := tile(base+bytes/2, major[trans[1]], n)
	want := make([]uint32, wgmmaRows*n)
	multiply(e.format, want, x, y, layout.SlabDepth)
	o := p.u32s(make([]uint32, len(want))...)
	p.params(p.u32s(memory...), o, a, b, bytes/4)
	p.launch.Block, p.launch.SharedBytes = [3]int{128}, bytes
	require.NoError(t, p.run())
	got := p.read(o, len(want))
	for thread := range 128 {
		for i := range n / 2 {
			row, col := layout.AccumulatorPosition(thread, i)
			require.Equal(t, want[row*n+col], got[i*128+thread], "row %d column %d", row, col)
		}
	}
}

// TestCopyRing checks a ring of cp.async copies. Each thread copies 16 bytes per step, two groups
// ahead, and the sum of each step must be right. Even steps wait with wait_group, odd steps at an
// mbarrier. Sources shorter than 16 bytes are filled with zeros.
func TestCopyRing(t *testing.T) {
	const steps, threads = 9, 64
	k := ptx.NewKernel("k")
	in, out := k.ParamPtr("in"), k.ParamPtr("out")
	smem, tid := k.SharedBase(), k.TidX()
	bar := smem.At(3 * 1024)
	k.If(tid.Eq(ptx.Uint(0)), func() { k.MbarrierInit(bar, ptx.Uint(threads)) })
	k.BarSync(ptx.Uint(0))
	load := func(i int) {
		if i < steps {
			k.CpAsyncCG(smem.At(i%3*1024).Plus(tid.ShlI(4)), in.Index(tid, 16).At(i*16*threads), 16, ptx.Uint(16-4*(i%2)))
		}
		k.CpAsyncCommit()
	}
	load(0)
	load(1)
	for i := range steps {
		load(i + 2)
		if i%2 == 0 {
			k.CpAsyncWait(2)
			k.BarSync(ptx.Uint(0))
		} else {
			k.CpAsyncMbarrierArriveNoInc(bar)
			k.Loop(func() { k.BreakIf(k.MbarrierTryWaitParity(bar, ptx.Uint(i/2%2))) })
		}
		other := tid.Xor(ptx.Uint(threads - 1))
		v := ptx.LdSharedVec[ptx.U32](smem.At(i%3*1024).Plus(other.ShlI(4)), 4)
		ptx.StGlobal(out.Index(tid, 16).At(i*16*threads), v...)
		k.BarSync(ptx.Uint(0))
	}
	p := build(t, k)
	var words, want []uint32
	for i := range steps * threads * 4 {
		words = append(words, uint32(i*7+1))
	}
	for i := range words {
		step, thread, w := i/4/threads, i/4%threads, i%4
		v := words[(step*threads+(thread^(threads-1)))*4+w]
		if step%2 == 1 && w == 3 {
			v = 0
		}
		want = append(want, v)
	}
	a, o := p.u32s(words...), p.u32s(make([]uint32, len(words))...)
	p.params(a, o)
	p.launch.Block, p.launch.SharedBytes = [3]int{threads}, 4096
	eachTiming(t, func(t *testing.T, timing Timing, seed uint64) {
		p.launch.Timing, p.launch.Seed = timing, seed
		require.NoError(t, p.mem.Fill32(o, 0, int64(len(words))))
		require.NoError(t, p.run())
		require.Equal(t, want, p.read(o, len(want)))
	})
}

// TestTensorRoundTrip loads a box that exceeds its tensor on every side: bytes outside the tensor
// must become zero. It stores the box too: memory outside the tensor must not change.
func TestTensorRoundTrip(t *testing.T) {
	k := ptx.NewKernel("k")
	from, to := k.ParamTensorMap("from"), k.ParamTensorMap("to")
	x, y := k.ParamU32("x"), k.ParamU32("y")
	smem, tid := k.SharedBase(), k.TidX()
	bar := smem.At(4096)
	k.If(tid.Eq(ptx.Uint(0)), func() {
		k.MbarrierInit(bar, ptx.Uint(1))
		k.FenceMbarrierInit()
		k.PrefetchTensorMap(from)
		k.TMAPrefetch(from, x, y)
		k.MbarrierArriveExpectTx(bar, ptx.Uint(32*16*4))
		k.TMALoad(smem, from, bar, x, y)
		k.Loop(func() { k.BreakIf(k.MbarrierTryWaitParity(bar, ptx.Uint(0))) })
		k.TMAStore(to, smem, x, y)
		k.BulkCommit()
		k.BulkWait(0, ".read")
		k.BulkWait(0)
	})
	p := build(t, k)
	const rows, cols = 20, 40
	var words []uint32
	for i := range rows * cols {
		words = append(words, uint32(i+1))
	}
	m := layout.TensorMap{Elem: layout.ElemU32, Rank: 2, Address: p.u32s(words...), Dims: [5]uint64{cols, rows},
		Strides: [4]uint64{4 * cols}, Box: [5]uint32{32, 16}, Swizzle: layout.Swizzle128}
	p.launch.SharedBytes = 4096 + 8
	eachTiming(t, func(t *testing.T, timing Timing, seed uint64) {
		p.launch.Timing, p.launch.Seed = timing, seed
		for _, at := range [][2]int{{0, 0}, {4, 3}, {28, 10}, {24, 15}, {36, 19}, {100, 0}, {0, 20}} {
			var notes []string
			p.launch.GoOn = func(f *Fault) bool { notes = append(notes, f.Text); return f.Severity == Note }
			dst := m
			dst.Address = p.u32s(make([]uint32, len(words))...)
			p.params(m, dst, at[0], at[1])
			require.NoError(t, p.run())
			if at[0] < cols && at[1] < rows {
				require.Empty(t, notes, "%v", at)
			} else {
				require.Len(t, notes, 2, "%v: the load and the store", at)
				require.Regexp(t, "no element of the box is inside the tensor: coordinate (0 is 100, want -31 to 39|1 is 20, want -15 to 19)", notes[0])
			}
			for i, v := range p.read(dst.Address, len(words)) {
				row, col := i/cols-at[1], i%cols-at[0]
				want := uint32(0)
				if row >= 0 && row < 16 && col >= 0 && col < 32 {
					want = words[i]
				}
				require.Equal(t, want, v, "%v: row %d column %d", at, i/cols, i%cols)
			}
		}
	})
}
