package packed

import (
	"encoding/binary"
	"math"
	"sort"

	"sonicmoe/internal/num"
	"sonicmoe/internal/spec"
)

// Pack returns codes and scales of matrices [rows, columns], one after another: for tests
// and benchmarks, which have no files. A scale of E8M0 is the power of two that
// OCP Microscaling Formats 1.0, section 6.3, takes; an FP32 scale makes the largest value
// the largest code; so does a bf16 scale, rounded. A code is the nearest one. The values of
// finite codes pack to themselves, except in Int4, whose codes have no sign.
func Pack(p *spec.Packing, values []float32, rows, columns int) (codes, scales []byte) {
	perByte := 8 / p.Code.Bits()
	codes = make([]byte, len(values)/perByte)
	numbers := finite(p.Code)
	largest := float64(numbers[len(numbers)-1])
	signed := func(v float64) byte {
		code := nearest(numbers, math.Abs(v))
		if p.Code == spec.Int4 {
			if v < 0 {
				return int4Zero - code
			}
			return int4Zero + code
		}
		if math.Signbit(v) {
			code |= 1 << (p.Code.Bits() - 1)
		}
		return code
	}
	each := rows * columns
	for first := 0; first < len(values); first += each {
		matrix := values[first:][:each]
		for top := 0; top < rows; top += p.Rows {
			for left := 0; left < columns; left += p.Columns {
				block := func(visit func(at int)) {
					for row := top; row < min(top+p.Rows, rows); row++ {
						for column := left; column < min(left+p.Columns, columns); column++ {
							visit(row*columns + column)
						}
					}
				}
				most := 0.0
				block(func(at int) { most = max(most, math.Abs(float64(matrix[at]))) })
				var scale float64
				scales, scale = appendScale(scales, p.Scale, most, largest)
				block(func(at int) {
					code := signed(float64(matrix[at]) / scale)
					at += first
					codes[at/perByte] |= code << (p.Code.Bits() * (at % perByte))
				})
			}
		}
	}
	return codes, scales
}

// finite returns the values of the codes without a sign and without NaN, in order.
func finite(of spec.Code) []float32 {
	switch of {
	case spec.E2M1:
		return e2m1[:8]
	case spec.Int4:
		return []float32{0, 1, 2, 3, 4, 5, 6, 7}
	}
	return e4m3[:127]
}

// appendScale appends the scale of a block whose largest magnitude is most, and returns its
// value.
func appendScale(scales []byte, of spec.Scale, most, largest float64) ([]byte, float64) {
	if of == spec.ScaleF32 {
		scale := float32(most / largest)
		if scale == 0 {
			scale = 1
		}
		return binary.LittleEndian.AppendUint32(scales, math.Float32bits(scale)), float64(scale)
	}
	if of == spec.ScaleBF16 {
		bits := num.Float64ToBF16(most / largest)
		if bits == 0 {
			bits = num.Float64ToBF16(1)
		}
		return binary.LittleEndian.AppendUint16(scales, bits), num.BF16ToFloat64(bits)
	}
	exponent := 0
	if most > 0 {
		exponent = min(max(math.Ilogb(most)-math.Ilogb(largest), -scaleBias), scaleBias)
	}
	return append(scales, byte(exponent+scaleBias)), math.Ldexp(1, exponent)
}

// nearest returns the code of the number nearest to x, the lower one of two.
func nearest(numbers []float32, x float64) byte {
	above := sort.Search(len(numbers), func(i int) bool { return float64(numbers[i]) >= x })
	if above == len(numbers) || above > 0 && x-float64(numbers[above-1]) <= float64(numbers[above])-x {
		above--
	}
	return byte(above)
}
