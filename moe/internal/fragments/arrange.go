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

// Arrange is the kernel that writes a layer's packed weights as units, see the package comment. It
// reads the tensors of the published model and writes the same bytes as [Matrix.Pack]. It counts
// the values that Pack refuses.
type Arrange struct{ spec.Config }

// ArrangeArgs are the arguments of [Arrange].
type ArrangeArgs struct {
	// W1, W3 and W2 are the codes of the weights. W1Scale to W2Scale are the scales of the codes.
	// The zero points and the global scales are used if the format has them. W3, its scales and its
	// zero points are used if Config.GateUp is "apart".
	W1, W3, W2                   driver.DevicePtr
	W1Scale, W3Scale, W2Scale    driver.DevicePtr
	W1Zero, W3Zero, W2Zero       driver.DevicePtr
	W1Global, W3Global, W2Global driver.DevicePtr
	// Units1 and Units2 are outputs: the units of [W1] and of [W2].
	Units1, Units2 driver.DevicePtr
	// Refused u32 must be 0 at the start. The kernel adds 1 for each code, scale or zero point that
	// is NaN or out of the range of the units.
	Refused driver.DevicePtr
}

const arrangeCTAs = 4 // CTAs for each SM

// Build emits the kernel. A CTA is one warpgroup. It writes a block at a time, and each thread
// writes the bytes of the block that the same thread of a product will read.
func (a Arrange) Build() (*jit.Kernel[ArrangeArgs], error) {
	k := jit.NewBuilder[ArrangeArgs]("moe_arrange", pipeline.WarpgroupThreads, arrangeCTAs)
	k.SetGrid(func(_ *ArrangeArgs, sms int) gpu.Dim3 { return gpu.Dim3{X: arrangeCTAs * sms} })
	first := arranging{Matrix: W1(a.Config), k: k.Kernel}
	tensor := func(codes, scales, zeros, global *driver.DevicePtr) published {
		of := published{codes: k.Ptr(codes), scales: k.Ptr(scales)}
		if first.HasZeros {
			of.zeros = k.Ptr(zeros)
		}
		if first.HasGlobal {
			of.global = k.Ptr(global)
		}
		return of
	}
	args := k.Args
	first.published, first.units = []published{tensor(&args.W1, &args.W1Scale, &args.W1Zero, &args.W1Global)}, k.Ptr(&args.Units1)
	if a.GateUp == spec.Apart {
		first.published = append(first.published, tensor(&args.W3, &args.W3Scale, &args.W3Zero, &args.W3Global))
	}
	second := arranging{Matrix: W2(a.Config), k: k.Kernel, published: []published{tensor(&args.W2, &args.W2Scale, &args.W2Zero, &args.W2Global)}, units: k.Ptr(&args.Units2)}
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

// arranging is a matrix whose units the kernel writes.
type arranging struct {
	Matrix
	k              *ptx.Kernel
	published      []published
	units, refused ptx.Global
}

// published has the addresses of a matrix in the order of the model's files. zeros (the zero points)
// and global (the global scales) are set if the format has them.
type published struct{ codes, scales, zeros, global ptx.Global }

// arrangedRow is one of a thread's two rows of a block. The rows are 8 apart, and are called the
// upper and the lower row.
type arrangedRow struct {
	published
	// number is the row's number, counted over the published matrices of all experts. The field
	// `is` tells whether the row exists, because the last unit has rows past the end of the matrix.
	number ptx.U32
	is     ptx.Pred
	// inExpert is the row's number in the matrix of its expert. expert is the expert's number.
	inExpert, expert ptx.U32
}

// rowsOfThread returns the upper and the lower row of a thread. pair is the number of these two
// rows in the unit, see [rowPair].
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
		rows[side] = arrangedRow{published: m.published[tensor], number: expert.MulI(m.rows).Add(row), is: is, inExpert: row, expert: expert}
	}
	return rows
}

