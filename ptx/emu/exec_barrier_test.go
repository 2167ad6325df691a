package emu

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestBarrierCountsLateLanes checks that barrier.sync waits for a lane that reaches it after the
// other lanes of its warp, as in a barrier of cooperative groups: lane 0 of warp 0 first waits for
// a flag that lane 0 of warp 1 sets late. All threads then read what lane 0 of warp 0 wrote before
// the barrier.
func TestBarrierCountsLateLanes(t *testing.T) {
	const code = `
	ld.param.u64 %d0, [out];
	mov.u32 %r0, %tid.x;
	setp.ne.u32 %p0, %r0, 0;
	@%p0 bra others;
again:
	ld.acquire.gpu.global.u32 %r1, [%d0];
	setp.eq.u32 %p1, %r1, 0;
	@%p1 bra again;
	st.global.u32 [%d0+4], 5;
	bra both;
others:
	setp.ne.u32 %p2, %r0, 32;
	@%p2 bra both;
	mov.u32 %r3, 5000;
later:
	sub.u32 %r3, %r3, 1;
	setp.ne.u32 %p3, %r3, 0;
	@%p3 bra later;
	red.release.gpu.global.add.u32 [%d0], 1;
both:
	barrier.sync 0;
	ld.global.u32 %r2, [%d0+4];
	add.u64 %d1, %d0, 8;
	mad.wide.u32 %d1, %r0, 4, %d1;
	st.global.u32 [%d1], %r2;`
	p := assemble(t, body(code), "k")
	p.launch.Block, p.launch.Races = [3]int{64}, true
	out := p.u32s(make([]uint32, 66)...)
	p.params(out, 0)
	eachTiming(t, func(t *testing.T, timing Timing, seed uint64) {
		p.launch.Timing, p.launch.Seed = timing, seed
		require.NoError(t, p.mem.Write(out, make([]byte, 4*66)))
		require.NoError(t, p.run())
		for i, v := range p.read(out, 66)[2:] {
			assert.Equal(t, uint32(5), v, "thread %d", i)
		}
	})
}
