package emu

import (
	"fmt"
	"math"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// matrixProduct is the naive product of square matrices in global memory: each thread computes one
// element. Many warps read the same words, and no warp writes them.
const matrixProduct = `.version 8.0
.target sm_90a
.address_size 64
.visible .entry product(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)
{
	.reg .b32 %r<16>;
	.reg .f32 %f<4>;
	.reg .b64 %d<8>;
	.reg .pred %p<2>;
	ld.param.u64 %d0, [a];
	ld.param.u64 %d1, [b];
	ld.param.u64 %d2, [c];
	ld.param.u32 %r0, [n];
	mov.u32 %r1, %ctaid.x;
	mov.u32 %r2, %tid.x;
	shl.b32 %r1, %r1, 5;
	add.u32 %r3, %r1, %r2;
	mov.u32 %r4, %ctaid.y;
	mov.u32 %r5, %tid.y;
	shl.b32 %r4, %r4, 5;
	add.u32 %r6, %r4, %r5;
	mul.lo.u32 %r7, %r6, %r0;
	mul.wide.u32 %d3, %r7, 4;
	add.u64 %d0, %d0, %d3;
	mul.wide.u32 %d4, %r3, 4;
	add.u64 %d1, %d1, %d4;
	add.u64 %d2, %d2, %d3;
	add.u64 %d2, %d2, %d4;
	mul.wide.u32 %d5, %r0, 4;
	mov.f32 %f0, 0f00000000;
	mov.u32 %r8, 0;
loop:
	ld.global.f32 %f1, [%d0];
	ld.global.f32 %f2, [%d1];
	fma.rn.f32 %f0, %f1, %f2, %f0;
	add.u64 %d0, %d0, 4;
	add.u64 %d1, %d1, %d5;
	add.u32 %r8, %r8, 1;
	setp.lt.u32 %p0, %r8, %r0;
	@%p0 bra loop;
	st.global.f32 [%d2], %f0;
	ret;
}
`

// squares returns a launch of matrixProduct for n by n matrices of ones, and the address of the
// product.
func squares(t testing.TB, n int) (p *program, c uint64) {
	p = assemble(t, matrixProduct, "product")
	ones := make([]uint32, n*n)
	for i := range ones {
		ones[i] = math.Float32bits(1)
	}
	c = p.u32s(make([]uint32, n*n)...)
	p.params(p.u32s(ones...), p.u32s(ones...), c, n)
	p.launch.Grid, p.launch.Block, p.launch.Races = [3]int{n / 32, n / 32}, [3]int{32, 32}, true
	return p, c
}

// TestManyReaders checks that the race checks need little memory for words that many warps read and
// no warp writes.
func TestManyReaders(t *testing.T) {
	p, c := squares(t, 64)
	require.NoError(t, p.run()) // allocates what later launches use again
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	require.NoError(t, p.run())
	runtime.ReadMemStats(&after)
	assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(4<<20))
	for i, v := range p.read(c, 64*64) {
		require.Equal(t, float32(64), math.Float32frombits(v), "element %d", i)
	}
}

// BenchmarkRaces measures matrixProduct with and without race checks.
func BenchmarkRaces(b *testing.B) {
	for _, races := range []bool{false, true} {
		for _, n := range []int{64, 128, 256} {
			b.Run(fmt.Sprintf("races=%v/n=%d", races, n), func(b *testing.B) {
				p, _ := squares(b, n)
				p.launch.Races = races
				b.ReportAllocs()
				for b.Loop() {
					if err := p.run(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
