package reference

import (
	"sonicmoe/internal/num"
	"sonicmoe/internal/spec"
)

// tensor is a row-major tensor of bf16 bits, fp16 bits, or FP32 values.
type tensor struct {
	bits []uint16
	f16  bool
	f32  []float32
}

// stored returns a tensor of 16-bit elements of type t.
func stored(bits []uint16, t spec.Type) tensor { return tensor{bits: bits, f16: t == spec.F16} }

func (t tensor) len() int { return max(len(t.bits), len(t.f32)) }

// part returns count elements of the tensor, starting with element first.
func (t tensor) part(first, count int) tensor {
	if t.f32 != nil {
		t.f32 = t.f32[first:][:count]
	} else {
		t.bits = t.bits[first:][:count]
	}
	return t
}

// decode writes the values of all elements to dst. dst must have as many elements as the tensor.
func (t tensor) decode(dst []float64) {
	dst = dst[:t.len()]
	switch {
	case t.f32 != nil:
		for i, v := range t.f32 {
			dst[i] = float64(v)
		}
	case t.f16:
		for i, b := range t.bits {
			dst[i] = num.F16ToFloat64(b)
		}
	default:
		for i, b := range t.bits {
			dst[i] = num.BF16ToFloat64(b)
		}
	}
}

// toBits rounds x to t, a 16-bit type, and returns its bits.
func toBits(t spec.Type, x float64) uint16 {
	if t == spec.F16 {
		return num.Float64ToF16(x)
	}
	return num.Float64ToBF16(x)
}

// values returns the values of all elements, or nil for an empty tensor.
func (t tensor) values() []float64 {
	if t.len() == 0 {
		return nil
	}
	v := make([]float64, t.len())
	t.decode(v)
	return v
}

// at returns the value of element i.
func (t tensor) at(i int) float64 {
	var v [1]float64
	t.part(i, 1).decode(v[:])
	return v[0]
}
