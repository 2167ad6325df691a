package pipeline_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/jit/internal/probe"
	"sonicmoe/jit/pipeline"
	"sonicmoe/ptx"
)

const (
	chunkWords = pipeline.WarpgroupThreads
	chunkBytes = 4 * chunkWords
)

// moverKernel returns a kernel in which a producer warpgroup copies n chunks through a ring to two
// consumer warpgroups. One of them adds 1 to the words of a chunk, the other adds 2. Both store
// their results. With hold, a consumer releases a stage only after it has read the next one.
func moverKernel(stages int, hold bool) (*ptx.Kernel, int) {
	k := ptx.NewKernel("k")
	k.SetLaunchBounds(3*pipeline.WarpgroupThreads, 1)
	in, out, n := k.ParamPtr("in"), k.ParamPtr("out"), k.ParamU32("n")
	tid := k.TidX()
	cta := pipeline.NewCTA(k)
	const warps = 8
	ring := cta.Ring("chunks", stages, chunkBytes, 1, warps)
	cta.Ready(tid)
	produce := func() {
		k.If(tid.EqI(2*pipeline.WarpgroupThreads), func() {
			at := ring.Producer()
			k.For(ptx.Uint(0), n, ptx.Uint(1), func(i ptx.U32) {
				s := at.Acquire()
				k.MbarrierArriveExpectTx(s.Full, ptx.Uint(chunkBytes))
				k.BulkLoad(s.Data, in.Index(i, chunkBytes), ptx.Uint(chunkBytes), s.Full)
				at.Advance()
			})
		})
	}
	consume := func() {
		at, held := ring.Consumer(), pipeline.NewPendingRelease(k)
		thread, leader := tid.AndI(127), tid.AndI(31).EqI(0)
		// Each warpgroup of each CTA stores n chunks, one after the other.
		part := k.CtaidX().MulI(2).Add(tid.ShrI(7))
		to := out.Index(part.Mul(n), chunkBytes).Index(thread, 4)
		k.For(ptx.Uint(0), n, ptx.Uint(1), func(i ptx.U32) {
			s := at.Wait()
			v := ptx.LdShared[ptx.U32](s.Data.Plus(thread.ShlI(2)))
			ptx.StGlobal(to.Index(i, chunkBytes), v.Add(tid.ShrI(7)).AddI(1))
			k.BarWarpSync(ptx.Uint(ptx.FullMask))
			if hold {
				k.Guarded(leader.And(i.NeI(0)), func() { held.Stage().Release(k) })
				held.Set(s)
			} else {
				k.Guarded(leader, func() { s.Release(k) })
			}
			at.Advance()
		})
	}
	pipeline.Run(k, tid.ShrI(7),
		pipeline.Role{Name: "consume", First: 0, Count: 2, Body: consume},
		pipeline.Role{Name: "produce", First: 2, Count: 1, Body: produce},
	)
	return k, k.SharedBytes()
}

// TestRing checks that a ring of any depth passes a sequence of chunks on unchanged, under every
// timing of copies.
func TestRing(t *testing.T) {
	for _, c := range []struct {
		stages int
		hold   bool
	}{{1, false}, {2, false}, {3, false}, {4, false}, {7, false}, {2, true}, {5, true}} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			k, shared := moverKernel(c.stages, c.hold)
			p := probe.New(t, k, 3*pipeline.WarpgroupThreads, shared)
			for _, n := range []int{0, 1, 2, 3, 7, 8, 23} {
				in := make([]uint32, n*chunkWords)
				for i := range in {
					in[i] = uint32(i * 2654435761)
				}
				for _, timing := range probe.Timings() {
					const ctas = 2
					out := p.Room(2 * ctas * len(in))
					p.Run(timing, ctas, p.Words(in...), out, n)
					for i, got := range p.Read(out, 2*ctas*len(in)) {
						if want := in[i%len(in)] + 1 + uint32(i/len(in)%2); got != want {
							require.Equal(t, want, got, "%d chunks, word %d, %s", n, i, timing.Name)
						}
					}
				}
			}
		})
	}
}

// TestRoles checks that each warpgroup executes exactly its role, even if a role has several
// warpgroups.
func TestRoles(t *testing.T) {
	for name, roles := range map[string][]pipeline.Role{
		"one":              {{First: 0, Count: 4}},
		"two":              {{First: 0, Count: 3}, {First: 3, Count: 1}},
		"three":            {{First: 1, Count: 2}, {First: 0, Count: 1}, {First: 3, Count: 1}},
		"last ones before": {{First: 2, Count: 2}, {First: 0, Count: 2}},
	} {
		t.Run(name, func(t *testing.T) {
			const threads = 4 * pipeline.WarpgroupThreads
			k := ptx.NewKernel("k")
			k.SetLaunchBounds(threads, 1)
			out := k.ParamPtr("out")
			tid := k.TidX()
			want := make([]uint32, threads)
			for i := range roles {
				roles[i].Name = fmt.Sprint(i)
				roles[i].Body = func() { k.RedGlobalAdd(out.Index(tid, 4), ptx.Uint(1+i)) }
				for wg := range roles[i].Count {
					for thread := range pipeline.WarpgroupThreads {
						want[(roles[i].First+wg)*pipeline.WarpgroupThreads+thread] = uint32(1 + i)
					}
				}
			}
			pipeline.Run(k, tid.ShrI(7), roles...)
			p := probe.New(t, k, threads, 0)
			for _, timing := range probe.Timings() {
				at := p.Words(make([]uint32, threads)...)
				p.Run(timing, 1, at)
				require.Equal(t, want, p.Read(at, threads), timing.Name)
			}
		})
	}
}

// TestShared checks that allocations of shared memory are aligned, do not overlap, and are counted.
func TestShared(t *testing.T) {
	k := ptx.NewKernel("k")
	out := k.ParamPtr("out")
	cta := pipeline.NewCTA(k)
	wants := []struct{ bytes, align, at int }{
		{8, 8, 0}, {4, 4, 8}, {16, 16, 16}, {1, 1, 32}, {1024, 1024, 1024}, {8, 8, 2048}, {100, 128, 2176},
	}
	for i, w := range wants {
		at := cta.Shared(fmt.Sprint("part", i), w.bytes, w.align)
		ptx.StGlobal(out.At(4*i), at.Addr().Sub(k.SharedBase().Addr()))
	}
	require.Equal(t, 2276, k.SharedBytes())
	p := probe.New(t, k, 32, k.SharedBytes())
	to := p.Room(len(wants))
	p.Run(probe.Timings()[0], 1, to)
	for i, got := range p.Read(to, len(wants)) {
		require.Equal(t, uint32(wants[i].at), got)
	}
}
