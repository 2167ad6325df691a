package emu

import (
	"strings"

	"sonicmoe/ptx/emu/internal/causal"
	"sonicmoe/ptx/emu/layout"
	"sonicmoe/ptx/isa"
)

// Tensor maps that kernels build in memory, from 128 zero bytes or from another map, field by
// field. Each change counts as a write of the whole map. A copy with a map in global memory
// reads the map through a proxy of its own, so fence.proxy.tensormap must order the changes
// before it.

// mapBytes returns the map at an instruction's address in the first of lanes, which read or
// write it.
func (w *warp) mapBytes(in *inst, o *operand, space isa.Space, lanes uint32, writes bool) []byte {
	l := first(lanes)
	if !inSharedSpace(space) {
		at := w.address64(o, l)
		if at&windowMask == sharedWindow {
			return w.sharedMap(in, uint32(at), lanes, writes)
		}
		if b := w.cta.cluster.globalBytes(at, layout.TensorMapBytes); b != nil && at%64 == 0 {
			if w.touchMap(in, at, lanes, writes, false) == failed {
				return nil
			}
			return b
		}
		w.fault(in, OutOfBounds, 1<<l, "%s: tensor map at %#x, want 128 bytes of memory at a multiple of 64", in.form.Op, at)
		return nil
	}
	return w.sharedMap(in, w.shared32(o, l), lanes, writes)
}

// touchMap looks for races of an access to a map in global memory.
func (w *warp) touchMap(in *inst, at uint64, lanes uint32, writes, asMap bool) outcome {
	r := w.cta.cluster.races
	if r == nil {
		return next
	}
	a := r.ordinary(w, in, writes)
	a.asMap = asMap
	r.cl.grid.races.Lock()
	defer r.cl.grid.races.Unlock()
	r.start(lanes)
	if p := r.touchGlobal(a, at, layout.TensorMapBytes); p != nil {
		return w.deny(in, lanes, p)
	}
	return next
}

func (w *warp) sharedMap(in *inst, at uint32, lanes uint32, writes bool) []byte {
	l := first(lanes)
	c, offset, ok := w.sharedOf(in, isa.Shared, at, l)
	if !ok {
		return nil
	}
	p := c.shared.checkRead(offset, layout.TensorMapBytes, 64)
	if r := w.cta.cluster.races; r != nil && p == nil {
		r.start(lanes)
		p = r.touch(r.ordinary(w, in, writes), c, offset, layout.TensorMapBytes)
	}
	if p != nil {
		w.deny(in, lanes, p)
		return nil
	}
	return c.shared.bytes[offset : offset+layout.TensorMapBytes]
}

// replaceInMap is tensormap.replace.
func replaceInMap(w *warp, _ *frag, in *inst, mask uint32) outcome {
	last := len(in.args) - 1
	field := strings.TrimPrefix(in.mod("field"), ".")
	for m := mask; m != 0; m &= m - 1 {
		l := first(m)
		b := w.mapBytes(in, &in.args[0], in.space, 1<<l, true)
		if b == nil {
			return failed
		}
		value := uint64(in.args[last].imm)
		if in.args[last].bank != bankNone {
			value = w.elem(&in.args[last], in.args[last].slot, l)
		}
		dimension := 0
		if last == 2 {
			dimension = int(in.args[1].imm)
		}
		if why := layout.ReplaceField(b, field, dimension, value); why != "" {
			return w.fault(in, IllegalDescriptor, 1<<l, "tensormap.replace: %s", why)
		}
	}
	w.cta.cluster.progress()
	return next
}

// copyMap is tensormap.cp_fenceproxy: the warp as a whole copies a map to global memory.
func copyMap(w *warp, f *frag, in *inst, mask uint32) outcome {
	if in.args[2].imm != layout.TensorMapBytes {
		return w.fault(in, IllegalInstruction, mask, "tensormap.cp_fenceproxy of %d bytes, want 128", in.args[2].imm)
	}
	from, to := w.mapBytes(in, &in.args[1], isa.Shared, mask, false), []byte(nil)
	if from != nil {
		to = w.mapBytes(in, &in.args[0], isa.Global, mask, true)
	}
	if to == nil {
		return failed
	}
	copy(to, from)
	return releaseMaps(w, f, in, mask)
}

// releaseMaps is the release fence between ordinary writes to a map and its use; acquireMaps is
// the acquire fence.
func releaseMaps(w *warp, f *frag, in *inst, mask uint32) outcome {
	if r := w.cta.cluster.races; r != nil {
		r.each(w, (*causal.Knowledge).ReleaseMaps)
	}
	return fence(w, f, in, mask)
}

func acquireMaps(w *warp, f *frag, in *inst, mask uint32) outcome {
	out := fence(w, f, in, mask)
	if r := w.cta.cluster.races; r != nil {
		r.each(w, (*causal.Knowledge).AcquireMaps)
	}
	return out
}
