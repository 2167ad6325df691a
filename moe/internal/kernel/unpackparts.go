package kernel

import (
	"sync"

	"sonicmoe/internal/spec"
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

const (
	// unitWeights is the number of weights of a unit: the weights that a thread stores at once, in
	// 16 bytes. All weights of a unit have the same scale.
	unitWeights = tile.CopyBytes / tile.ElementBytes
	// batchUnits is the number of units whose loads a thread has in flight.
	batchUnits = 4
	// maxUnits and minUnits are the most and the fewest units of a thread in a part. Parts of fewer
	// units would spend more time on the counters.
	maxUnits, minUnits = 16, 4
	// maxStarts is the number of addresses of blocks that a thread keeps.
	maxStarts = 3
)

// unpackSize is the size of one matrix of an expert. A CTA unpacks a matrix in parts.
type unpackSize struct {
	p             *spec.Packing
	rows, columns int
}

// unpackMatrix has the addresses of one matrix of the experts.
type unpackMatrix struct {
	unpackSize
	codes, scales, to ptx.Global
	zeros, global     ptx.Global // if the format has them
	isOfUp            bool       // W1 or W3
}

// unpackSizes returns the sizes of W1, W3 (with GateUp "apart") and W2.
func unpackSizes(c spec.Config) []unpackSize {
	s, p := c.Shapes(0), spec.PackingOf(c)
	list := []unpackSize{{p, int(s.W1.Dims[1]), c.Hidden}}
	if c.GateUp == spec.Apart {
		list = append(list, unpackSize{p, int(s.W3.Dims[1]), c.Hidden})
	}
	return append(list, unpackSize{p, int(s.W2.Dims[1]), c.Intermediate})
}

// upParts returns the number of parts of W1 and W3 of an expert.
func upParts(c spec.Config) (n int) {
	sizes := unpackSizes(c)
	for _, m := range sizes[:len(sizes)-1] {
		n += m.parts()
	}
	return n
}

// unitBytes returns the size of a unit's codes.
func (m unpackSize) unitBytes() int { return unitWeights * m.p.Code.Bits() / 8 }

// perRow returns the number of units of a row. units returns the number of units of the matrix.
func (m unpackSize) perRow() int { return m.columns / unitWeights }
func (m unpackSize) units() int  { return m.rows * m.perRow() }

// parts returns the number of parts of the matrix.
func (m unpackSize) parts() int { return (m.units() + m.partUnits() - 1) / m.partUnits() }

// partUnits returns the number of units of a part. If possible, all parts are equal and have whole
// rows.
func (m unpackSize) partUnits() int {
	for _, good := range []func(units int) bool{m.isPeriodic, func(int) bool { return true }} {
		for n := maxUnits; n >= minUnits; n-- {
			if units := n * unpackThreads; m.units()%units == 0 && good(units) {
				return units
			}
		}
	}
	return minUnits * unpackThreads
}

// isRagged reports whether the last part is smaller than the others.
func (m unpackSize) isRagged() bool { return m.units()%m.partUnits() != 0 }

// hasPeriod reports whether the blocks of a thread's units in a part have constant distances.
func (m unpackSize) hasPeriod() bool { return !m.isRagged() && m.isPeriodic(m.partUnits()) }

// period returns after how many of a thread's units the column is the same.
func (m unpackSize) period() int {
	n := 1
	for n*unpackThreads%m.perRow() != 0 {
		n++
	}
	return n
}

// isPeriodic reports whether the blocks of a thread's units have constant distances in parts of a
// number of units.
func (m unpackSize) isPeriodic(units int) bool {
	rows, perBlock := units/m.perRow(), m.p.Columns/unitWeights
	sameRows := m.p.Rows == 1 || m.p.Rows%max(1, rows) == 0 || m.p.Rows >= m.rows
	sameColumns := m.perRow()%unpackThreads == 0 && (unpackThreads%perBlock == 0 || perBlock >= m.perRow())
	return units%m.perRow() == 0 && sameRows && (m.period() <= maxStarts || sameColumns)
}

// blocks returns a function that starts to load scale and zero point of the thread's unit number i in
// a part, and returns a function that converts them. first is the thread's first unit in the matrix. In
// a part of whole rows, units whose numbers differ by a period are in the same column: their blocks
// have constant distances.
func (e *unpacking) blocks(m unpackMatrix, expert, part, first ptx.U32) func(i int) (block func() (scale, zero ptx.F32)) {
	down, across := m.p.Blocks(int64(m.rows), int64(m.columns))
	perBlock := m.p.Columns / unitWeights
	at := blockAt{p: m.p, scales: m.scales.Index(expert, int(down*across)*int(m.p.Scale.Type().Bytes()))}
	if m.p.HasZeros {
		at.zeros = m.zeros.Index(expert, int(down*across))
	}
	if m.p.HasGlobal {
		at.global = ptx.LdGlobal[ptx.F32](m.global.Index(expert, 4), ".nc")
	}
	of := func(row, unit ptx.U32) blockAt { // a row of the matrix, and a unit of the row
		return at.plus(row.DivI(m.p.Rows).MulI(int(across)).Add(unit.DivI(perBlock)))
	}
	if !m.hasPeriod() {
		return func(i int) func() (scale, zero ptx.F32) {
			unit := first.AddI(i * unpackThreads)
			row := unit.DivI(m.perRow())
			return of(row, unit.Sub(row.MulI(m.perRow()))).load(0)
		}
	}
	period, firstRow := m.period(), part.MulI(m.partUnits()/m.perRow())
	var starts []blockAt // of the first units in each column, or of unit 0
	for j := range min(period, maxStarts) {
		unit := e.tid.AddI(j * unpackThreads)
		row := unit.DivI(m.perRow())
		starts = append(starts, of(firstRow.Add(row), unit.Sub(row.MulI(m.perRow()))))
	}
	loaded := map[int]func() (scale, zero ptx.F32){}
	return func(i int) func() (scale, zero ptx.F32) {
		start, further := i%period, 0
		if m.p.Rows == 1 {
			further = i / period * (period * unpackThreads / m.perRow()) * int(across)
		}
		if period > maxStarts {
			start, further = 0, further+i%period*unpackThreads/perBlock
		}
		if m.p.Rows == 1 || period > maxStarts {
			return starts[start].load(further)
		}
		if loaded[start] == nil {
			loaded[start] = sync.OnceValues(starts[start].load(further))
		}
		return loaded[start]
	}
}

// blockAt has the addresses of a block's scale and zero point.
type blockAt struct {
	p             *spec.Packing
	scales, zeros ptx.Global
	global        ptx.F32
}

// plus returns the addresses of a block that is a number of blocks further.
func (b blockAt) plus(number ptx.U32) blockAt {
	b.scales = b.scales.Index(number, int(b.p.Scale.Type().Bytes()))
	if b.p.HasZeros {
		b.zeros = b.zeros.Index(number, 1)
	}
	return b
}

// load loads scale and zero point of the block that is a number of blocks further. The function that it
// returns converts them to the numbers that the values need: the scale, and what is subtracted from an
// integer code, which is wholeBits plus the zero point.
func (b blockAt) load(further int) (block func() (scale, zero ptx.F32)) {
	convert := loadScale(b.p.Scale, b.scales.At(further*int(b.p.Scale.Type().Bytes())))
	const zeroOfInt4 = 8
	zero := ptx.Float(wholeBits + zeroOfInt4).Bits()
	if b.p.HasZeros {
		zero = ptx.LdGlobalByte(b.zeros.At(further), ".nc")
	}
	return func() (ptx.F32, ptx.F32) {
		scale := convert()
		if b.p.HasGlobal {
			scale = scale.Mul(b.global)
		}
		return scale, zero.Or(ptx.Float(wholeBits).Bits()).AsF32()
	}
}

// loadScale loads a scale, and returns a function that converts it to FP32.
func loadScale(of spec.Scale, at ptx.Global) (convert func() ptx.F32) {
	switch of {
	case spec.ScaleF32:
		scale := ptx.LdGlobal[ptx.F32](at, ".nc")
		return func() ptx.F32 { return scale }
	case spec.ScaleBF16, spec.ScaleF16:
		half, element := ptx.LdGlobal[ptx.B16](at, ".nc"), tile.BF16
		if of == spec.ScaleF16 {
			element = tile.F16
		}
		return func() ptx.F32 { return element.Wide(half) }
	}
	code := ptx.LdGlobalByte(at, ".nc")
	return func() ptx.F32 {
		if of == spec.ScaleE4M3 {
			return float(spec.E4M3, code, 0)
		}
		// An E8M0 scale is the exponent of an FP32. Two bytes are special: 0 means 2^-127, which is a
		// subnormal FP32, and 255 means NaN. Both have the highest bit of the fraction set.
		isEdge := code.AddI(1).AndI(0xff).LeI(1)
		return code.ShlI(23).Or(ptx.Select(isEdge, ptx.Uint(1<<22), ptx.Uint(0))).AsF32()
	}
}
