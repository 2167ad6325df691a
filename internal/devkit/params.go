package devkit

import (
	"encoding/binary"
	"fmt"
	"math"

	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
)

// ParamBase is the address of a kernel's parameters in the constant bank of compute capability
// 9.0. Parameters are aligned by their addresses in this bank. A tensor map as the first
// parameter is therefore at byte 112 of the packed buffer, the first offset for which ParamBase
// plus offset is a multiple of 128.
const ParamBase = 0x210

// Param lists the Go types of kernel parameters.
type Param interface {
	driver.DevicePtr | uint64 | uint32 | int32 | float32 | gpu.EncodedTensorMap
}

// AppendParam appends a kernel parameter to packed, a buffer of parameters, as PTX lays them
// out. The parameter is aligned to its size, counted from [ParamBase], and zeros fill the gap.
// AppendParam allocates only if the buffer is too small.
func AppendParam[P Param](packed []byte, value P) []byte {
	switch v := any(value).(type) {
	case gpu.EncodedTensorMap:
		return append(alignParam(packed, len(v)), v[:]...)
	case driver.DevicePtr:
		return binary.LittleEndian.AppendUint64(alignParam(packed, 8), uint64(v))
	case uint64:
		return binary.LittleEndian.AppendUint64(alignParam(packed, 8), v)
	case uint32:
		return binary.LittleEndian.AppendUint32(alignParam(packed, 4), v)
	case int32:
		return binary.LittleEndian.AppendUint32(alignParam(packed, 4), uint32(v))
	case float32:
		return binary.LittleEndian.AppendUint32(alignParam(packed, 4), math.Float32bits(v))
	}
	return packed // there are no other types
}

func alignParam(packed []byte, size int) []byte {
	for (ParamBase+len(packed))%size != 0 {
		packed = append(packed, 0)
	}
	return packed
}

// PackParams packs the parameters of a kernel in order. If the type of a value is not a
// [Param], the error matches driver.ErrInvalid.
func PackParams(values ...any) ([]byte, error) {
	var packed []byte
	for i, value := range values {
		switch v := value.(type) {
		case gpu.EncodedTensorMap:
			packed = AppendParam(packed, v)
		case driver.DevicePtr:
			packed = AppendParam(packed, v)
		case uint64:
			packed = AppendParam(packed, v)
		case uint32:
			packed = AppendParam(packed, v)
		case int32:
			packed = AppendParam(packed, v)
		case float32:
			packed = AppendParam(packed, v)
		default:
			return nil, &driver.Error{Op: "PackParams", Name: "invalid value", Kind: driver.ErrInvalid, Text: fmt.Sprintf(
				"parameter %d is a %T, must be a driver.DevicePtr, uint64, uint32, int32, float32 or gpu.EncodedTensorMap", i, value)}
		}
	}
	return packed, nil
}
