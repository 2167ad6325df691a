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
// Experts come one after the other, as in the table of row pairs, so that Up can run at the same time
// (see UpBesideKernel). Up then has 160 registers a thread. The launch of Unpack is not programmatic:
// CTAs that start while the plan still runs are not spread evenly, and a CTA of Up does not fit on an
// SM with two of them.
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
	// Ready [E] u32 is an output, see [gemm.Await]: the kernel adds the number of written parts of W1
	// and W3.
	Ready driver.DevicePtr
	// Beside launches one CTA on each SM, next to which a CTA of the next kernel has room.
	Beside bool
}

const (
	unpackThreads = 128
	// unpackRegisters is the number of registers of a thread, and besideUpRegisters that of a thread of
	// the Up that runs at the same time. Each quarter of an SM has 16,384 registers: enough for three
	// warps of Up and one of Unpack.
	unpackRegisters   = 32
	besideUpRegisters = 160
	// unpackCTAs is the number of CTAs on an SM that Unpack has for itself.
	unpackCTAs = 16
)

// Build emits the kernel.
func (u Unpack) Build() (*jit.Kernel[UnpackArgs], error) {
	k := jit.NewBuilder[UnpackArgs]("moe_unpack", unpackThreads, 1)
	k.SetMaxRegisters(unpackRegisters)
	k.SetGrid(func(a *UnpackArgs, sms int) gpu.Dim3 {
		if a.Beside {
			return gpu.Dim3{X: sms}
		}
		return gpu.Dim3{X: unpackCTAs * sms}
	})
	list := u.matrices(k)
	offsets, ready := k.Ptr(&k.Args.Offsets), k.Ptr(&k.Args.Ready)
	cta := pipeline.NewCTA(k.Kernel)
	e := unpacking{Unpack: u, k: k.Kernel, tid: k.TidX(), touched: cta.Shared("touched", 4*u.NumExperts, 16), ballots: cta.Shared("ballots", 4*lanes.Count, 16)}
	k.GridDepLaunch()
	e.parts(e.listed(offsets), list, ready)
	return k.Build()
}

// matrices declares the parameters of W1, W3 (with GateUp "apart") and W2.
func (u Unpack) matrices(k *jit.Builder[UnpackArgs]) []unpackMatrix {
	a, sizes := k.Args, unpackSizes(u.Config)
	matrix := func(codes, scales, zeros, global, to *driver.DevicePtr, of unpackSize) unpackMatrix {
		m := unpackMatrix{unpackSize: of, codes: k.Ptr(codes), scales: k.Ptr(scales), to: k.Ptr(to)}
		if u.Packing.HasZeros {
			m.zeros = k.Ptr(zeros)
		}
		if u.Packing.HasGlobal {
			m.global = k.Ptr(global)
		}
		return m
	}
	list := []unpackMatrix{matrix(&a.W1, &a.W1Scale, &a.W1Zero, &a.W1Global, &a.ToW1, sizes[0])}
	if len(sizes) > 2 {
		list = append(list, matrix(&a.W3, &a.W3Scale, &a.W3Zero, &a.W3Global, &a.ToW3, sizes[1]))
	}
	for i := range list {
		list[i].isOfUp = true
	}
	return append(list, matrix(&a.W2, &a.W2Scale, &a.W2Zero, &a.W2Global, &a.ToW2, sizes[len(sizes)-1]))
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

// listed writes the experts with rows to the array touched, and returns the number of these experts.
// Every CTA makes the same list. First each warp votes on groups of 32 experts. Then the position
// of an expert in the list is the number of bits before its own in all votes.
func (e *unpacking) listed(offsets ptx.Global) ptx.U32 {
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

// parts unpacks the matrices of the listed experts, one expert after the other. It counts the written
// parts of W1 and W3 in ready.
func (e *unpacking) parts(count ptx.U32, list []unpackMatrix, ready ptx.Global) {
	k, each := e.k, 0
	for _, m := range list {
		each += m.parts()
	}
	total := count.MulI(each)
	at := func(number ptx.U32, body func(m unpackMatrix, expert, part ptx.U32)) {
		nth := number.DivI(each)
		expert := ptx.LdShared[ptx.U32](e.touched.Plus(nth.ShlI(2)))
		pick(k, list, number.Sub(nth.MulI(each)), func(m unpackMatrix, part ptx.U32) { body(m, expert, part) })
	}
	k.For(k.CtaidX(), total, k.NctaidX(), func(number ptx.U32) {
		next := number.Add(k.NctaidX())
		k.If(e.tid.EqI(0).And(next.Lt(total)), func() { at(next, e.prefetch) })
		at(number, func(m unpackMatrix, expert, part ptx.U32) {
			e.part(m, expert, part)
			if m.isOfUp {
				k.BarSync(ptx.Uint(0))
				k.If(e.tid.EqI(0), func() {
					k.FenceAcqRel(".gpu")
					k.RedGlobalAdd(ready.Index(expert, 4), ptx.Uint(1))
				})
			}
		})
	})
}

// pick calls body for the matrix that has a part. Parts are numbered through all matrices of the list.
func pick(k *ptx.Kernel, list []unpackMatrix, part ptx.U32, body func(m unpackMatrix, part ptx.U32)) {
	m := list[0]
	if len(list) == 1 {
		body(m, part)
		return
	}
	k.IfElse(part.LtI(m.parts()), func() { body(m, part) }, func() { pick(k, list[1:], part.SubI(m.parts()), body) })
}

// prefetch brings the codes of a part to the L2 cache.
func (e *unpacking) prefetch(m unpackMatrix, expert, part ptx.U32) {
	if bytes := m.partUnits() * m.unitBytes(); m.units()%m.partUnits() == 0 && bytes%tile.CopyBytes == 0 {
		e.k.BulkPrefetch(m.codes.Index(expert, m.units()*m.unitBytes()).Index(part, bytes), ptx.Uint(bytes))
	}
}

// part unpacks a part of an expert's matrix. A thread has every unpackThreads-th unit.
func (e *unpacking) part(m unpackMatrix, expert, part ptx.U32) {
	k, units, bytes := e.k, m.partUnits(), m.unitBytes()
	first := part.MulI(units).Add(e.tid)
	codes := m.codes.Index(expert, m.units()*bytes).Index(first, bytes)
	to := m.to.Index(expert, m.units()*tile.CopyBytes).Index(first, tile.CopyBytes)
	blocks := e.blocks(m, expert, part, first)
	each := units / unpackThreads
	load := func(i int) (store func()) {
		words, block := loadWords(codes.At(i*unpackThreads*bytes), bytes/4), blocks(i)
		return func() {
			scale, zero := block()
			ptx.StGlobal(to.At(i*unpackThreads*tile.CopyBytes), e.values(words, scale, zero)...)
		}
	}
	if m.isRagged() {
		for i := range each {
			k.If(first.AddI(i*unpackThreads).LtI(m.units()), func() { load(i)() })
		}
		return
	}
	var stores []func()
	for i := range min(batchUnits, each) {
		stores = append(stores, load(i))
	}
	for i := range each {
		stores[i]()
		if next := i + batchUnits; next < each {
			stores = append(stores, load(next))
		}
	}
}

// loadWords loads one or two adjacent words.
func loadWords(at ptx.Global, words int) []ptx.U32 {
	if words == 1 {
		return []ptx.U32{ptx.LdGlobal[ptx.U32](at, ".nc")}
	}
	return ptx.LdGlobalVec[ptx.U32](at, words, ".nc")
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
