package kernel

import (
	"math"

	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/element"
	"sonicmoe/moe/internal/lanes"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/ptx"
)

// Unpack writes the 16-bit values of packed weights: W1, W3 and W2 of every expert that has rows.
// The kernels of plain weights then read these values. A value is the FP32 product of the code and
// its scale, rounded to the layer's Type; package packed has the details. The kernel skips experts
// without rows: it neither reads their weights nor writes their part of the output.
//
// For each weight the kernel reads the code and its part of a scale, and writes 2 bytes: 2.53 bytes
// in all for MXFP4 and 3 for FP8. Its roofline is the time to move these bytes.
type Unpack struct {
	spec.Config
	Packing *spec.Packing
}

// UnpackArgs are the arguments of [Unpack]. Tensors are laid out as Config says.
type UnpackArgs struct {
	// W1, W3 and W2 are the codes. W1Scale to W2Scale are the scales. The zero points and the
	// global scales are used if the format has them. W3, its scales and its zero points are used
	// with GateUp "apart".
	W1, W3, W2                   driver.DevicePtr
	W1Scale, W3Scale, W2Scale    driver.DevicePtr
	W1Zero, W3Zero, W2Zero       driver.DevicePtr
	W1Global, W3Global, W2Global driver.DevicePtr
	// Offsets [E+1] u32 has the first packed row of each expert, from the plan.
	Offsets driver.DevicePtr
	// ToW1, ToW3 and ToW2 [E, out, in] are the outputs.
	ToW1, ToW3, ToW2 driver.DevicePtr
}

const (
	unpackThreads = 256
	// unpackCTAs is the number of CTAs on an SM. Together they have 32 warps, enough to hide the
	// latency of loads.
	unpackCTAs = 4
	// unitWeights is the number of weights of a unit: the weights that a thread stores at once, in
	// 16 bytes. All weights of a unit have the same scale.
	unitWeights = tile.CopyBytes / tile.ElementBytes
	// unpackUnits is the number of units whose loads a thread has in flight. A CTA works on chunks
	// of unpackUnits·unpackThreads units of one matrix. Neighbouring threads have neighbouring
	// units.
	unpackUnits = 4
	chunkUnits  = unpackUnits * unpackThreads
)

// unpackMatrix has the addresses of one matrix of the experts, and its size in an expert.
type unpackMatrix struct {
	codes, scales, to ptx.Global
	zeros, global     ptx.Global // if the format has them
	rows, columns     int
}

// units returns the number of units of a matrix.
func (m unpackMatrix) units() int { return m.rows * m.columns / unitWeights }

// chunks returns the number of chunks of a matrix. The last chunk may be smaller.
func (m unpackMatrix) chunks() int { return (m.units() + chunkUnits - 1) / chunkUnits }

// Build emits the kernel.
func (u Unpack) Build() (*jit.Kernel[UnpackArgs], error) {
	k := jit.NewBuilder[UnpackArgs]("moe_unpack", unpackThreads, unpackCTAs)
	k.SetGrid(func(_ *UnpackArgs, sms int) gpu.Dim3 { return gpu.Dim3{X: unpackCTAs * sms} })
	s := u.Shapes(0)
	a := k.Args
	matrix := func(codes, scales, zeros, global, to *driver.DevicePtr, of spec.Shape, columns int) unpackMatrix {
		m := unpackMatrix{codes: k.Ptr(codes), scales: k.Ptr(scales), to: k.Ptr(to), rows: int(of.Dims[1]), columns: columns}
		if u.Packing.HasZeros {
			m.zeros = k.Ptr(zeros)
		}
		if u.Packing.HasGlobal {
			m.global = k.Ptr(global)
		}
		return m
	}
	list := []unpackMatrix{matrix(&a.W1, &a.W1Scale, &a.W1Zero, &a.W1Global, &a.ToW1, s.W1, u.Hidden)}
	if u.GateUp == spec.Apart {
		list = append(list, matrix(&a.W3, &a.W3Scale, &a.W3Zero, &a.W3Global, &a.ToW3, s.W3, u.Hidden))
	}
	list = append(list, matrix(&a.W2, &a.W2Scale, &a.W2Zero, &a.W2Global, &a.ToW2, s.W2, u.Intermediate))
	offsets := k.Ptr(&k.Args.Offsets)
	cta := pipeline.NewCTA(k.Kernel)
	e := unpacking{Unpack: u, k: k.Kernel, tid: k.TidX(), touched: cta.Shared("touched", 4*u.NumExperts, 16), ballots: cta.Shared("ballots", 4*lanes.Count, 16)}
	k.GridDepWait()
	k.GridDepLaunch()
	count := e.list(offsets)
	each := 0
	for _, m := range list {
		each += m.chunks()
	}
	k.For(k.CtaidX(), count.MulI(each), k.NctaidX(), func(chunk ptx.U32) {
		nth := chunk.DivI(each)
		expert := ptx.LdShared[ptx.U32](e.touched.Plus(nth.ShlI(2)))
		e.chunk(list, expert, chunk.Sub(nth.MulI(each)))
	})
	return k.Build()
}

