package cuda

import (
	"sync"
	"unsafe"

	"sonicmoe/driver/gpu"
)

// dataTypes maps element types to CUtensorMapDataType.
var dataTypes = map[gpu.ElemType]uintptr{
	gpu.U8: 0, gpu.U16: 1, gpu.U32: 2, gpu.S32: 3, gpu.F16: 6, gpu.F32: 7, gpu.BF16: 9,
}

// mapAlign is the alignment that drivers require of an encoded map. Drivers before CUDA 13
// require only 64 bytes.
const mapAlign = 128

// encoder is the memory of one encoding, which is used again for later ones, like packet.
type encoder struct {
	room    [128 + mapAlign]byte
	dims    [5]uint64
	strides [5]uint64
	box     [5]uint32
	steps   [5]uint32
	args    [12]uintptr
}

var encoders = sync.Pool{New: func() any { return new(encoder) }}

// EncodeTensorMap implements gpu.Device. It allocates nothing.
func (d *device) EncodeTensorMap(m gpu.TensorMap) (gpu.EncodedTensorMap, error) {
	var out gpu.EncodedTensorMap
	if err := m.Check(); err != nil {
		return out, err
	}
	e := encoders.Get().(*encoder)
	defer encoders.Put(e)
	e.dims, e.box, e.steps = m.Dims, m.Box, [5]uint32{1, 1, 1, 1, 1}
	copy(e.strides[:], m.Strides[:])
	start := -uintptr(unsafe.Pointer(&e.room[0])) % mapAlign
	e.args = [12]uintptr{
		uintptr(unsafe.Pointer(&e.room[start])), dataTypes[m.Elem], uintptr(m.Rank), uintptr(m.Address),
		uintptr(unsafe.Pointer(&e.dims)), uintptr(unsafe.Pointer(&e.strides)),
		uintptr(unsafe.Pointer(&e.box)), uintptr(unsafe.Pointer(&e.steps)),
		0, // not interleaved
		uintptr(m.Swizzle), uintptr(m.Promote),
		0, // elements outside the bounds are zero
	}
	if err := d.doSlice(symTensorMapEncodeTiled, e.args[:]); err != nil {
		return out, withText(err, "%+v", m)
	}
	copy(out[:], e.room[start:])
	return out, nil
}
