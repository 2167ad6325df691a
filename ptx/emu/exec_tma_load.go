package emu

import (
	"iter"

	"sonicmoe/ptx/emu/layout"
	"sonicmoe/ptx/isa"
)

// bulkLoad is a bulk copy into shared memory that is in flight.
type bulkLoad struct {
	warp   *warp
	in     *inst
	lane   int
	order  uint64
	to     *cta   // destination CTA
	dst    uint32 // offset of the destination in the shared memory of the destination CTA
	size   uint32
	bar    uint32 // offset of the mbarrier in the shared memory of the destination CTA
	src    uint64 // source of a copy without a tensor map: a global address, or an offset in the shared memory of the source CTA
	from   *cta   // source CTA, or nil if the source is global memory
	tensor *layout.TensorMap
	coords []int32
	data   []byte // values that st.async and red.async write; nil for a copy from memory
	again  bool   // the load is the part of a multicast for one CTA, and the part for a CTA of lower rank reads the same bytes
	// accesses lists the accesses that the race checks have recorded.
	accesses []*access
}

func tmaLoad(w *warp, in *inst, mask uint32) {
	for l := range lanesIn(mask) {
		c, at := w.sharedOf(in, isa.SharedCluster, w.shared32(&in.args[0], l), l)
		tensor, coords := w.box(in, &in.args[1], l, at, false)
		b := &bulkLoad{warp: w, in: in, lane: l, to: c, dst: at, size: tensor.BoxBytes(), tensor: tensor, coords: coords}
		w.startLoad(b, w.shared32(&in.args[2], l))
	}
}

func bulkLoadExec(w *warp, in *inst, mask uint32) {
	for l := range lanesIn(mask) {
		c, at := w.sharedOf(in, isa.SharedCluster, w.shared32(&in.args[0], l), l)
		b := &bulkLoad{warp: w, in: in, lane: l, to: c, dst: at, src: w.address64(&in.args[1], l), size: w.r32[in.slot[2]][l]}
		if b.size%16 != 0 || b.src%16 != 0 || b.dst%16 != 0 {
			w.fault(in, Misaligned, 1<<l, "bulk copy of %d bytes from %#x to shared %#x, want multiples of 16 in all three", b.size, b.src, b.dst)
		}
		w.startLoad(b, w.shared32(&in.args[3], l))
	}
}

// startLoad checks destination and mbarrier, and queues the load.
func (w *warp) startLoad(b *bulkLoad, at uint32) {
	if b.size == 0 {
		return
	}
	if c := w.cta.cluster.counter; c != nil && b.data == nil {
		c.load(b)
	}
	bar := w.mbarrierAt(b.in, isa.SharedCluster, at, 1<<b.lane)
	if r := w.cta.cluster.races; r != nil {
		w.deny(b.in, 1<<b.lane, r.bulkLoad(b, bar, at))
	}
	align := uint32(16)
	if b.data != nil {
		align = b.size
	}
	w.deny(b.in, 1<<b.lane, b.to.shared.check(b.dst, b.size, align))
	fenced := uint64(0) // only a proxy fence by the destination's CTA can cover the destination
	if b.to == w.cta {
		fenced = w.latestFence(1 << b.lane)
	}
	if b.data == nil {
		w.deny(b.in, 1<<b.lane, b.to.shared.proxy.check("overwrites", b.dst, b.size, fenced))
	}
	if int(at>>sharedRankBit) != b.to.rank {
		w.fault(b.in, BarrierMisuse, 1<<b.lane, "%s: the data goes to CTA %d but mbarrier %#x is in CTA %d, want one CTA", b.in.form.Op, b.to.rank, at, at>>sharedRankBit)
	}
	b.bar = at & sharedOffset
	cl := w.cta.cluster
	cl.order++
	b.order = cl.order
	b.to.trace.load(b)
	if cl.grid.launch.Timing == Early {
		b.complete()
		return
	}
	cl.loads = append(cl.loads, b)
	cl.issued(b)
}

// global returns n bytes of global memory, which the load reads. It is a fault if they are not
// allocated.
func (b *bulkLoad) global(at uint64, n uint32) []byte {
	cl := b.warp.cta.cluster
	from := cl.globalBytes(at, uint64(n))
	if from == nil {
		b.warp.fault(b.in, OutOfBounds, 1<<b.lane, "%s: %s", b.in.form.Op, cl.grid.explain(at, uint64(n)))
	}
	return from
}

// complete moves the bytes and signals the mbarrier.
func (b *bulkLoad) complete() {
	cl, s := b.warp.cta.cluster, b.to.shared
	switch {
	case b.in.atomic:
		b.warp.deny(b.in, 1<<b.lane, s.checkRead(b.dst, b.size, 1))
		n := int(b.in.size)
		writeWord(s.bytes[b.dst:], n, b.in.op64(readWord(s.bytes[b.dst:], n), readWord(b.data, n), 0))
	case b.data != nil:
		copy(s.bytes[b.dst:], b.data)
	case b.from != nil:
		copy(s.bytes[b.dst:][:b.size], b.from.shared.bytes[b.src:])
	case b.tensor == nil:
		copy(s.bytes[b.dst:][:b.size], b.global(b.src, b.size))
	default:
		b.tensor.Rows(b.coords, b.dst, func(r *layout.BoxRow) bool {
			var from []byte
			if r.Lo < r.Hi {
				from = b.global(r.Global+uint64(r.Lo), r.Hi-r.Lo)
			}
			r.Load(s.bytes, from, b.tensor.Swizzle)
			return true
		})
	}
	s.markWritten(b.dst, b.size)
	if b.data == nil {
		s.proxy.replaced(b.dst, b.size)
	} else {
		s.proxy.wrote(b.dst, b.size, b.warp.id*warpLanes+b.lane)
	}
	b.to.trace.ends(b)
	bar, err := s.mbar.at(b.bar)
	if err == nil {
		bar.now = note(bar.now, arrival{b.warp, b.in})
		if r := cl.races; r != nil {
			r.completes(b, bar)
		}
		phase := bar.phase
		err = bar.completeTx(b.size)
		b.to.usesBarrier(mbarrierObject, uint64(b.bar), toArrive, phase, bar.phase != phase, nil)
	}
	if err != nil {
		b.warp.barrierError(b.in, b.lane, b.bar, err)
	}
	cl.event()
}

// runs returns the contiguous pieces in which a load reads global memory.
func (b *bulkLoad) runs() iter.Seq[layout.Run] {
	if b.tensor != nil {
		return b.tensor.Runs(b.coords, b.dst)
	}
	return func(yield func(layout.Run) bool) {
		yield(layout.Run{Global: b.src, Shared: b.dst, Bytes: b.size, InBounds: true})
	}
}
