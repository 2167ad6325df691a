package fragments

import (
	"encoding/binary"
	"fmt"
	"math"

	"sonicmoe/internal/num"
	"sonicmoe/internal/packed"
	"sonicmoe/internal/spec"
	"sonicmoe/jit/tile"
)

// Matrix describes the units of one weight matrix of all experts: W1 (with W3 if it is a tensor of
// its own) or W2.
type Matrix struct {
	Format
	experts int
	// tensors is the number of published tensors that make the matrix: 2 for W1 with W3, else 1.
	// Each has rows × columns codes for each expert.
	tensors, rows, columns int
	// Units is the number of units of each expert.
	Units int
	// source maps a row of a unit to the published tensors: it returns the number of the tensor and
	// the row of an expert in that tensor. The row is -1 past the end of the matrix.
	source func(unit, row int) (tensor, of int)
}

// W1 returns the matrix of the up-projection. With a gate, each 16 rows of a unit are the gate rows
// of 8 neurons, then the up rows of the same neurons. The number of neurons is rounded up to whole
// k-tiles of the down-projection.
func W1(c spec.Config) Matrix {
	n := c.Intermediate
	m := Matrix{Format: FormatOf(c), experts: c.NumExperts, tensors: 1, rows: c.HWidth(), columns: c.Hidden}
	if !c.Activation.Gated() {
		m.Units, m.source = tile.Tiles(n), rowsOf(n)
		return m
	}
	const neurons = Rows / 2
	m.Units = tile.Tiles(n) * tile.K / neurons
	if c.GateUp == spec.Apart {
		m.tensors, m.rows = 2, n
	}
	m.source = func(unit, row int) (tensor, of int) {
		pair, part := rowPair(row)
		neuron := unit*neurons + pair
		switch {
		case neuron >= n:
			return 0, -1
		case c.GateUp == spec.Apart:
			return part, neuron
		case c.GateUp == spec.Interleaved:
			return 0, 2*neuron + part
		}
		return 0, part*n + neuron
	}
	return m
}

// W2 returns the matrix of the down-projection.
func W2(c spec.Config) Matrix {
	return Matrix{Format: FormatOf(c), experts: c.NumExperts, tensors: 1, rows: c.Hidden, columns: c.Intermediate,
		Units: (c.Hidden + Rows - 1) / Rows, source: rowsOf(c.Hidden)}
}

// rowsOf returns the source function of a matrix whose units have the rows in published order.
func rowsOf(rows int) func(unit, row int) (tensor, of int) {
	return func(unit, row int) (int, int) {
		if row += unit * Rows; row < rows {
			return 0, row
		}
		return 0, -1
	}
}

// Blocks returns the number of blocks of a unit.
func (m Matrix) Blocks() int { return Blocks(m.columns) }

// UnitBytes returns the size of a unit. Bytes returns the size of the units of all experts.
func (m Matrix) UnitBytes() int { return m.Blocks() * m.BlockBytes() }
func (m Matrix) Bytes() int64   { return int64(m.experts) * int64(m.Units) * int64(m.UnitBytes()) }

// Pack returns the units of a matrix, made from its published tensors. The error names the first
// code, scale or zero point that units cannot represent.
func (m Matrix) Pack(from []packed.Matrices) ([]byte, error) {
	out, places := make([]byte, m.Bytes()), m.places()
	err := m.each(func(block []byte, expert, unit, first int) error {
		for row := range Rows {
			tensor, of := m.source(unit, row)
			if of >= 0 {
				if err := m.packScales(block, row, first, from[tensor], expert, of); err != nil {
					return err
				}
			}
			for column := range Columns {
				c, err := m.zero(), error(nil)
				if of >= 0 && first+column < m.columns {
					c, err = m.code(from[tensor].Codes, expert, of, first+column)
				}
				if err != nil {
					return err
				}
				p := places[row*Columns+column]
				for i, bit := range p.bits {
					block[p.word+bit/8] |= c >> i & 1 << (bit % 8)
				}
			}
		}
		return nil
	}, out)
	return out, err
}