// unpacking is the state of an Unpack while its code is emitted.
type unpacking struct {
	Unpack
	k   *ptx.Kernel
	tid ptx.U32
	// touched [E] u32 has the experts that have rows, in increasing order. ballots has a bit for
	// each expert: whether it has rows.
	touched, ballots ptx.Shared
}

// list writes the experts with rows to the array touched, and returns the number of these experts.
// Every CTA makes the same list. First each warp votes on groups of 32 experts. Then the position
// of an expert in the list is the number of bits before its own in all votes.
func (e *unpacking) list(offsets ptx.Global) ptx.U32 {
	k, lane, warp := e.k, e.k.Lane(), e.k.Warp()
	groups := (e.NumExperts + lanes.Count - 1) / lanes.Count
	eachGroup := func(body func(group ptx.U32)) {
		k.For(warp, ptx.Uint(groups), ptx.Uint(unpackThreads/lanes.Count), body)
	}
	eachGroup(func(group ptx.U32) {
		expert := group.ShlI(5).Add(lane)
		rows := ptx.NewVar(k, ptx.Uint(0))
		k.If(expert.LtI(e.NumExperts), func() {
			at := offsets.Index(expert, 4)
			rows.Set(ptx.LdGlobal[ptx.U32](at.At(4)).Sub(ptx.LdGlobal[ptx.U32](at)))
		})
		has := k.VoteBallot(rows.Get().NeI(0), ptx.Uint(ptx.FullMask))
		k.If(lane.EqI(0), func() { ptx.StShared(e.ballots.Plus(group.ShlI(2)), has) })
	})
	k.BarSync(ptx.Uint(0))
	ballot := ptx.NewVar(k, ptx.Uint(0))
	k.If(lane.LtI(groups), func() { ballot.Set(ptx.LdShared[ptx.U32](e.ballots.Plus(lane.ShlI(2)))) })
	bits := ballot.Get()
	own := bits.Popc()
	upTo := lanes.PrefixSum(own, lane)
	eachGroup(func(group ptx.U32) {
		has, before := bits.ShflIdx(group), upTo.Sub(own).ShflIdx(group)
		k.If(has.Shr(lane).AndI(1).NeI(0), func() {
			place := before.Add(has.And(k.LanemaskLt()).Popc())
			ptx.StShared(e.touched.Plus(place.ShlI(2)), group.ShlI(5).Add(lane))
		})
	})
	k.BarSync(ptx.Uint(0))
	return upTo.ShflIdx(ptx.Uint(lanes.Count - 1))
}

// chunk unpacks one chunk of an expert. Chunks are numbered through all matrices in list.
func (e *unpacking) chunk(list []unpackMatrix, expert, chunk ptx.U32) {
	m := list[0]
	if len(list) == 1 {
		e.matrix(m, expert, chunk)
		return
	}
	e.k.IfElse(chunk.LtI(m.chunks()),
		func() { e.matrix(m, expert, chunk) },
		func() { e.chunk(list[1:], expert, chunk.SubI(m.chunks())) })
}

