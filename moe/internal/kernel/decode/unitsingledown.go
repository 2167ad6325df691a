package decode

import (
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/element"
	"sonicmoe/moe/internal/fragments"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/weights"
	"sonicmoe/ptx"
)

// SingleUnitsDown is [SingleDown] for packed weights. W2 has the units of [fragments.W2]. An item is
// 16 rows of W2, the same 16 for each of the token's experts. A CTA loads the weights of its first
// items before the up-projection has ended, but not before CTAs with half of W1's slices have started
// their loads: loads that start earlier would delay the up-projection.
type SingleUnitsDown struct{ spec.Config }

// Build emits the kernel.
func (d SingleUnitsDown) Build() (*jit.Kernel[SingleDownArgs], error) {
	items := ceil(d.Hidden, sliceRows)
	most := ceil(items, evenSMs) // the number of items that a CTA computes at once
	warps := unitWarps(most * evenSMs * d.TopK)
	k := jit.NewBuilder[SingleDownArgs]("moe_single_units_down", 32*warps, 1)
	k.SetGrid(func(_ *SingleDownArgs, sms int) gpu.Dim3 { return singleGrid(items, sms) })

	// Operands. A and the rings of W2 lie in shared memory.
	p := newUnitSingle(k.Kernel, d.Config, fragments.W2(d.Config), k.Ptr(&k.Args.W2), warps, downReserved, d.TopK)
	chosen, scores, a := k.Ptr(&k.Args.Chosen), k.Ptr(&k.Args.Scores), k.Ptr(&k.Args.A)
	s := singleSum{single: p.single, singleTerms: SingleDown(d).terms(k), scores: p.cta.Shared("scores", 4*d.TopK, 4), y: p.cta.Shared("y", tile.ElementBytes*most*sliceRows*d.TopK, 4)}
	half := upSlices(d.Config) / 2
	k.If(k.TidX().EqI(32*(warps-1)), func() { // not in the warp that receives
		k.Loop(func() { k.BreakIf(ptx.LdGlobalAcquire(chosen.At(4 * d.TopK)).GeI(half)) })
	})
	s.receive(chosen)

	// All warps load and multiply.
	const ahead = 4 // blocks that a warp copies ahead
	ctas, meet := k.NctaidX(), func() { k.BarSync(ptx.Uint(0)) }
	isFirst := ptx.NewVar(k.Kernel, ptx.Uint(1))
	score := ptx.NewVar(k.Kernel, ptx.Float(0)) // of the slot with the thread's number
	k.For(k.CtaidX(), ptx.Uint(items), ctas.MulI(most), func(first ptx.U32) {
		n := ptx.Uint(items).Sub(first).Add(ctas.SubI(1)).Div(ctas).MinI(most)
		pass := singleUnitsPass{s, first, ctas}
		p.multiply(slicesOf{count: n.MulI(d.TopK), place: pass.place, row: pass.slot, start: pass.biases, store: pass.round}, ahead, unitSteps{choose: nothing, begin: func() {
			k.If(isFirst.Get().NeI(0), func() {
				k.GridDepWait()
				k.GridDepLaunch()
				k.If(k.TidX().LtI(d.TopK), func() { score.Set(ptx.LdGlobal[ptx.F32](scores.Index(k.TidX(), 4))) })
				p.stage(a, d.TopK, weights.A(d.Config).Elements())
				meet()
				isFirst.Set(ptx.Uint(0))
			})
		}, loaded: nothing})

		// The epilogue sums over the experts and stores O.
		k.If(k.TidX().LtI(d.TopK), func() { ptx.StShared(s.scores.Plus(k.TidX().ShlI(2)), score.Get()) })
		meet()
		k.If(k.TidX().Lt(n.MulI(sliceRows)), func() {
			s.add(k.TidX, func() ptx.U32 {
				return first.Add(k.TidX().ShrI(4).Mul(ctas)).MulI(sliceRows).Add(k.TidX().AndI(sliceRows - 1))
			})
		})
		meet() // the next items overwrite y
	})
	return k.Build()
}

// singleUnitsPass is a pass over some items of a CTA: every item number first + i·ctas. A slice is
// an item of one expert.
type singleUnitsPass struct {
	singleSum
	first, ctas ptx.U32
}

// item returns the number of the slice's item in the pass and in the product, and the slot of the
// slice's expert.
func (p singleUnitsPass) item(slice ptx.U32) (local, item, slot ptx.U32) {
	local = slice.DivI(p.TopK)
	return local, p.first.Add(local.Mul(p.ctas)), slice.Sub(local.MulI(p.TopK))
}

// place returns the slot of the slice's expert, the unit, and the number of the slice in the unit.
func (p singleUnitsPass) place(slice ptx.U32) (slot, unit, quarter ptx.U32) {
	_, item, slot := p.item(slice)
	return slot, item.ShrI(2), item.AndI(slicesOfUnit - 1)
}

// slot returns the slot of the slice's expert.
func (p singleUnitsPass) slot(slice ptx.U32) ptx.U32 {
	_, _, slot := p.item(slice)
	return slot
}

// biases returns the biases of the thread's rows, or 0 without biases.
func (p singleUnitsPass) biases(slice ptx.U32) [2]ptx.F32 {
	if !p.Bias {
		return [2]ptx.F32{ptx.Float(0), ptx.Float(0)}
	}
	_, item, slot := p.item(slice)
	row := item.MulI(sliceRows).Add(p.lane.ShrI(2))
	of := func(row ptx.U32) ptx.F32 {
		return weights.B2(p.Config).Column([]ptx.Global{p.b2}, p.expert(slot), row)[0]
	}
	return [2]ptx.F32{of(row), of(row.AddI(8))}
}

// round rounds the sums of the thread's rows and stores them in shared memory, for the epilogue.
func (p singleUnitsPass) round(slice ptx.U32, sums [2]ptx.F32) {
	local, _, slot := p.item(slice)
	row := local.MulI(sliceRows).Add(p.lane.ShrI(2))
	p.k.If(p.lane.AndI(3).EqI(0), func() {
		for i, sum := range sums {
			ptx.StShared(p.y.Plus(row.AddI(8*i).Mad(ptx.Uint(p.TopK), slot).ShlI(1)), element.Of(p.Config).Round(sum))
		}
	})
}

// SingleUnitsDownKernel computes the down-projection of a single token with packed weights, and the
// sum over the token's experts.
var SingleUnitsDownKernel = &registry.Kernel[SingleDownArgs]{KernelName: "single-units-down", Only: HasSingleUnits, Emit: func(l registry.Layer) (*jit.Kernel[SingleDownArgs], error) {
	return SingleUnitsDown{l.Config}.Build()
}}