// each calls body for each block of the units. first is the block's first column.
func (m Matrix) each(body func(block []byte, expert, unit, first int) error, packed []byte) error {
	for i := range m.experts * m.Units * m.Blocks() {
		unit := i / m.Blocks()
		if err := body(packed[i*m.BlockBytes():][:m.BlockBytes()], unit/m.Units, unit%m.Units, i%m.Blocks()*Columns); err != nil {
			return err
		}
	}
	return nil
}

// codeAt returns the byte of a code in its published tensor, and the code's lowest bit in the byte.
func (m Matrix) codeAt(expert, row, column int) (at, shift int) {
	bits := m.Code.Bits()
	at = ((expert*m.rows+row)*m.columns + column) * bits
	return at / 8, at % 8
}

func (m Matrix) code(codes []byte, expert, row, column int) (byte, error) {
	at, shift := m.codeAt(expert, row, column)
	c := codes[at] >> shift & (1<<m.Code.Bits() - 1)
	if m.Code == spec.E4M3 && c&0x7f == 0x7f {
		return 0, fmt.Errorf("fragments: code of expert %d, row %d, column %d is NaN, want a number", expert, row, column)
	}
	return c, nil
}

// scaleAt returns the index of a scale in the tensor as the model's files have it.
func (m Matrix) scaleAt(expert, row, column int) int64 {
	down, across := m.Packing.Blocks(int64(m.rows), int64(m.columns))
	return (int64(expert)*down+int64(row/m.Packing.Rows))*across + int64(column/m.Packing.Columns)
}

// packScales writes the scales and zero points of a row of a unit to a block. The parameter `first`
// is the block's first column, and `of` is the row in the published tensor.
func (m Matrix) packScales(block []byte, row, first int, from packed.Matrices, expert, of int) error {
	pair, lower := rowPair(row)
	step := Columns / m.groups()
	for column := first; column < min(first+Columns, m.columns); column += step {
		i, group := m.scaleAt(expert, of, column), (column-first)/step
		wrong := func(what, got, want string) error {
			return fmt.Errorf("fragments: %s of expert %d, row %d, column %d is %s, want %s", what, expert, of, column, got, want)
		}
		word := func(n int) []byte { return block[m.wordAt(pair, n):] }
		if m.HasZeros {
			zero := from.Zeros[i]
			if zero > maxZero {
				return wrong("zero point", fmt.Sprint(zero), fmt.Sprintf("at most %d", maxZero))
			}
			binary.LittleEndian.PutUint16(word(m.zerosAt() + group)[2*lower:], integerBase&0xffff|uint16(zero))
		}
		if m.Scale != spec.ScaleE8M0 {
			bytes := m.Scale.Type().Bytes()
			s := packed.Scales(m.Scale, from.Scales[bytes*i:][:bytes])[0]
			if m.HasGlobal {
				s *= packed.Scales(spec.ScaleF32, from.Global[4*expert:][:4])[0]
			}
			if m.hasTerms() {
				high, low, ok := m.terms(s)
				switch {
				case !ok && m.Scale == spec.ScaleF16: // every finite F16 number has terms
					return wrong("scale", fmt.Sprint(s), "a finite number")
				case !ok:
					return wrong("scale", fmt.Sprint(s), fmt.Sprintf("0, or a magnitude from 2^%d to below 2^%d", termsFrom, m.termsBelow()))
				}
				binary.LittleEndian.PutUint16(word(2 * group)[2*lower:], high)
				binary.LittleEndian.PutUint16(word(2*group + 1)[2*lower:], low)
				continue
			}
			stored := float32(float64(s) * math.Ldexp(1, m.excess()))
			switch {
			case stored-stored != 0 && m.excess() > 0:
				return wrong("scale", fmt.Sprint(s), fmt.Sprintf("a number below 2^%d", 128-m.excess()))
			case stored-stored != 0:
				return wrong("scale", fmt.Sprint(s), "a finite number")
			case m.inFP32():
				binary.LittleEndian.PutUint32(word(2*group+lower), math.Float32bits(stored))
			default:
				binary.LittleEndian.PutUint16(word(group)[2*lower:], uint16(math.Float32bits(stored)>>16))
			}
			continue
		}
		const inf = 255
		exponent := int(from.Scales[i]) + m.excess()
		if from.Scales[i] == 255 || exponent >= inf {
			return wrong("scale", fmt.Sprintf("2^%d", int(from.Scales[i])-127), fmt.Sprintf("at most 2^%d", inf-1-m.excess()-127))
		}
		if m.areBytes() {
			word(group / 2)[lower*2+group%2] = byte(exponent)
		} else {
			binary.LittleEndian.PutUint16(word(group)[2*lower:], uint16(exponent)<<7)
		}
	}
	return nil
}