// matrix unpacks one chunk of a matrix.
func (e *unpacking) matrix(m unpackMatrix, expert, chunk ptx.U32) {
	k, p := e.k, e.Packing
	words := unitWeights * p.Code.Bits() / 32
	codes := m.codes.Index(expert, m.units()*4*words)
	down, across := p.Blocks(int64(m.rows), int64(m.columns))
	blocks := int(down * across)
	scales := m.scales.Index(expert, blocks*int(p.Scale.Type().Bytes()))
	to := m.to.Index(expert, m.units()*tile.CopyBytes)
	var units []ptx.U32
	var packed [][]ptx.U32
	var scale, zero []ptx.F32
	var global ptx.F32
	if p.HasGlobal {
		global = ptx.LdGlobal[ptx.F32](m.global.Index(expert, 4), ".nc")
	}
	for i := range unpackUnits {
		unit := chunk.MulI(chunkUnits).Add(e.tid).AddI(i * unpackThreads)
		units = append(units, unit)
		if m.units()%chunkUnits != 0 {
			unit = unit.Min(ptx.Uint(m.units() - 1))
		}
		at := codes.Index(unit, 4*words)
		if words == 1 {
			packed = append(packed, []ptx.U32{ptx.LdGlobal[ptx.U32](at, ".nc")})
		} else {
			packed = append(packed, ptx.LdGlobalVec[ptx.U32](at, words, ".nc"))
		}
		perRow := m.columns / unitWeights
		row := unit.DivI(perRow)
		block := row.DivI(p.Rows).MulI(int(across)).Add(unit.Sub(row.MulI(perRow)).DivI(p.Columns / unitWeights))
		s := e.scale(scales, block)
		if p.HasGlobal {
			s = s.Mul(global)
		}
		scale = append(scale, s)
		zero = append(zero, e.zero(m, expert, blocks, block))
	}
	for i, unit := range units {
		store := func() { ptx.StGlobal(to.Index(unit, tile.CopyBytes), e.values(packed[i], scale[i], zero[i])...) }
		if m.units()%chunkUnits == 0 {
			store()
		} else {
			k.If(unit.LtI(m.units()), store)
		}
	}
}

// scale loads the scale of a block as FP32.
func (e *unpacking) scale(scales ptx.Global, block ptx.U32) ptx.F32 {
	switch e.Packing.Scale {
	case spec.ScaleF32:
		return ptx.LdGlobal[ptx.F32](scales.Index(block, 4), ".nc")
	case spec.ScaleBF16:
		return tile.BF16.Wide(ptx.LdGlobal[ptx.B16](scales.Index(block, 2), ".nc"))
	case spec.ScaleF16:
		return tile.F16.Wide(ptx.LdGlobal[ptx.B16](scales.Index(block, 2), ".nc"))
	case spec.ScaleE4M3:
		return float(spec.E4M3, ptx.LdGlobalByte(scales.Plus(block.U64()), ".nc"), 0)
	}
	// An E8M0 scale is the exponent of an FP32. Two bytes are special: 0 means 2^-127, which is a
	// subnormal FP32, and 255 means NaN. Both have the highest bit of the fraction set.
	code := ptx.LdGlobalByte(scales.Plus(block.U64()), ".nc")
	isEdge := code.AddI(1).AndI(0xff).LeI(1)
	return code.ShlI(23).Or(ptx.Select(isEdge, ptx.Uint(1<<22), ptx.Uint(0))).AsF32()
}

// zero returns the number that the method value subtracts from an integer code of the block:
// wholeBits plus the zero point. Floating-point codes do not use it.
func (e *unpacking) zero(m unpackMatrix, expert ptx.U32, blocks int, block ptx.U32) ptx.F32 {
	switch e.Packing.Code {
	case spec.Int4:
		const zero = 8
		return ptx.Float(wholeBits + zero)
	case spec.UInt4:
		return ptx.LdGlobalByte(m.zeros.Index(expert, blocks).Plus(block.U64()), ".nc").Or(ptx.Float(wholeBits).Bits()).AsF32()
	}
	return ptx.F32{}
}

