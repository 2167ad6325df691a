package emu

import (
	"encoding/binary"
	"hash/crc32"
	"strings"

	"sonicmoe/ptx/isa"
)

// Tensor maps that kernels build in memory, from 128 zero bytes or from another map, field by
// field. Each change counts as a write of the whole map. A copy with a map in global memory
// reads the map through a proxy of its own, so fence.proxy.tensormap must order the changes
// before it.

// mapElements maps the numbers of .elemtype to element types. Other types are for maps that no
// emulated instruction uses.
var mapElements = map[uint64]ElemType{0: ElemU8, 1: ElemU16, 2: ElemU32, 3: ElemS32, 6: ElemF16, 7: ElemF32, 10: ElemBF16}

// mapBytes returns the map at an instruction's address in the first of lanes, which read or
// write it.
func (w *warp) mapBytes(in *inst, o *operand, space isa.Space, lanes uint32, writes bool) []byte {
	l := first(lanes)
	if !inSharedSpace(space) {
		at := w.address64(o, l)
		if at&windowMask == sharedWindow {
			return w.sharedMap(in, uint32(at), lanes, writes)
		}
		if b := w.cta.cluster.globalBytes(at, TensorMapBytes); b != nil && at%64 == 0 {
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
	if p := r.touchGlobal(a, at, TensorMapBytes); p != nil {
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
	p := c.shared.checkRead(offset, TensorMapBytes, 64)
	if r := w.cta.cluster.races; r != nil && p == nil {
		r.start(lanes)
		p = r.touch(r.ordinary(w, in, writes), c, offset, TensorMapBytes)
	}
	if p != nil {
		w.deny(in, lanes, p)
		return nil
	}
	return c.shared.bytes[offset : offset+TensorMapBytes]
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
		if why := replaceField(b, field, dimension, value); why != "" {
			return w.fault(in, IllegalDescriptor, 1<<l, "tensormap.replace: %s", why)
		}
	}
	w.cta.cluster.progress()
	return next
}

// replaceField changes a field of an encoded map, or says why it cannot.
func replaceField(b []byte, field string, dimension int, value uint64) string {
	le := binary.LittleEndian
	switch isNew := strings.Trim(string(b), "\x00") == ""; {
	case isNew:
		copy(b, tensorMapMagic)
		b[tmRank] = 1
	case string(b[:len(tensorMapMagic)]) != tensorMapMagic:
		return "the 128 bytes are not a tensor map, want zeros or a map"
	}
	if dimension < 0 || dimension > 4 || field == "global_stride" && dimension > 3 {
		return "dimension is out of range, want 0 to 4, or 0 to 3 for a stride"
	}
	switch field {
	case "global_address":
		le.PutUint64(b[tmAddress:], value)
	case "rank":
		b[tmRank] = byte(min(value, 254) + 1)
	case "box_dim":
		le.PutUint16(b[tmBox+2*dimension:], uint16(min(value, 1<<16-1)))
	case "global_dim":
		le.PutUint32(b[tmDims+4*dimension:], uint32(value)-1)
	case "global_stride":
		le.PutUint64(b[tmStrides+8*dimension:], value)
	case "elemtype":
		b[tmElem] = byte(mapElements[value])
	case "swizzle_mode":
		b[tmSwizzle] = byte(min(value, 255))
	case "element_stride":
		if value != 1 {
			return "element strides other than 1 are not emulated"
		}
	default: // interleave_layout and fill_mode
		if value != 0 {
			return "a " + field + " other than 0 is not emulated"
		}
	}
	le.PutUint32(b[tmChecksum:], crc32.ChecksumIEEE(b[:tmChecksum]))
	return ""
}

// copyMap is tensormap.cp_fenceproxy: the warp as a whole copies a map to global memory.
func copyMap(w *warp, f *frag, in *inst, mask uint32) outcome {
	if in.args[2].imm != TensorMapBytes {
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
		r.each(w, (*knowledge).releaseMaps)
	}
	return fence(w, f, in, mask)
}

func acquireMaps(w *warp, f *frag, in *inst, mask uint32) outcome {
	out := fence(w, f, in, mask)
	if r := w.cta.cluster.races; r != nil {
		r.each(w, (*knowledge).acquireMaps)
	}
	return out
}
