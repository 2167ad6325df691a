package packed

import (
	"encoding/binary"
	"math"

	"sonicmoe/internal/num"
	"sonicmoe/internal/spec"
)

// e2m1 and e4m3 have the values of the codes.
var (
	e2m1 = codes(4, 2, 1)
	e4m3 = codes(8, 4, 3)
)

// codes returns the values of the codes with a number of exponent and fraction bits. The
// exponent's bias is half its range. The format of 8 bits has a NaN of each sign, all ones.
func codes(bits, exponent, fraction int) []float32 {
	values := make([]float32, 1<<bits)
	bias := 1<<(exponent-1) - 1
	for code := range 1 << (bits - 1) {
		e, f := code>>fraction, float64(code&(1<<fraction-1))/float64(int(1)<<fraction)
		v := math.Ldexp(1+f, e-bias)
		if e == 0 {
			v = math.Ldexp(f, 1-bias)
		}
		if bits == 8 && code == 1<<(bits-1)-1 {
			v = math.NaN()
		}
		values[code], values[code|1<<(bits-1)] = float32(v), float32(math.Copysign(v, -1))
	}
	return values
}

// Code returns the value of a code.
func Code(of spec.Code, code byte) float32 {
	switch of {
	case spec.E2M1:
		return e2m1[code&15]
	case spec.Int4:
		return float32(code&15) - int4Zero
	}
	return e4m3[code]
}

// int4Zero is the bits of 0.
const int4Zero = 8

// scaleNaN is the byte of E8M0 that is no number; scaleBias is the exponent of 1.
const (
	scaleNaN  = 255
	scaleBias = 127
)

// Scales returns the values of scales, from the bytes of their tensor.
func Scales(of spec.Scale, raw []byte) []float32 {
	values := make([]float32, int64(len(raw))/of.Type().Bytes())
	for i := range values {
		switch {
		case of == spec.ScaleF32:
			values[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
		case of == spec.ScaleBF16:
			values[i] = num.BF16ToFloat32(binary.LittleEndian.Uint16(raw[2*i:]))
		case raw[i] == scaleNaN:
			values[i] = float32(math.NaN())
		default:
			values[i] = float32(math.Ldexp(1, int(raw[i])-scaleBias))
		}
	}
	return values
}

// Values returns the FP32 products of matrices [rows, columns], one after another, from
// their codes and the values of their scales.
func Values(p *spec.Packing, codes []byte, scales []float32, rows, columns int) []float32 {
	perByte := 8 / p.Code.Bits()
	out := make([]float32, len(codes)*perByte)
	down, across := p.Blocks(int64(rows), int64(columns))
	at := 0
	for len(out) > at {
		for row := range rows {
			scale := scales[int64(row/p.Rows)*across:]
			for column := range columns {
				code := codes[at/perByte]
				if perByte == 2 && at%2 == 1 {
					code >>= 4
				}
				out[at] = Code(p.Code, code) * scale[column/p.Columns]
				at++
			}
		}
		scales = scales[down*across:]
	}
	return out
}

// Bits returns the bf16 bits of a tensor [matrices, rows, columns], from the bytes of its
// codes and scales.
func Bits(p *spec.Packing, codes, scales []byte, rows, columns int) []uint16 {
	values := Values(p, codes, Scales(p.Scale, scales), rows, columns)
	bits := make([]uint16, len(values))
	num.EncodeBF16(bits, values)
	return bits
}