// wholeBits is 2^23. FP32 numbers from 2^23 on have steps of 1, so a code that is ORed into the
// bits of wholeBits is added to it.
const wholeBits = 1 << 23

// values returns the 16-bit values of a unit, two in each word.
func (e *unpacking) values(codes []ptx.U32, scale, zero ptx.F32) []ptx.U32 {
	bits := e.Packing.Code.Bits()
	var values []ptx.F32
	for _, word := range codes {
		if e.Packing.Code == spec.E4M3 {
			for _, pair := range word.F16FromE4M3() {
				first, second := pair.Unpack()
				values = append(values, first.Mul(scale), second.Mul(scale))
			}
			continue
		}
		for at := 0; at < 32; at += bits {
			value := e.value(word, at, zero)
			if e.Packing.Code == spec.Int4 { // its zero is +0 with scales of both signs
				values = append(values, value.Fma(scale, ptx.Float(0)))
			} else {
				values = append(values, value.Mul(scale))
			}
		}
	}
	var words []ptx.U32
	for i := 0; i < len(values); i += 2 {
		words = append(words, element.Of(e.Config).Pack(e.k, values[i], values[i+1]))
	}
	return words
}

// value returns the value of the code whose lowest bit is bit `at` of word.
func (e *unpacking) value(word ptx.U32, at int, zero ptx.F32) ptx.F32 {
	if e.Packing.Code == spec.E2M1 {
		return float(spec.E2M1, word, at)
	}
	return word.ShrI(at).AndI(0xf).Or(ptx.Float(wholeBits).Bits()).AsF32().Sub(zero)
}

// float returns the value of a floating-point code. The code's lowest bit is bit `at` of
// word. The code's exponent and fraction are moved to the exponent and fraction of an FP32
// number, and a product corrects the exponent's bias. The product also gives subnormal codes
// their value.
func float(of spec.Code, word ptx.U32, at int) ptx.F32 {
	shifted := func(by int) ptx.U32 { // moves bit `at` of word to bit `by`
		if at < by {
			return word.ShlI(by - at)
		}
		return word.ShrI(at - by)
	}
	bits, fraction, bias := 4, 1, 1
	if of == spec.E4M3 {
		bits, fraction, bias = 8, 3, 7
	}
	ones := 1<<(bits-1) - 1
	number := shifted(23 - fraction).AndI(ones << (23 - fraction))
	if of == spec.E4M3 {
		number = ptx.Select(number.EqI(ones<<(23-fraction)), ptx.Uint(0x7fc00000), number)
	}
	sign := shifted(32 - bits).And(ptx.Uint(1 << 31))
	return number.Or(sign).AsF32().Mul(ptx.Float(math.Ldexp(1, 127-bias)))
}

// UnpackWork returns the work of Unpack if all experts have rows.
func UnpackWork(c spec.Config, _ int) spec.Work {
	weights := float64(c.NumExperts) * float64(c.HWidth()+c.Intermediate) * float64(c.Hidden)
	return spec.Work{Kernel: "unpack", Bytes: weights * (spec.PackingOf(c).BytesOfWeight() + tile.ElementBytes)}
}

// UnpackKernel is for layers with packed weights.
var UnpackKernel = &registry.Kernel[UnpackArgs]{KernelName: "unpack", Only: spec.IsPacked, Roofline: registry.Works{UnpackWork},
	From: func(c spec.Config) spec.Config {
		return spec.Config{Hidden: c.Hidden, Intermediate: c.Intermediate, NumExperts: c.NumExperts, GateUp: c.GateUp, Activation: c.Activation, Weights: c.Weights, Type: c.Type}
	},
	Emit: func(l registry.Layer) (*jit.Kernel[UnpackArgs], error) {
		return Unpack{Config: l.Config, Packing: spec.PackingOf(l.Config)}.Build()
	}}
