package packed

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/num"
	"sonicmoe/internal/spec"
)

// published returns the value of a code, computed by the formula of the standard that defines
// the format.
func published(of spec.Code, code int) float64 {
	if of == spec.E2M1 { // table 5 of OCP Microscaling Formats 1.0
		return [...]float64{0, 0.5, 1, 1.5, 2, 3, 4, 6, math.Copysign(0, -1), -0.5, -1, -1.5, -2, -3, -4, -6}[code]
	}
	switch of {
	case spec.Int4: // compressed-tensors adds 8 to a number when it packs
		return float64(code) - 8
	case spec.UInt4: // AWQ and GPTQ
		return float64(code)
	}
	// OCP 8-bit Floating Point 1.0, section 5.2: (-1)^S·2^(E-7)·(1+M/8), and 2^-6·M/8 for E = 0.
	s, e, m := code>>7, code>>3&15, float64(code&7)
	v := math.Pow(2, float64(e)-7) * (1 + m/8)
	if e == 0 {
		v = math.Pow(2, -6) * m / 8
	}
	if e == 15 && m == 7 {
		return math.NaN()
	}
	return math.Copysign(v, 1-2*float64(s))
}

// TestAllCodesAndScales compares every code with every scale of 8 or 16 bits (or many FP32
// scales), and with every zero point or many global scales. It expects the published formula:
// an FP32 product, then rounded to bf16 or f16.
func TestAllCodesAndScales(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	floats := []float32{0, 1, 1.0 / 3, math.SmallestNonzeroFloat32, math.MaxFloat32, float32(math.Inf(1)), -2.5, 0x1p-126}
	for range 500 {
		floats = append(floats, math.Float32frombits(rng.Uint32()))
	}
	for _, p := range spec.Packings {
		t.Run(p.Name, func(t *testing.T) {
			scales := allScales(p.Scale, floats)
			all := 1 << p.Code.Bits()
			codes := make([]byte, all*p.Code.Bits()/8)
			for code := range all {
				codes[code*p.Code.Bits()/8] |= byte(code << (code * p.Code.Bits() % 8))
			}
			one := p
			one.Columns = all // one row that has every code once, all under one scale
			size := int(p.Scale.Type().Bytes())
			for i, scale := range scales.values {
				m := Matrices{Codes: codes, Scales: scales.raw[i*size:][:size]}
				global, zero := float32(1), i%16
				if p.HasGlobal {
					global = floats[(i*37+5)%len(floats)]
					m.Global = num.Bytes([]float32{global})
					scale = float64(float32(scale * float64(global)))
				}
				if p.HasZeros {
					m.Zeros = []byte{byte(zero)}
				} else {
					zero = 0
				}
				for _, of := range []spec.Type{spec.BF16, spec.F16} {
					for code, bits := range Bits(&one, m, of, 1, all) {
						product := (published(p.Code, code) - float64(zero)) * scale
						if p.Code == spec.Int4 && product == 0 {
							product = 0 // the published -0 of negative scales is +0 here
						}
						want, value := num.Float32ToBF16(float32(product)), num.BF16ToFloat64(bits)
						if of == spec.F16 {
							want, value = num.Float32ToF16(float32(product)), num.F16ToFloat64(bits)
						}
						if math.IsNaN(product) {
							if !math.IsNaN(value) {
								t.Fatalf("code %d, scale %g is %g, want NaN", code, scale, value)
							}
							continue
						}
						if bits != want {
							t.Fatalf("code %d, scale %g, zero %d is %#x, want %#x in %v", code, scale, zero, bits, want, of)
						}
						if p.IsExact && of == spec.BF16 && math.Abs(product) < 0x1p127 && math.Abs(product) >= 0x1p-126 {
							require.Equal(t, product, value, "code %d, scale %g", code, scale)
						}
					}
				}
			}
		})
	}
}

// scaleList holds scales as numbers and as the bytes of their tensor.
type scaleList struct {
	values []float64
	raw    []byte
}

