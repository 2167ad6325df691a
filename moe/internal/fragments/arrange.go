package fragments

import (
	"math"

	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

// Arrange is the kernel that writes the units of a layer's packed weights from its tensors
// as published. It has the bytes of [Matrix.Pack], and counts what Pack refuses.
type Arrange struct{ spec.Config }

// ArrangeArgs are the arguments of [Arrange].
type ArrangeArgs struct {
	// W1, W3 and W2 are codes, W1Scale, W3Scale and W2Scale their scales. W3 is there with
	// GateUp "apart".
	W1, W3, W2                driver.DevicePtr
	W1Scale, W3Scale, W2Scale driver.DevicePtr
	// Units1 and Units2 are written: the units of [W1] and of [W2].
	Units1, Units2 driver.DevicePtr
	// Refused u32 must be 0 at the start. Each thread adds 1 for each code or scale that units cannot
	// represent: NaN, or out of range.
	Refused driver.DevicePtr
}

const arrangeCTAs = 4 // of an SM

// Build emits the kernel. A CTA is a warpgroup, whose threads write their own parts of a
// block.
func (a Arrange) Build() (*jit.Kernel[ArrangeArgs], error) {
	k := jit.NewBuilder[ArrangeArgs]("moe_arrange", pipeline.WarpgroupThreads, arrangeCTAs)
	k.SetGrid(func(_ *ArrangeArgs, sms int) gpu.Dim3 { return gpu.Dim3{X: arrangeCTAs * sms} })
	first := arranging{Matrix: W1(a.Config), k: k.Kernel, codes: []ptx.Global{k.Ptr(&k.Args.W1)}, scales: []ptx.Global{k.Ptr(&k.Args.W1Scale)}, units: k.Ptr(&k.Args.Units1)}
	if a.GateUp == spec.Apart {
		first.codes, first.scales = append(first.codes, k.Ptr(&k.Args.W3)), append(first.scales, k.Ptr(&k.Args.W3Scale))
	}
	second := arranging{Matrix: W2(a.Config), k: k.Kernel, codes: []ptx.Global{k.Ptr(&k.Args.W2)}, scales: []ptx.Global{k.Ptr(&k.Args.W2Scale)}, units: k.Ptr(&k.Args.Units2)}
	refused := k.Ptr(&k.Args.Refused)
	first.refused, second.refused = refused, refused
	k.GridDepWait()
	k.GridDepLaunch()
	blocks := func(m *arranging) int { return m.experts * m.Units * m.Blocks() }
	k.For(k.CtaidX(), ptx.Uint(blocks(&first)+blocks(&second)), k.NctaidX(), func(i ptx.U32) {
		k.IfElse(i.LtI(blocks(&first)), func() { first.block(a.Config, true, i) }, func() { second.block(a.Config, false, i.SubI(blocks(&first))) })
	})
	return k.Build()
}

// arranging is a matrix whose units are written.
type arranging struct {
	Matrix
	k              *ptx.Kernel
	codes, scales  []ptx.Global
	units, refused ptx.Global
}

// arrangedRow is a row of a thread's pair.
type arrangedRow struct {
	codes, scales ptx.Global
	// number is the row's number over all experts' matrices; is is false past their end.
	number ptx.U32
	is     ptx.Pred
	// inExpert is the row's number in its matrix, expert the matrix' number.
	inExpert, expert ptx.U32
}

// rowsOfThread returns the upper and the lower row of the thread's pair.
func (m *arranging) rowsOfThread(c spec.Config, isFirst bool, expert, unit, pair ptx.U32) (rows [2]arrangedRow) {
	for side := range rows {
		tensor := 0
		var row ptx.U32
		var is ptx.Pred
		if isFirst && c.Activation.Gated() {
			neuron := unit.MulI(Rows / 2).Add(pair)
			is = neuron.LtI(c.Intermediate)
			switch c.GateUp {
			case spec.Apart:
				tensor, row = side, neuron
			case spec.Interleaved:
				row = neuron.MulI(2).AddI(side)
			default:
				row = neuron.AddI(side * c.Intermediate)
			}
		} else {
			row = unit.MulI(Rows).Add(pair.ShrI(3).MulI(16)).Add(pair.AndI(7)).AddI(8 * side)
			is = row.LtI(m.rows)
		}
		row = ptx.Select(is, row, ptx.Uint(0))
		rows[side] = arrangedRow{codes: m.codes[tensor], scales: m.scales[tensor], number: expert.MulI(m.rows).Add(row), is: is, inExpert: row, expert: expert}
	}
	return rows
}

// block writes the thread's part of a block.
func (m *arranging) block(c spec.Config, isFirst bool, number ptx.U32) {
	k := m.k
	unit := number.DivI(m.Blocks())
	first := number.Sub(unit.MulI(m.Blocks())).MulI(Columns)
	expert := unit.DivI(m.Units)
	pair, quad := k.TidX().ShrI(2), k.Lane().AndI(3)
	rows := m.rowsOfThread(c, isFirst, expert, unit.Sub(expert.MulI(m.Units)), pair)
	to := m.units.Index(number, m.BlockBytes())
	each := Columns / tile.K * m.codeBytes() / planeBytes * loadBytes / 4 // words of codes of a thread
	for i := 0; i < each; i += loadBytes / 4 {
		var words []ptx.U32
		for w := range loadBytes / 4 {
			words = append(words, m.word(rows, first, i+w, quad))
		}
		ptx.StGlobal(to.At(i/4*planeBytes).Plus(k.TidX().MulI(loadBytes).U64()), words...)
	}
	k.If(quad.EqI(0), func() {
		ptx.StGlobal(to.At(m.scalesAt()).Index(pair, 4*m.scaleWords()), m.scaleWordsOf(rows, first)...)
	})
}

// refuse counts a value without a place.
func (m *arranging) refuse(when ptx.Pred) {
	m.k.If(when, func() { m.k.RedGlobalAdd(m.refused, ptx.Uint(1)) })
}

// word returns word i of the thread's codes. A word has the codes of one or two registers of
// wgmma's fragment; registers alternate between the thread's two rows.
func (m *arranging) word(rows [2]arrangedRow, first ptx.U32, i int, quad ptx.U32) ptx.U32 {
	bits := m.Code.Bits()
	perWord := len(spread[m.Code]) // registers
	word := ptx.Uint(0)
	for r := range perWord {
		register := i*perWord + r // of the thread's block, four of each step
		column := first.AddI(register/4*tile.KStep + register/2%2*8)
		row := rows[register%2]
		is := row.is.And(column.LtI(m.columns))
		at := row.codes.Index(row.number, m.columns*bits/8).Plus(ptx.Select(is, column, ptx.Uint(0)).MulI(bits).ShrI(3).U64())
		codes := ptx.Select(is, m.two(at, quad), ptx.Uint(int(m.zero())*(1+1<<bits)))
		if m.Code == spec.E4M3 {
			isNaN := func(c ptx.U32) ptx.Pred { return c.AndI(0x7f).EqI(0x7f) }
			m.refuse(isNaN(codes).Or(isNaN(codes.ShrI(8))))
		}
		word = word.Or(spreadTwo(codes, bits, spread[m.Code][r]))
	}
	return word
}

// two loads the thread's two codes of eight.
func (m *arranging) two(at ptx.Global, quad ptx.U32) ptx.U32 {
	if m.Code.Bits() == 4 {
		return ptx.LdGlobal[ptx.U32](at, ".nc").Shr(quad.MulI(8)).AndI(0xff)
	}
	return ptx.LdGlobal[ptx.U32](at.Plus(quad.ShrI(1).MulI(4).U64()), ".nc").Shr(quad.AndI(1).MulI(16)).AndI(0xffff)
}

// spreadTwo moves the bits of two codes to their places in a word.
func spreadTwo(codes ptx.U32, bits int, places []int) ptx.U32 {
	word := ptx.Uint(0)
	for half := range 2 {
		for i := 0; i < bits; {
			n := 1 // bits whose places follow one another
			for i+n < bits && places[i+n] == places[i]+n {
				n++
			}
			from, to := half*bits+i, (places[i]+16*half)%32
			moved := codes.ShlI(max(0, to-from)).ShrI(max(0, from-to))
			word = word.Or(moved.And(ptx.Uint((1<<n - 1) << to)))
			i += n
		}
	}
	return word
}

// scaleWordsOf returns the words of the pair's scales in a block.
func (m *arranging) scaleWordsOf(rows [2]arrangedRow, first ptx.U32) []ptx.U32 {
	words := make([]ptx.U32, m.scaleWords())
	for i := range words {
		words[i] = ptx.Uint(0)
	}
	for side, row := range rows {
		for group := range m.groups() {
			column := first.AddI(group * (Columns / m.groups()))
			is := row.is.And(column.LtI(m.columns))
			at := row.scales.Plus(m.scaleIndex(row, ptx.Select(is, column, ptx.Uint(0))).MulI(int(m.Scale.Type().Bytes())))
			switch {
			case m.Scale == spec.ScaleF32:
				words[side] = m.finite(ptx.LdGlobal[ptx.F32](at, ".nc").Mul(ptx.Float(math.Ldexp(1, m.excess()))).Bits(), is)
			case m.Scale == spec.ScaleBF16:
				scale := m.finite(ptx.LdGlobal[ptx.B16](at, ".nc").U32().ShlI(16), is)
				words[group] = words[group].Or(scale.ShrI(16 - 16*side))
			case m.areBytes():
				words[group/2] = words[group/2].Or(m.exponent(at, is).ShlI(8 * (2*side + group%2)))
			default:
				words[group] = words[group].Or(m.exponent(at, is).ShlI(7 + 16*side))
			}
		}
	}
	return words
}

// scaleIndex is the index of a row's scale for a column.
func (m *arranging) scaleIndex(row arrangedRow, column ptx.U32) ptx.U64 {
	down, across := m.Packing.Blocks(int64(m.rows), int64(m.columns))
	top := row.expert.MulI(int(down)).Add(row.inExpert.DivI(m.Packing.Rows))
	return top.U64().MulI(int(across)).Add(column.DivI(m.Packing.Columns).U64())
}

// finite returns the bits of an FP32, or 0 if it is not of a row. It refuses infinities and NaN.
func (m *arranging) finite(bits ptx.U32, is ptx.Pred) ptx.U32 {
	const inf = 0x7f800000
	m.refuse(is.And(bits.AndI(1<<31 - 1).GeI(inf)))
	return ptx.Select(is, bits, ptx.Uint(0))
}

// exponent loads a scale E8M0 and returns the exponent of the bf16 that restores a code.
func (m *arranging) exponent(at ptx.Global, is ptx.Pred) ptx.U32 {
	exponent := ptx.LdGlobalByte(at, ".nc").AddI(m.excess())
	const inf = 255
	m.refuse(is.And(exponent.GeI(inf)))
	return ptx.Select(is.And(exponent.LtI(inf)), exponent, ptx.Uint(0))
}
