package emu

import (
	"strings"

	"sonicmoe/ptx/emu/internal/causal"
	"sonicmoe/ptx/emu/layout"
	"sonicmoe/ptx/isa"
)

// This file executes the instructions with which a kernel builds a tensor map in memory, field by
// field, from 128 zero bytes or from another map. Each change counts as a write of the whole map. A
// copy that uses a map in global memory reads the map through the tensormap proxy, so
// fence.proxy.tensormap must order the changes before the copy.

// mapBytes returns the tensor map at the address of operand o, which must be the same in all given
// lanes. The lanes read the map, or write it if writes is true.
func (w *warp) mapBytes(in *inst, o *operand, space isa.Space, lanes uint32, writes bool) []byte {
	l := first(lanes)
	if !inSharedSpace(space) {
		at := w.address64(o, l)
		if at&windowMask == sharedWindow {
			return w.sharedMap(in, uint32(at), lanes, writes)
		}
		if b := w.cta.cluster.globalBytes(at, layout.TensorMapBytes); b != nil && at%64 == 0 {
			w.touchMap(in, at, lanes, writes, false)
			return b
		}
		w.fault(in, OutOfBounds, 1<<l, "%s: tensor map at %#x, want 128 bytes of memory at a multiple of 64", in.form.Op, at)
	}
	return w.sharedMap(in, w.shared32(o, l), lanes, writes)
}

// touchMap looks for races of an access to a map in global memory. asMap states that a copy uses
// the map. Otherwise an instruction reads or writes the map's bytes.
func (w *warp) touchMap(in *inst, at uint64, lanes uint32, writes, asMap bool) {
	r := w.cta.cluster.races
	if r == nil {
		return
	}
	a := r.own(w, in, writes)
	a.asMap = asMap
	r.cl.grid.races.Lock()
	defer r.cl.grid.races.Unlock()
	r.start(lanes)
	w.deny(in, lanes, r.touchGlobal(a, at, layout.TensorMapBytes))
}

func (w *warp) sharedMap(in *inst, at uint32, lanes uint32, writes bool) []byte {
	c, offset := w.sharedOf(in, isa.Shared, at, first(lanes))
	w.deny(in, lanes, c.shared.checkRead(offset, layout.TensorMapBytes, 64))
	if r := w.cta.cluster.races; r != nil {
		a := r.ordinary(w, in, writes)
		r.start(lanes)
		p := r.touch(a, c, offset, layout.TensorMapBytes)
		if p != nil && p.kind == Race && !writes && r.someLane(a, c, offset, lanes) {
			p.severity = Note
		}
		w.deny(in, lanes, p)
	}
	return c.shared.bytes[offset : offset+layout.TensorMapBytes]
}

// someLane reports whether a map's earlier writes are ordered before the read of one of the lanes. A
// warp copies a map with one instruction that waits for all lanes. By the manual this orders no
// memory, but compilers (Triton) rely on it.
func (r *races) someLane(a *access, c *cta, offset, lanes uint32) bool {
	for l := range lanesIn(lanes) {
		if r.start(1 << l); r.touch(a, c, offset, layout.TensorMapBytes) == nil {
			return true
		}
	}
	return false
}

// replaceInMap executes tensormap.replace.
func replaceInMap(w *warp, in *inst, mask uint32) {
	last := len(in.args) - 1
	field := strings.TrimPrefix(in.mod("field"), ".")
	for l := range lanesIn(mask) {
		b := w.mapBytes(in, &in.args[0], in.space, 1<<l, true)
		value := uint64(in.args[last].imm)
		if in.args[last].bank != bankNone {
			value = w.elem(&in.args[last], in.args[last].slot, l)
		}
		dimension := 0
		if last == 2 {
			dimension = int(in.args[1].imm)
		}
		if why := layout.ReplaceField(b, field, dimension, value); why != "" {
			w.fault(in, IllegalDescriptor, 1<<l, "tensormap.replace: %s", why)
		}
	}
	w.cta.cluster.progress()
}

// copyMap executes tensormap.cp_fenceproxy: the whole warp copies one map to global memory.
func copyMap(w *warp, in *inst, mask uint32) {
	if in.args[2].imm != layout.TensorMapBytes {
		w.fault(in, IllegalInstruction, mask, "tensormap.cp_fenceproxy of %d bytes, want 128", in.args[2].imm)
	}
	from := w.mapBytes(in, &in.args[1], isa.Shared, mask, false)
	copy(w.mapBytes(in, &in.args[0], isa.Global, mask, true), from)
	releaseMaps(w, in, mask)
}

// releaseMaps is the release half of fence.proxy.tensormap, which follows ordinary writes to a map.
// acquireMaps is the acquire half, which precedes the map's use.
func releaseMaps(w *warp, in *inst, mask uint32) {
	if r := w.cta.cluster.races; r != nil {
		r.each(w, (*causal.Knowledge).ReleaseMaps)
	}
	fence(w, in, mask)
}

func acquireMaps(w *warp, in *inst, mask uint32) {
	fence(w, in, mask)
	if r := w.cta.cluster.races; r != nil {
		r.each(w, (*causal.Knowledge).AcquireMaps)
	}
}