// allScales returns all scales of an 8-bit or 16-bit format, as the standards define them. For
// FP32 scales it returns the given list.
func allScales(of spec.Scale, floats []float32) (list scaleList) {
	add := func(value float64, raw ...byte) {
		list.values, list.raw = append(list.values, value), append(list.raw, raw...)
	}
	switch of {
	case spec.ScaleF32:
		for _, s := range floats {
			add(float64(s), binary.LittleEndian.AppendUint32(nil, math.Float32bits(s))...)
		}
	case spec.ScaleBF16, spec.ScaleF16:
		for bits := range 1 << 16 {
			value := num.BF16ToFloat64(uint16(bits))
			if of == spec.ScaleF16 {
				value = num.F16ToFloat64(uint16(bits))
			}
			add(value, byte(bits), byte(bits>>8))
		}
	case spec.ScaleE4M3:
		for code := range 256 {
			add(published(spec.E4M3, code), byte(code))
		}
	default:
		for u := range 255 {
			add(math.Pow(2, float64(u)-127), byte(u))
		}
		add(math.NaN(), 255)
	}
	return list
}

// TestExactWithoutGlobal checks that the product of each code and each scale of NVFP4 is a bf16
// number, so that nothing is rounded if the global scale is a power of two.
func TestExactWithoutGlobal(t *testing.T) {
	for code := range 16 {
		for scale := range 256 {
			exact := published(spec.E2M1, code) * published(spec.E4M3, scale)
			if !math.IsNaN(exact) {
				require.Equal(t, exact, num.BF16ToFloat64(num.Float64ToBF16(exact)), "code %d, scale %d", code, scale)
			}
		}
	}
}

// TestBlocks checks which scale, zero point and global scale each number uses, over several
// matrices whose last blocks are cut off at the edges.
func TestBlocks(t *testing.T) {
	for _, p := range spec.Packings {
		rows, columns := 200, 256
		down, across := p.Blocks(int64(rows), int64(columns))
		m := Matrices{Codes: make([]byte, 2*rows*columns*p.Code.Bits()/8)}
		one := map[spec.Code]byte{spec.E4M3: 0x38, spec.E2M1: 0x22, spec.Int4: 0x99, spec.UInt4: 0x11}[p.Code] // the code of 1
		for i := range m.Codes {
			m.Codes[i] = one
		}
		for i := range 2 * down * across {
			switch p.Scale.Type() {
			case spec.F32:
				m.Scales = append(m.Scales, num.Bytes([]float32{float32(i + 1)})...)
			case spec.BF16, spec.F16:
				m.Scales = binary.LittleEndian.AppendUint16(m.Scales, uint16(0x3c00+i))
			default:
				m.Scales = append(m.Scales, byte(i%127))
			}
			if p.HasZeros {
				m.Zeros = append(m.Zeros, byte(i%15+1))
			}
		}
		if p.HasGlobal {
			m.Global = num.Bytes([]float32{3, 5})
		}
		scales := Scales(p.Scale, m.Scales)
		for i, v := range Values(&p, m, rows, columns) {
			matrix, row, column := i/(rows*columns), i/columns%rows, i%columns
			block := int64(matrix)*down*across + int64(row/p.Rows)*across + int64(column/p.Columns)
			want := scales[block]
			if p.HasZeros {
				want *= 1 - float32(m.Zeros[block])
			}
			if p.HasGlobal {
				want *= []float32{3, 5}[matrix]
			}
			if v != want {
				require.Equal(t, want, v, "%s: matrix %d, row %d, column %d", p.Name, matrix, row, column)
			}
		}
	}
}

// TestPack checks that values that are exact in a format pack to themselves, and that other
// values come back within one step of their block.
func TestPack(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, p := range spec.Packings {
		rows, columns := 130, 256
		values := make([]float32, 2*rows*columns)
		for i := range values {
			values[i] = float32(rng.NormFloat64()) * float32(math.Ldexp(1, i/4096%9-4))
		}
		m := Pack(&p, values, rows, columns)
		back := Values(&p, m, rows, columns)
		var off, all float64
		for i := range values {
			off += math.Pow(float64(back[i]-values[i]), 2)
			all += math.Pow(float64(values[i]), 2)
		}
		assert.Less(t, math.Sqrt(off/all), map[spec.Code]float64{spec.E2M1: 0.15, spec.E4M3: 0.04, spec.Int4: 0.15, spec.UInt4: 0.15}[p.Code], p.Name)
		if p.Code == spec.Int4 || p.Code == spec.UInt4 || p.HasGlobal {
			continue
		}
		assert.Equal(t, back, Values(&p, Pack(&p, back, rows, columns), rows, columns), p.Name)
	}
}

func Example() {
	p := spec.PackingNamed("mxfp4")
	codes := append([]byte{0x21, 0xf7}, make([]byte, 14)...) // 0.5, 1, 6, -6, and zeros
	fmt.Println(Values(p, Matrices{Codes: codes, Scales: []byte{128}}, 1, 32)[:4])
	// Output: [1 2 12 -12]
}
