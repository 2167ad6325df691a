package emu

import "encoding/binary"

// loadLanes loads an element of the given size for each lane of mask. Lane l loads from
// mem[w.offsets[l]] into operand d.
func (w *warp) loadLanes(mem []byte, d *operand, size int, mask uint32) {
	if size == 4 && mask == fullMask {
		switch list := d.list; len(list) {
		case 1:
			r := &w.r32[list[0]]
			for l := range r {
				r[l] = binary.LittleEndian.Uint32(mem[w.offsets[l]:])
			}
			return
		case 2:
			r0, r1 := &w.r32[list[0]], &w.r32[list[1]]
			for l := range r0 {
				v := binary.LittleEndian.Uint64(mem[w.offsets[l]:])
				r0[l], r1[l] = uint32(v), uint32(v>>32)
			}
			return
		case 4:
			r0, r1, r2, r3 := &w.r32[list[0]], &w.r32[list[1]], &w.r32[list[2]], &w.r32[list[3]]
			for l := range r0 {
				b := (*[16]byte)(mem[w.offsets[l]:])
				v0, v1 := binary.LittleEndian.Uint64(b[:]), binary.LittleEndian.Uint64(b[8:])
				r0[l], r1[l], r2[l], r3[l] = uint32(v0), uint32(v0>>32), uint32(v1), uint32(v1>>32)
			}
			return
		}
	}
	for i, slot := range d.list {
		for l := range lanesIn(mask) {
			w.setElem(d, slot, l, readWord(mem[w.offsets[l]+uint64(i*size):], size))
		}
	}
}

// storeLanes stores an element of the given size for each lane of mask. Lane l stores operand v to
// mem[w.offsets[l]]. If several lanes store to one address, the last lane wins.
func (w *warp) storeLanes(mem []byte, v *operand, size int, mask uint32) {
	if size == 4 && mask == fullMask {
		switch list := v.list; len(list) {
		case 1:
			r := &w.r32[list[0]]
			for l := range r {
				binary.LittleEndian.PutUint32(mem[w.offsets[l]:], r[l])
			}
			return
		case 2:
			r0, r1 := &w.r32[list[0]], &w.r32[list[1]]
			for l := range r0 {
				binary.LittleEndian.PutUint64(mem[w.offsets[l]:], uint64(r1[l])<<32|uint64(r0[l]))
			}
			return
		case 4:
			r0, r1, r2, r3 := &w.r32[list[0]], &w.r32[list[1]], &w.r32[list[2]], &w.r32[list[3]]
			for l := range r0 {
				b := (*[16]byte)(mem[w.offsets[l]:])
				binary.LittleEndian.PutUint64(b[:], uint64(r1[l])<<32|uint64(r0[l]))
				binary.LittleEndian.PutUint64(b[8:], uint64(r3[l])<<32|uint64(r2[l]))
			}
			return
		}
	}
	for i, slot := range v.list {
		for l := range lanesIn(mask) {
			writeWord(mem[w.offsets[l]+uint64(i*size):], size, w.elem(v, slot, l))
		}
	}
}
