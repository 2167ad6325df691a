package packed

import (
	"encoding/binary"
	"math"

	"sonicmoe/internal/num"
	"sonicmoe/internal/spec"
)

// e2m1 and e4m3 map a code to its value. e8m0 maps a byte to the value of a scale.
var (
	e2m1 = codes(4, 2, 1)
	e4m3 = codes(8, 4, 3)
	e8m0 = powers()
)

// powers returns the values of all E8M0 bytes.
func powers() (values [256]float32) {
	for i := range values {
		values[i] = float32(math.Ldexp(1, i-scaleBias))
	}
	values[scaleNaN] = float32(math.NaN())
	return values
}

// codes returns the values of all codes of a format with a sign and the given numbers of bits,
// exponent bits and fraction bits. The exponent's bias is half its range. In the 8-bit format
// the two codes whose other bits are all 1 are NaN.
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
	case spec.UInt4:
		return float32(code & 15)
	}
	return e4m3[code]
}

// int4Zero is the Int4 code of 0.
const int4Zero = 8

// scaleNaN is the E8M0 byte of NaN. scaleBias is the E8M0 byte of 1.
const (
	scaleNaN  = 255
	scaleBias = 127
)

// Scales returns the values of the scales in a tensor, given the bytes of the tensor.
func Scales(of spec.Scale, raw []byte) []float32 {
	values := make([]float32, int64(len(raw))/of.Type().Bytes())
	for i := range values {
		switch {
		case of == spec.ScaleF32:
			values[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
		case of == spec.ScaleBF16:
			values[i] = num.BF16ToFloat32(binary.LittleEndian.Uint16(raw[2*i:]))
		case of == spec.ScaleF16:
			values[i] = num.F16ToFloat32(binary.LittleEndian.Uint16(raw[2*i:]))
		case of == spec.ScaleE4M3:
			values[i] = e4m3[raw[i]]
		default:
			values[i] = e8m0[raw[i]]
		}
	}
	return values
}

// Matrices holds the tensors of packed matrices [rows, columns], which follow one another, as
// bytes. Zeros and Global are empty unless the format has them.
type Matrices struct{ Codes, Scales, Zeros, Global []byte }

// Of returns the bytes of one tensor of a packed matrix. The parameter id names the tensor, and
// `of` has the ids of the matrix's tensors.
func (m *Matrices) Of(of spec.PackedTensors, id spec.TensorID) *[]byte {
	switch id {
	case of.Scales:
		return &m.Scales
	case of.Zeros:
		return &m.Zeros
	case of.Global:
		return &m.Global
	}
	return &m.Codes
}

// Values returns the numbers that packed matrices [rows, columns] stand for, before the
// rounding to a 16-bit type. The number 0 of Int4 is +0 with scales of both signs.
func Values(p *spec.Packing, m Matrices, rows, columns int) []float32 {
	perByte := 8 / p.Code.Bits()
	out := make([]float32, len(m.Codes)*perByte)
	down, across := p.Blocks(int64(rows), int64(columns))
	scales, zeros, global := Scales(p.Scale, m.Scales), m.Zeros, Scales(spec.ScaleF32, m.Global)
	for at, matrix := 0, 0; at < len(out); matrix++ {
		for row := range rows {
			line := (int64(matrix)*down + int64(row/p.Rows)) * across
			for column := range columns {
				block := line + int64(column/p.Columns)
				code, scale := m.Codes[at/perByte], scales[block]
				if perByte == 2 && at%2 == 1 {
					code >>= 4
				}
				value := Code(p.Code, code)
				if p.HasZeros {
					value -= float32(zeros[block])
				}
				if p.HasGlobal {
					scale *= global[matrix]
				}
				out[at] = value * scale
				if p.Code == spec.Int4 {
					out[at] += 0 // makes -0 to +0
				}
				at++
			}
		}
	}
	return out
}

// Bits returns the numbers that packed matrices [rows, columns] stand for, as bits of a 16-bit
// type, the parameter to.
func Bits(p *spec.Packing, m Matrices, to spec.Type, rows, columns int) []uint16 {
	values := Values(p, m, rows, columns)
	bits := make([]uint16, len(values))
	if to == spec.F16 {
		num.EncodeF16(bits, values)
	} else {
		num.EncodeBF16(bits, values)
	}
	return bits
}