// block writes the thread's part of a block. number counts the blocks of all experts' units.
func (m *arranging) block(c spec.Config, isFirst bool, number ptx.U32) {
	k := m.k
	unit := number.DivI(m.Blocks())
	first := number.Sub(unit.MulI(m.Blocks())).MulI(Columns)
	expert := unit.DivI(m.Units)
	pair, quad := k.TidX().ShrI(2), k.Lane().AndI(3)
	rows := m.rowsOfThread(c, isFirst, expert, unit.Sub(expert.MulI(m.Units)), pair)
	to := m.units.Index(number, m.BlockBytes())
	each := Columns / tile.K * m.codeBytes() / planeBytes * loadBytes / 4 // number of 32-bit words of codes that each thread writes
	for i := 0; i < each; i += loadBytes / 4 {
		var words []ptx.U32
		for w := range loadBytes / 4 {
			words = append(words, m.word(rows, first, i+w, quad))
		}
		ptx.StGlobal(to.At(i/4*planeBytes).Plus(k.TidX().MulI(loadBytes).U64()), words...)
	}
	k.If(quad.EqI(0), func() {
		words := m.scaleWordsOf(rows, first)
		for each, i := min(planeWords, len(words)), 0; i < len(words); i += each {
			ptx.StGlobal(to.At(m.wordAt(0, i)).Index(pair, 4*each), words[i:][:each]...)
		}
	})
}

// refuse counts a value that units cannot represent.
func (m *arranging) refuse(when ptx.Pred) {
	m.k.If(when, func() { m.k.RedGlobalAdd(m.refused, ptx.Uint(1)) })
}

// word returns the i-th 32-bit word of the thread's codes in a block that starts at column first. A
// register of a wgmma fragment holds two codes of one row. A word has the codes of perWord
// registers, and consecutive registers alternate between the thread's two rows.
func (m *arranging) word(rows [2]arrangedRow, first ptx.U32, i int, quad ptx.U32) ptx.U32 {
	bits := m.Code.Bits()
	places := spread[m.Code]
	perWord := len(places) // number of registers whose codes share a word
	word := ptx.Uint(0)
	for r := range perWord {
		register := i*perWord + r // number of the register among the thread's registers of the block; a step of 16 columns has four registers
		column := first.AddI(register/4*tile.KStep + register/2%2*8)
		row := rows[register%2]
		is := row.is.And(column.LtI(m.columns))
		at := row.codes.Index(row.number, m.columns*bits/8).Plus(ptx.Select(is, column, ptx.Uint(0)).MulI(bits).ShrI(3).U64())
		codes := ptx.Select(is, m.two(at, quad), ptx.Uint(int(m.zero())*(1+1<<bits)))
		if m.Code == spec.E4M3 {
			isNaN := func(c ptx.U32) ptx.Pred { return c.AndI(0x7f).EqI(0x7f) }
			m.refuse(isNaN(codes).Or(isNaN(codes.ShrI(8))))
		}
		word = word.Or(spreadTwo(codes, bits, places[r]))
	}
	return word
}

// two loads the two codes that belong to this thread among eight consecutive codes at the address.
// quad is the thread's number among the four threads that share a row.
func (m *arranging) two(at ptx.Global, quad ptx.U32) ptx.U32 {
	if m.Code.Bits() == 4 {
		return ptx.LdGlobal[ptx.U32](at, ".nc").Shr(quad.MulI(8)).AndI(0xff)
	}
	return ptx.LdGlobal[ptx.U32](at.Plus(quad.ShrI(1).MulI(4).U64()), ".nc").Shr(quad.AndI(1).MulI(16)).AndI(0xffff)
}

