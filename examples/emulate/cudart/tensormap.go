//go:build cgo && linux

package main

import "C"

import "sonicmoe/ptx/emu/layout"

// elements maps the numbers of CUtensorMapDataType to element types. The types with TF32 and with
// flushed subnormal numbers map to F32: copies move bytes, so they differ only in reductions.
var elements = map[int32]layout.ElemType{0: layout.ElemU8, 1: layout.ElemU16, 2: layout.ElemU32, 3: layout.ElemS32,
	6: layout.ElemF16, 7: layout.ElemF32, 9: layout.ElemBF16, 10: layout.ElemF32, 11: layout.ElemF32, 12: layout.ElemF32}

// encode returns an encoded tensor map.
func encode(element int32, rank uint32, address uintptr, sizes, strides *uint64, box, steps *uint32, interleave, swizzle, fill int32) ([layout.TensorMapBytes]byte, error) {
	m := layout.TensorMap{Elem: elements[element], Rank: int(rank), Address: uint64(address), Swizzle: layout.Swizzle(swizzle)}
	switch {
	case m.Elem == 0:
		return [layout.TensorMapBytes]byte{}, failed(notSupported, "element type %d is not emulated", element)
	case rank < 1 || rank > 5:
		return [layout.TensorMapBytes]byte{}, failed(invalidValue, "rank %d, want 1 to 5", rank)
	case interleave != 0 || fill != 0:
		return [layout.TensorMapBytes]byte{}, failed(notSupported, "interleave %d and fill with NaN (%d) are not emulated", interleave, fill)
	case swizzle < 0 || swizzle > 3:
		return [layout.TensorMapBytes]byte{}, failed(notSupported, "swizzle %d is not emulated", swizzle)
	}
	for i := range uintptr(rank) {
		m.Dims[i] = *(*uint64)(at(uintptr(ptrOf(sizes)) + 8*i))
		m.Box[i] = *(*uint32)(at(uintptr(ptrOf(box)) + 4*i))
		if step := *(*uint32)(at(uintptr(ptrOf(steps)) + 4*i)); step != 1 {
			return [layout.TensorMapBytes]byte{}, failed(notSupported, "step %d in dimension %d, want 1: others are not emulated", step, i)
		}
		if i > 0 {
			m.Strides[i-1] = *(*uint64)(at(uintptr(ptrOf(strides)) + 8*(i-1)))
		}
	}
	if err := m.Check(); err != nil {
		return [layout.TensorMapBytes]byte{}, failed(invalidValue, "%v", err)
	}
	return m.Encode(), nil
}

//export cuTensorMapEncodeTiled
func cuTensorMapEncodeTiled(to uintptr, element int32, rank uint32, address uintptr, sizes, strides *uint64, box, steps *uint32, interleave, swizzle, _, fill int32) int32 {
	b, err := encode(element, rank, address, sizes, strides, box, steps, interleave, swizzle, fill)
	if err == nil {
		copy(hostBytes(to, len(b)), b[:])
	}
	return status("cuTensorMapEncodeTiled", err)
}

//export cuTensorMapReplaceAddress
func cuTensorMapReplaceAddress(to, address uintptr) int32 {
	b := hostBytes(to, layout.TensorMapBytes)
	m, err := layout.DecodeTensorMap(b)
	if err == nil {
		m.Address = uint64(address)
		if err = m.Check(); err == nil {
			e := m.Encode()
			copy(b, e[:])
		}
	}
	return status("cuTensorMapReplaceAddress", err)
}
