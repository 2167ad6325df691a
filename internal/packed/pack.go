package packed

import (
	"encoding/binary"
	"math"

	"sonicmoe/internal/num"
	"sonicmoe/internal/spec"
)

// Pack packs matrices [rows, columns], which follow one another in values. It is for tests and
// benchmarks, which have no model files. Each block gets a scale. If the format has zero
// points, the zero point is chosen so that the block's smallest value (or 0, if no value is
// negative) gets code 0. An E8M0 scale is the power of two that OCP Microscaling Formats 1.0,
// section 6.3, defines. Any other scale maps the block's largest value to the largest code, as
// nearly as the scale's format allows. Each value then gets the nearest code. Values that are
// exact in the format pack to themselves, except in integer formats and in formats with a
// global scale.
func Pack(p *spec.Packing, values []float32, rows, columns int) (m Matrices) {
	perByte := 8 / p.Code.Bits()
	m.Codes = make([]byte, len(values)/perByte)
	k := packer{Packing: p, numbers: finite(p.Code)}
	each := rows * columns
	var block []float32
	for first := 0; first < len(values); first += each {
		matrix := values[first:][:each]
		k.global = 1
		if p.HasGlobal {
			k.global = k.scaleOf(spec.ScaleF32, &m.Global, extreme(matrix)/k.most()/float64(e4m3[126]))
		}
		for top := 0; top < rows; top += p.Rows {
			for left := 0; left < columns; left += p.Columns {
				width := min(p.Columns, columns-left)
				block = block[:0]
				for row := top; row < min(top+p.Rows, rows); row++ {
					block = append(block, matrix[row*columns+left:][:width]...)
				}
				k.block(&m, block)
				for i, code := range k.codes {
					to := first + (top+i/width)*columns + left + i%width
					m.Codes[to/perByte] |= code << (p.Code.Bits() * (to % perByte))
				}
			}
		}
	}
	return m
}

// packer packs blocks of one format.
type packer struct {
	*spec.Packing
	numbers []float32 // the magnitudes of the codes, ascending
	global  float64
	codes   []byte // of the latest block
}

// most returns the largest magnitude of a code.
func (k *packer) most() float64 { return float64(k.numbers[len(k.numbers)-1]) }

// block appends the scale and the zero point of a block to m, and sets codes to the block's
// codes.
func (k *packer) block(m *Matrices, block []float32) {
	k.codes = k.codes[:0]
	if k.HasZeros {
		low, high := 0.0, 0.0
		for _, v := range block {
			low, high = min(low, float64(v)), max(high, float64(v))
		}
		scale := k.scaleOf(k.Scale, &m.Scales, (high-low)/k.most())
		zero := math.Round(min(-low/scale, k.most()))
		m.Zeros = append(m.Zeros, byte(zero))
		for _, v := range block {
			k.codes = append(k.codes, nearest(k.numbers, float64(v)/scale+zero))
		}
		return
	}
	want := extreme(block) / k.most() / k.global
	if k.Scale == spec.ScaleE8M0 && want > 0 {
		want = math.Ldexp(1, math.Ilogb(extreme(block))-math.Ilogb(k.most()))
	}
	scale := k.scaleOf(k.Scale, &m.Scales, want) * k.global
	for _, v := range block {
		code := nearest(k.numbers, math.Abs(float64(v))/scale)
		switch {
		case k.Code == spec.Int4 && v < 0:
			code = int4Zero - code
		case k.Code == spec.Int4:
			code += int4Zero
		case math.Signbit(float64(v)):
			code |= 1 << (k.Code.Bits() - 1)
		}
		k.codes = append(k.codes, code)
	}
}

// extreme returns the largest magnitude of the values.
func extreme(values []float32) (most float64) {
	for _, v := range values {
		most = max(most, math.Abs(float64(v)))
	}
	return most
}

// finite returns the magnitudes of the finite codes, ascending.
func finite(of spec.Code) (list []float32) {
	switch of {
	case spec.E2M1:
		return e2m1[:8]
	case spec.E4M3:
		return e4m3[:127]
	}
	for code := range 1 << of.Bits() {
		if v := Code(of, byte(code)); v >= 0 {
			list = append(list, v)
		}
	}
	return list
}

// scaleOf appends a scale to the bytes of a tensor (the parameter to), and returns the scale's
// value. It takes the scale that is nearest to the number want, or 1 if the nearest scale is 0.
func (k *packer) scaleOf(of spec.Scale, to *[]byte, want float64) float64 {
	at := len(*to)
	switch of {
	case spec.ScaleF32:
		*to = binary.LittleEndian.AppendUint32(*to, math.Float32bits(float32(want)))
	case spec.ScaleBF16:
		*to = binary.LittleEndian.AppendUint16(*to, num.Float64ToBF16(want))
	case spec.ScaleF16:
		*to = binary.LittleEndian.AppendUint16(*to, num.Float64ToF16(want))
	case spec.ScaleE4M3:
		*to = append(*to, nearest(e4m3[:127], want))
	default:
		exponent := 0
		if want > 0 {
			exponent = min(max(math.Ilogb(want), -scaleBias), scaleBias)
		}
		*to = append(*to, byte(exponent+scaleBias))
	}
	if value := Scales(of, (*to)[at:])[0]; value > 0 {
		return float64(value)
	}
	*to = (*to)[:at]
	return k.scaleOf(of, to, 1)
}

// nearest returns the index of the number nearest to x, the lower index if two are equally
// near.
func nearest(numbers []float32, x float64) byte {
	above := 0
	for end := len(numbers); above < end; {
		if middle := (above + end) / 2; float64(numbers[middle]) >= x {
			end = middle
		} else {
			above = middle + 1
		}
	}
	if above == len(numbers) || above > 0 && x-float64(numbers[above-1]) <= float64(numbers[above])-x {
		above--
	}
	return byte(above)
}
