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
// items before the up-projection has ended.
type SingleUnitsDown struct{ spec.Config }

// Build emits the kernel.
func (d SingleUnitsDown) Build() (*jit.Kernel[SingleDownArgs], error) {
	m := fragments.W2(d.Config)
	items := ceil(d.Hidden, sliceRows)
	most := ceil(items, evenSMs) // the number of items that a CTA computes at once
	warps := unitWarps(most * evenSMs * d.TopK)
	k := jit.NewBuilder[SingleDownArgs]("moe_single_units_down", 32*warps, 1)
	k.SetGrid(func(_ *SingleDownArgs, sms int) gpu.Dim3 { return singleGrid(items, sms) })
	p := newUnitSingle(k.Kernel, d.Config, m, k.Ptr(&k.Args.W2), warps, d.TopK)
	chosen, scores, a := k.Ptr(&k.Args.Chosen), k.Ptr(&k.Args.Scores), k.Ptr(&k.Args.A)
	s := singleSum{single: p.single, singleTerms: SingleDown(d).terms(k), scores: p.cta.Shared("scores", 4*d.TopK, 4), y: p.cta.Shared("y", tile.ElementBytes*most*sliceRows*d.TopK, 4)}
	s.receive(chosen)

	ctas, meet := k.NctaidX(), func() { k.BarSync(ptx.Uint(0)) }
	isFirst := ptx.NewVar(k.Kernel, ptx.Uint(1))
	k.For(k.CtaidX(), ptx.Uint(items), ctas.MulI(most), func(first ptx.U32) {
		n := ptx.Uint(items).Sub(first).Add(ctas.SubI(1)).Div(ctas).MinI(most)
		item := func(slice ptx.U32) (local, item, slot ptx.U32) {
			local = slice.DivI(d.TopK)
			return local, first.Add(local.Mul(ctas)), slice.Sub(local.MulI(d.TopK))
		}
		p.multiply(slicesOf{
			count: n.MulI(d.TopK),
			place: func(slice ptx.U32) (expert, unit, quarter ptx.U32) {
				_, item, slot := item(slice)
				return p.expert(slot), item.ShrI(2), item.AndI(slicesOfUnit - 1)
			},
			row: func(slice ptx.U32) ptx.U32 {
				_, _, slot := item(slice)
				return slot
			},
			start: func(slice ptx.U32) [2]ptx.F32 {
				if !d.Bias {
					return [2]ptx.F32{ptx.Float(0), ptx.Float(0)}
				}
				_, item, slot := item(slice)
				row := item.MulI(sliceRows).Add(p.lane.ShrI(2))
				of := func(row ptx.U32) ptx.F32 {
					return weights.B2(d.Config).Column([]ptx.Global{s.b2}, p.expert(slot), row)[0]
				}
				return [2]ptx.F32{of(row), of(row.AddI(8))}
			},
			store: func(slice ptx.U32, sums [2]ptx.F32) {
				local, _, slot := item(slice)
				row := local.MulI(sliceRows).Add(p.lane.ShrI(2))
				k.If(p.lane.AndI(3).EqI(0), func() {
					for i, sum := range sums {
						ptx.StShared(s.y.Plus(row.AddI(8*i).Mad(ptx.Uint(d.TopK), slot).ShlI(1)), element.Of(d.Config).Round(sum))
					}
				})
			},
		}, func() {
			k.If(isFirst.Get().NeI(0), func() {
				k.GridDepWait()
				k.GridDepLaunch()
				k.If(p.warp.EqI(0), func() { s.loadScores(scores) })
				p.stage(a, d.TopK, weights.A(d.Config).Elements())
				meet()
				isFirst.Set(ptx.Uint(0))
			})
		})
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

// SingleUnitsDownKernel computes the down-projection of a single token with packed weights, and the
// sum over the token's experts.
var SingleUnitsDownKernel = &registry.Kernel[SingleDownArgs]{KernelName: "single-units-down", Only: HasSingleUnits, Emit: func(l registry.Layer) (*jit.Kernel[SingleDownArgs], error) {
	return SingleUnitsDown{l.Config}.Build()
}}
