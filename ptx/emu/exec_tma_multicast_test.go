package emu

import (
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/ptx"
	"sonicmoe/ptx/emu/layout"
)

// multicastKernel returns a kernel for a cluster of two CTAs. Each CTA loads one half of a tile
// into both CTAs, with the given CTA mask; then both CTAs write what they received. The leader also
// copies a word to the peer through shared memory.
func multicastKernel(mask int, fence bool) *ptx.Kernel {
	k := ptx.NewKernel("k")
	k.SetLaunchBounds(32, 1)
	k.SetCluster(2)
	m, out := k.ParamTensorMap("m"), k.ParamPtr("out")
	smem := k.SharedBase()
	const half = 8 * 16 // 8 rows of 4 words
	tile, note, bar := smem, smem.At(2*half), smem.At(2*half+32)
	tid, rank := k.TidX(), k.ClusterCtarank()
	first := tid.EqI(0)
	k.If(first, func() {
		k.MbarrierInit(bar, ptx.Uint(1))
		k.MbarrierInit(bar.At(8), ptx.Uint(1))
		k.FenceMbarrierInit()
	})
	k.ClusterArrive()
	k.ClusterWait()
	k.If(first, func() {
		k.MbarrierArriveExpectTx(bar, ptx.Uint(2*half))
		k.TMALoadMulticast(tile.Plus(rank.MulI(half)), m, bar, ptx.Uint(mask).B16(), ptx.Uint(0), rank.MulI(8))
		k.If(rank.EqI(0), func() {
			ptx.StShared(note, ptx.Uint(7), ptx.Uint(8), ptx.Uint(9), ptx.Uint(10))
			if fence {
				k.FenceProxyAsync(".shared::cta")
			}
			for r := range 2 {
				there := func(s ptx.Shared) ptx.Shared { return ptx.SharedAt(s.Addr().MapaI(r)) }
				k.MbarrierArriveExpectTxCluster(there(bar.At(8)), ptx.Uint(16))
				k.BulkCopyCluster(there(note.At(16)), note, ptx.Uint(16), there(bar.At(8)))
			}
		})
	})
	for i := range 2 {
		k.Loop(func() { k.BreakIf(k.MbarrierTryWaitParity(bar.At(8*i), ptx.Uint(0))) })
	}
	at := out.Index(k.CtaidX(), 4*66)
	ptx.StGlobal(at.Index(tid, 8), ptx.LdSharedVec[ptx.U32](tile.Plus(tid.MulI(8)), 2)...)
	k.If(first, func() { ptx.StGlobal(at.At(4*64), ptx.LdShared[ptx.U32](note.At(16+12))) })
	k.ClusterArrive()
	k.ClusterWait()
	return k
}

func runMulticast(t *testing.T, mask int, fence bool, timing Timing, seed uint64) ([]uint32, error) {
	p := build(t, multicastKernel(mask, fence))
	words := make([]uint32, 64)
	for i := range words {
		words[i] = uint32(1000 + i)
	}
	from, to := p.u32s(words...), p.u32s(make([]uint32, 2*66)...)
	p.params(layout.TensorMap{Elem: layout.ElemU32, Rank: 2, Address: from, Dims: [5]uint64{4, 16}, Strides: [4]uint64{16}, Box: [5]uint32{4, 8}}, to)
	p.launch.Grid, p.launch.Block, p.launch.Cluster, p.launch.SharedBytes = [3]int{2}, [3]int{32}, [3]int{2}, 512
	p.launch.Timing, p.launch.Seed = timing, seed
	err := p.run()
	return p.read(to, 2*66), err
}

// TestMulticast checks that a multicast load and a copy into the peer's shared memory arrive in
// both CTAs, under every timing.
func TestMulticast(t *testing.T) {
	eachTiming(t, func(t *testing.T, timing Timing, seed uint64) {
		got, err := runMulticast(t, 3, true, timing, seed)
		require.NoError(t, err)
		for cta := range 2 {
			for i := range 64 {
				require.EqualValues(t, 1000+i, got[66*cta+i], "CTA %d word %d", cta, i)
			}
			require.EqualValues(t, 10, got[66*cta+64], "the note in CTA %d", cta)
		}
	})
}

func TestMulticastFaults(t *testing.T) {
	_, err := runMulticast(t, 5, true, Early, 1)
	require.ErrorContains(t, err, "CTA mask is 0x5, want some of the 2 CTAs")
	_, err = runMulticast(t, 1, true, Early, 1)
	require.ErrorContains(t, err, "no warp can run", "CTA 1 lacks its bytes")
	_, err = runMulticast(t, 3, false, Early, 1)
	require.ErrorContains(t, err, "fence.proxy.async", "a copy of what was just stored")
}

// TestMulticastIntoAnExitedCTA checks that a load into a CTA that has exited is a fault: its shared
// memory may belong to another CTA.
func TestMulticastIntoAnExitedCTA(t *testing.T) {
	k := ptx.NewKernel("k")
	k.SetLaunchBounds(32, 1)
	k.SetCluster(2)
	m := k.ParamTensorMap("m")
	smem := k.SharedBase()
	tid, rank := k.TidX(), k.ClusterCtarank()
	k.If(tid.EqI(0), func() {
		k.MbarrierInit(smem.At(512), ptx.Uint(1))
		k.FenceMbarrierInit()
	})
	k.ClusterArrive()
	k.ClusterWait()
	k.If(rank.EqI(0).And(tid.EqI(0)), func() {
		counter := ptx.NewVar(k, ptx.Uint(0))
		k.Loop(func() { // when this loop ends, the other CTA has exited
			counter.Set(counter.Get().AddI(1))
			k.BreakIf(counter.Get().EqI(5000))
		})
		k.MbarrierArriveExpectTx(smem.At(512), ptx.Uint(128))
		k.TMALoadMulticast(smem, m, smem.At(512), ptx.Uint(3).B16(), ptx.Uint(0), ptx.Uint(0))
	})
	p := build(t, k)
	from := p.u32s(make([]uint32, 64)...)
	p.params(layout.TensorMap{Elem: layout.ElemU32, Rank: 2, Address: from, Dims: [5]uint64{4, 16}, Strides: [4]uint64{16}, Box: [5]uint32{4, 8}})
	p.launch.Grid, p.launch.Block, p.launch.Cluster, p.launch.SharedBytes = [3]int{2}, [3]int{32}, [3]int{2}, 1024
	require.ErrorContains(t, p.run(), "CTA 1 of the cluster has exited")
}
