package decode

import (
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/activation"
	"sonicmoe/moe/internal/element"
	"sonicmoe/moe/internal/fragments"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/weights"
	"sonicmoe/ptx"
)

// SingleUnitsUp is [SingleUp] for packed weights. W1 has the units of [fragments.W1], and W3 is not
// used. A CTA adds the number of its slices to the last word of Chosen when its first warp has started
// all its loads of weights.
type SingleUnitsUp struct{ spec.Config }

// Build emits the kernel.
func (u SingleUnitsUp) Build() (*jit.Kernel[SingleUpArgs], error) {
	m := fragments.W1(u.Config)
	count := upSlices(u.Config)
	warps := unitWarps(count)
	k := jit.NewBuilder[SingleUpArgs]("moe_single_units_up", 32*warps, 1)
	k.SetGrid(func(_ *SingleUpArgs, sms int) gpu.Dim3 { return singleGrid(count, sms) })
	p := newUnitSingle(k.Kernel, u.Config, m, k.Ptr(&k.Args.W1), warps, upReserved, 1)
	c := singleChoice{p.single, SingleUp(u).choice(k)}
	x, a, h := k.Ptr(&k.Args.X), k.Ptr(&k.Args.A), k.Ptr(&k.Args.H)
	var b1 []ptx.Global
	if u.Bias {
		b1 = weights.B1(u.Config).Tensors(k, &k.Args.B1, &k.Args.B3)
	}
	p.stage(x, 1, u.Hidden) // before the wait: this kernel starts only when the kernel before it has waited for X

	ahead := 6 // blocks that a warp copies ahead; with more a pass takes longer
	if warps > minUnitWarps {
		ahead = 3
	}
	first, end := p.shareOf(count)
	mine := end.Sub(first)
	slot := func(slice ptx.U32) (slot, rest ptx.U32) { // the slot of a slice of the CTA, and the slice's number in its expert
		number := first.Add(slice)
		slot = number.DivI(m.Units * slicesOfUnit)
		return slot, number.Sub(slot.MulI(m.Units * slicesOfUnit))
	}
	// neurons returns the slot of a slice, the first neuron of the thread's two rows, and the number
	// of their neurons. In a gated layer the rows are gate and up of one neuron. Otherwise they are
	// two neurons, 8 apart.
	neurons := func(slice ptx.U32) (of ptx.U32, neuron ptx.U32, rows int) {
		of, rest := slot(slice)
		if u.Activation.Gated() {
			return of, rest.MulI(sliceRows / 2).Add(p.lane.ShrI(2)), 1
		}
		return of, rest.MulI(sliceRows).Add(p.lane.ShrI(2)), 2
	}
	p.multiply(slicesOf{
		count: mine,
		place: func(slice ptx.U32) (of, unit, quarter ptx.U32) {
			of, rest := slot(slice)
			return of, rest.ShrI(2), rest.AndI(slicesOfUnit - 1)
		},
		row:   func(ptx.U32) ptx.U32 { return ptx.Uint(0) },
		start: func(slice ptx.U32) [2]ptx.F32 { return u.start(&p, slice, b1, neurons) },
		store: func(slice ptx.U32, sums [2]ptx.F32) {
			of, neuron, rows := neurons(slice)
			k.If(p.lane.AndI(3).EqI(0), func() { u.store(&p, of, neuron, rows, sums, a, h) })
		},
	}, ahead, unitSteps{
		choose: func() {
			k.GridDepWait()
			k.GridDepLaunch()
			c.choose() // ends with a barrier
		},
		begin:  nothing,
		loaded: func() { k.If(k.TidX().EqI(0), func() { k.RedGlobalAdd(c.in.chosen.At(4*u.TopK), mine) }) },
	})
	return k.Build()
}

// start returns the biases of the thread's rows, or 0 without biases.
func (u SingleUnitsUp) start(p *unitSingle, slice ptx.U32, b1 []ptx.Global, neurons func(slice ptx.U32) (of, neuron ptx.U32, rows int)) [2]ptx.F32 {
	if !u.Bias {
		return [2]ptx.F32{ptx.Float(0), ptx.Float(0)}
	}
	of, neuron, rows := neurons(slice)
	load := func(neuron ptx.U32) []ptx.F32 { // the last unit may have rows past the last neuron; any bias will do for them
		return weights.B1(u.Config).Column(b1, p.expert(of), neuron.MinI(u.Intermediate-1))
	}
	list := load(neuron)
	if rows == 2 {
		list = append(list, load(neuron.AddI(8))...)
	}
	return [2]ptx.F32{list[0], list[1]}
}

// store stores H, if the pass keeps it, and A of the thread's neurons. Rows of A are padded with
// zeros to whole k-tiles.
func (u SingleUnitsUp) store(p *unitSingle, slot, neuron ptx.U32, rows int, sums [2]ptx.F32, a, h ptx.Global) {
	k, el, act := p.k, element.Of(u.Config), activation.Of(u.Config).Value
	aBytes, hBytes := weights.A(u.Config).Elements()*tile.ElementBytes, u.HWidth()*tile.ElementBytes
	for i := range rows {
		of := sums[:]
		if rows == 2 {
			of = sums[i : i+1]
		}
		neuron := neuron.AddI(8 * i)
		is := neuron.LtI(u.Intermediate)
		k.If(h.Given().And(is), func() {
			to := h.Index(p.rank(p.expert(slot)), hBytes).Index(neuron, tile.ElementBytes)
			for part, x := range of {
				ptx.StGlobal(to.At(part*u.Intermediate*tile.ElementBytes), el.Round(x))
			}
		})
		value := ptx.Select(is, act(of[0], of[len(of)-1]), ptx.Float(0))
		ptx.StGlobal(a.Index(slot, aBytes).Index(neuron, tile.ElementBytes), el.Round(value))
	}
}

// SingleUnitsUpKernel computes the up-projection of a single token with packed weights.
var SingleUnitsUpKernel = &registry.Kernel[SingleUpArgs]{KernelName: "single-units-up", Only: HasSingleUnits, Emit: func(l registry.Layer) (*jit.Kernel[SingleUpArgs], error) {
	return SingleUnitsUp{l.Config}.Build()
}}