// spreadTwo moves the bits of two codes to their positions in a word. places has the position of
// each bit of the first code, see [spread].
func spreadTwo(codes ptx.U32, bits int, places []int) ptx.U32 {
	word := ptx.Uint(0)
	for half := range 2 {
		for i := 0; i < bits; {
			n := 1 // bits i to i+n-1 move by the same distance
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

// scaleWordsOf returns the words that hold the scales and zero points of both rows in the block that
// starts at column first.
func (m *arranging) scaleWordsOf(rows [2]arrangedRow, first ptx.U32) []ptx.U32 {
	words := make([]ptx.U32, m.scaleWords())
	for i := range words {
		words[i] = ptx.Uint(0)
	}
	for side, row := range rows {
		for group := range m.groups() {
			column := first.AddI(group * (Columns / m.groups()))
			is := row.is.And(column.LtI(m.columns))
			index := m.scaleIndex(row, ptx.Select(is, column, ptx.Uint(0)))
			at := row.scales.Plus(index.MulI(int(m.Scale.Type().Bytes())))
			if m.HasZeros {
				words[m.zerosAt()+group] = words[m.zerosAt()+group].Or(m.zeroPoint(row.zeros.Plus(index), is).ShlI(16 * side))
			}
			switch {
			case m.hasTerms():
				high, low := m.arrangeTerms(m.scale(row, at), is)
				words[2*group] = words[2*group].Or(high.ShlI(16 * side))
				words[2*group+1] = words[2*group+1].Or(low.ShlI(16 * side))
			case m.inFP32():
				words[2*group+side] = m.finite(m.scale(row, at), is)
			case m.Scale == spec.ScaleBF16:
				scale := m.finite(m.scale(row, at), is)
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

// scaleIndex returns the index of the scale of a row and column, in the tensor of scales as the
// model's files have it.
func (m *arranging) scaleIndex(row arrangedRow, column ptx.U32) ptx.U64 {
	down, across := m.Packing.Blocks(int64(m.rows), int64(m.columns))
	top := row.expert.MulI(int(down)).Add(row.inExpert.DivI(m.Packing.Rows))
	return top.U64().MulI(int(across)).Add(column.DivI(m.Packing.Columns).U64())
}

// scale loads a scale and returns its bits as an FP32 number, which includes the global scale. If units
// store this number, and not its terms, it also includes 2^excess, which corrects the exponents of codes.
func (m *arranging) scale(row arrangedRow, at ptx.Global) ptx.U32 {
	switch m.Scale {
	case spec.ScaleF32:
		return ptx.LdGlobal[ptx.U32](at, ".nc")
	case spec.ScaleBF16:
		bits := ptx.LdGlobal[ptx.B16](at, ".nc").U32().ShlI(16)
		if e := m.excess(); e > 0 { // two factors, because 2^e may be too large for FP32
			bits = bits.AsF32().Mul(ptx.Float(math.Ldexp(1, e/2))).Mul(ptx.Float(math.Ldexp(1, e-e/2))).Bits()
		}
		return bits
	case spec.ScaleF16:
		return tile.F16.Wide(ptx.LdGlobal[ptx.B16](at, ".nc")).Bits()
	case spec.ScaleE4M3: // formats with E4M3 scales always have a global scale
		scale, _ := ptx.LdGlobalByte(at, ".nc").F16FromE4M3()[0].Unpack()
		return scale.Mul(ptx.LdGlobal[ptx.F32](row.global.Index(row.expert, 4), ".nc")).Bits()
	}
	panic("fragments: scales of another type")
}

// zeroPoint loads a zero point and returns the bf16 number of 128 and the zero point, or 0 if its row
// does not exist.
func (m *arranging) zeroPoint(at ptx.Global, is ptx.Pred) ptx.U32 {
	zero := ptx.LdGlobalByte(at, ".nc")
	m.refuse(is.And(zero.GtI(maxZero)))
	return ptx.Select(is, zero.Or(ptx.Uint(integerBase&0xffff)), ptx.Uint(0))
}

// finite returns the bits of an FP32 scale if its row exists, else 0. It counts infinities and NaN
// as refused.
func (m *arranging) finite(bits ptx.U32, is ptx.Pred) ptx.U32 {
	const inf = 0x7f800000
	m.refuse(is.And(bits.AndI(1<<31 - 1).GeI(inf)))
	return ptx.Select(is, bits, ptx.Uint(0))
}

// exponent loads an E8M0 scale and returns the biased exponent of the bf16 number by which a thread
// will multiply the codes of this scale.
func (m *arranging) exponent(at ptx.Global, is ptx.Pred) ptx.U32 {
	exponent := ptx.LdGlobalByte(at, ".nc").AddI(m.excess())
	const inf = 255
	m.refuse(is.And(exponent.GeI(inf)))
	return ptx.Select(is.And(exponent.LtI(inf)), exponent, ptx.Uint(0))
}
