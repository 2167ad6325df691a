package emu

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLongLoopIsNoCycle checks that a warp may compute for long while the other warp waits at a barrier.
// A round with a random order can give the computing warp no turn, so that its state stays the same.
func TestLongLoopIsNoCycle(t *testing.T) {
	p := assemble(t, body(`
	mov.u32 %r0, %tid.x;
	setp.lt.u32 %p0, %r0, 32;
	@%p0 bra meet;
	mov.u32 %r1, 20000;
again:
	sub.u32 %r1, %r1, 1;
	setp.ne.u32 %p1, %r1, 0;
	@%p1 bra again;
meet:
	bar.sync 0;`), "k")
	p.launch.Block = [3]int{64}
	p.params(p.u32s(0), 0)
	eachTiming(t, func(t *testing.T, timing Timing, seed uint64) {
		p.launch.Timing, p.launch.Seed = timing, seed
		require.NoError(t, p.run())
	})
}