// maxZero is the largest zero point.
const maxZero = 15

// Unpack is the inverse of Pack: it returns the published tensors of the units. Units have only the
// product of a scale and the global scale, and of an FP32 scale only its two terms. In these formats
// Unpack leaves the scales 0.
func (m Matrix) Unpack(units []byte) (to []packed.Matrices) {
	down, across := m.Packing.Blocks(int64(m.rows), int64(m.columns))
	blocks := int64(m.experts) * down * across
	for range m.tensors {
		of := packed.Matrices{Codes: make([]byte, m.experts*m.rows*m.columns*m.Code.Bits()/8), Scales: make([]byte, blocks*m.Scale.Type().Bytes())}
		if m.HasZeros {
			of.Zeros = make([]byte, blocks)
		}
		if m.HasGlobal {
			of.Global = make([]byte, 4*m.experts)
		}
		to = append(to, of)
	}
	places := m.places()
	_ = m.each(func(block []byte, expert, unit, first int) error {
		for row := range Rows {
			tensor, of := m.source(unit, row)
			if of < 0 {
				continue
			}
			m.unpackScales(block, row, first, to[tensor], expert, of)
			for column := first; column < min(first+Columns, m.columns); column++ {
				at, shift := m.codeAt(expert, of, column)
				p := places[row*Columns+column-first]
				for i, bit := range p.bits {
					to[tensor].Codes[at] |= block[p.word+bit/8] >> (bit % 8) & 1 << (i + shift)
				}
			}
		}
		return nil
	}, units)
	return to
}

// unpackScales is the inverse of packScales.
func (m Matrix) unpackScales(block []byte, row, first int, to packed.Matrices, expert, of int) {
	pair, lower := rowPair(row)
	step := Columns / m.groups()
	for column := first; column < min(first+Columns, m.columns); column += step {
		i, group := m.scaleAt(expert, of, column), (column-first)/step
		word := func(n int) []byte { return block[m.wordAt(pair, n):] }
		if m.HasZeros {
			to.Zeros[i] = word(m.zerosAt() + group)[2*lower] & maxZero
		}
		wide := func() []byte { return word(2*group + lower)[:4] }
		switch {
		case m.HasGlobal, m.Scale == spec.ScaleF32:
		case m.hasTerms(): // their sum has more correct bits than the F16 scale
			bits := func(n int) float32 { return num.BF16ToFloat32(binary.LittleEndian.Uint16(word(2*group + n)[2*lower:])) }
			binary.LittleEndian.PutUint16(to.Scales[2*i:], num.Float32ToF16(bits(0)+bits(1)))
		case m.Scale == spec.ScaleF16:
			binary.LittleEndian.PutUint16(to.Scales[2*i:], num.Float32ToF16(packed.Scales(spec.ScaleF32, wide())[0]))
		case m.Scale == spec.ScaleBF16 && m.inFP32():
			copy(to.Scales[2*i:][:2], wide()[2:])
		case m.Scale == spec.ScaleBF16:
			s := num.BF16ToFloat64(binary.LittleEndian.Uint16(word(group)[2*lower:])) * math.Ldexp(1, -m.excess())
			binary.LittleEndian.PutUint16(to.Scales[2*i:], num.Float64ToBF16(s))
		case m.areBytes():
			to.Scales[i] = word(group / 2)[lower*2+group%2] - byte(m.excess())
		default:
			to.Scales[i] = byte(binary.LittleEndian.Uint16(word(group)[2*lower:])>>7) - byte(m.excess())
		}
	}
}
