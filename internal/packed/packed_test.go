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

// published returns the value of a code as the OCP's standards write it.
func published(of spec.Code, code int) float64 {
	if of == spec.E2M1 { // table 5 of OCP Microscaling Formats 1.0
		return [...]float64{0, 0.5, 1, 1.5, 2, 3, 4, 6, math.Copysign(0, -1), -0.5, -1, -1.5, -2, -3, -4, -6}[code]
	}
	if of == spec.Int4 { // compressed-tensors adds 8 when it packs
		return float64(code) - 8
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

// TestAllCodesAndScales compares every code with every E8M0 scale, and with FP32 scales, with
// the published formula: FP32 product, then bf16.
func TestAllCodesAndScales(t *testing.T) {
	for _, p := range spec.Packings {
		t.Run(p.Name, func(t *testing.T) {
			var scales []float64
			var raw []byte
			if p.Scale == spec.ScaleE8M0 {
				for u := range 255 {
					scales, raw = append(scales, math.Pow(2, float64(u)-127)), append(raw, byte(u))
				}
				scales, raw = append(scales, math.NaN()), append(raw, 255)
			} else {
				rng := rand.New(rand.NewPCG(1, 2))
				list := []float32{0, 1, 1.0 / 3, math.SmallestNonzeroFloat32, math.MaxFloat32, float32(math.Inf(1)), -2.5, 0x1p-126}
				for range 500 {
					list = append(list, math.Float32frombits(rng.Uint32()))
				}
				for _, s := range list {
					if p.Scale == spec.ScaleBF16 {
						bits := uint16(math.Float32bits(s) >> 16)
						scales, raw = append(scales, num.BF16ToFloat64(bits)), binary.LittleEndian.AppendUint16(raw, bits)
						continue
					}
					scales, raw = append(scales, float64(s)), binary.LittleEndian.AppendUint32(raw, math.Float32bits(s))
				}
			}
			all := 1 << p.Code.Bits()
			for i, scale := range scales {
				codes := make([]byte, all*p.Code.Bits()/8)
				for code := range all {
					codes[code*p.Code.Bits()/8] |= byte(code << (code * p.Code.Bits() % 8))
				}
				size := int(p.Scale.Type().Bytes())
				// One row of all codes is one block.
				one := p
				one.Columns = all
				got := Bits(&one, codes, raw[i*size:][:size], 1, all)
				for code, bits := range got {
					product := published(p.Code, code) * scale
					want := num.Float32ToBF16(float32(product))
					if math.IsNaN(product) {
						assert.True(t, math.IsNaN(num.BF16ToFloat64(bits)), "code %d, scale %d", code, i)
						continue
					}
					require.Equal(t, want, bits, "code %d, scale %g", code, scale)
					if exact := num.BF16ToFloat64(bits); p.IsExact && math.Abs(product) < 0x1p127 && math.Abs(product) >= 0x1p-126 {
						require.Equal(t, product, exact, "code %d, scale %g", code, scale)
					}
				}
			}
		})
	}
}

// TestBlocks checks which scale each number has, with blocks at the edges in part, over
// several matrices.
func TestBlocks(t *testing.T) {
	for _, p := range spec.Packings {
		rows, columns := 200, 160
		down, across := p.Blocks(int64(rows), int64(columns))
		codes := make([]byte, 2*rows*columns*p.Code.Bits()/8)
		one := map[spec.Code]byte{spec.E4M3: 0x38, spec.E2M1: 0x22, spec.Int4: 0x99}[p.Code] // 1
		for i := range codes {
			codes[i] = one
		}
		var raw []byte
		for i := range 2 * down * across {
			switch p.Scale {
			case spec.ScaleF32:
				raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(float32(i+1)))
			case spec.ScaleBF16:
				raw = binary.LittleEndian.AppendUint16(raw, uint16(0x3f80+i))
			default:
				raw = append(raw, byte(i%254))
			}
		}
		scales, values := Scales(p.Scale, raw), Values(&p, codes, Scales(p.Scale, raw), rows, columns)
		for i, v := range values {
			matrix, row, column := i/(rows*columns), i/columns%rows, i%columns
			block := int64(matrix)*down*across + int64(row/p.Rows)*across + int64(column/p.Columns)
			require.Equal(t, scales[block], v, "%s: matrix %d, row %d, column %d", p.Name, matrix, row, column)
		}
	}
}

// TestPack checks that values of codes pack to themselves, and that other values come back
// within a step of their block.
func TestPack(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, p := range spec.Packings {
		rows, columns := 130, 256
		values := make([]float32, 2*rows*columns)
		for i := range values {
			values[i] = float32(rng.NormFloat64()) * float32(math.Ldexp(1, i/4096%9-4))
		}
		codes, scales := Pack(&p, values, rows, columns)
		back := Values(&p, codes, Scales(p.Scale, scales), rows, columns)
		var off, all float64
		for i := range values {
			off += math.Pow(float64(back[i]-values[i]), 2)
			all += math.Pow(float64(values[i]), 2)
		}
		assert.Less(t, math.Sqrt(off/all), map[spec.Code]float64{spec.E2M1: 0.15, spec.E4M3: 0.04, spec.Int4: 0.15}[p.Code], p.Name)
		if p.Code == spec.Int4 {
			continue
		}
		again, scalesAgain := Pack(&p, back, rows, columns)
		assert.Equal(t, back, Values(&p, again, Scales(p.Scale, scalesAgain), rows, columns), p.Name)
	}
}

func Example() {
	p := spec.PackingNamed("mxfp4")
	codes := append([]byte{0x21, 0xf7}, make([]byte, 14)...) // 0.5, 1, 6, -6, and zeros
	fmt.Println(Values(p, codes, Scales(p.Scale, []byte{128}), 1, 32)[:4])
	// Output: [1 2 12 -12]
}
