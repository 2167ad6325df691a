package kernel

import (
	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/route/choose"
	"sonicmoe/moe/internal/weights"
	"sonicmoe/ptx"
)

// AdaptSingle adds the products of an adapter in a pass over a single token, in a layer with a table
// of adapters. It runs between decode.SingleUp and decode.SingleDown. A CTA has one of the token's
// experts. It computes H' and A' like [Adapt] after Up, and then the first of the two products that
// [Adapt] computes after Down:
//
//	u = round(c·(A'·A2ᵀ))
//
// SingleDown computes the second one. The results have the bits of the kernels for more tokens. Like
// Adapt, a CTA computes the first product while SingleUp still runs.
type AdaptSingle struct{ spec.Config }

// AdaptSingleArgs are the arguments of [AdaptSingle]. Tensors without a stated type have the layer's
// element type.
type AdaptSingleArgs struct {
	// X [1, d] is the token.
	X driver.DevicePtr
	// AdapterIDs [1] i32, Scales [N] f32 and Misses [1] u32 are as in [AdaptArgs].
	AdapterIDs, Scales, Misses driver.DevicePtr
	// LoraA1, LoraB1, LoraB3 and LoraA2 are the factors, as in [AdaptArgs].
	LoraA1, LoraB1, LoraB3, LoraA2 driver.DevicePtr
	// Chosen [K] u32 has the expert of each slot plus 1, or 0 before SingleUp has chosen it.
	Chosen driver.DevicePtr
	// H [K, 2n] has a row for each expert, sorted by expert. A has a row for each slot, in the layout of
	// [weights.A]. The kernel changes both.
	H, A driver.DevicePtr
	// U is an output: u of each slot, see [weights.SingleU].
	U driver.DevicePtr
}

// singleLoads is the number of 8-byte loads of LoraB1 that a thread has in flight.
const singleLoads = 24

// Build emits the kernel.
func (a AdaptSingle) Build() (*jit.Kernel[AdaptSingleArgs], error) {
	ups, downs := Adapt{Config: a.Config}, Adapt{Config: a.Config, Down: true}
	k := jit.NewBuilder[AdaptSingleArgs]("moe_adapt_single", adaptThreads, ups.ctasPerSM())
	k.SetGrid(func(*AdaptSingleArgs, int) gpu.Dim3 { return gpu.Dim3{X: a.TopK} })

	// Operands.
	chosen, u := k.Ptr(&k.Args.Chosen), k.Ptr(&k.Args.U)
	up := a.operands(k, ups)
	up.loads = singleLoads
	down := *up
	down.Adapt, down.x, down.factorA = downs, up.a, k.Ptr(&k.Args.LoraA2)

	// The CTA receives the experts, and adapts the row of its slot if the token has an adapter.
	k.GridDepLaunch()
	slot := k.CtaidX()
	expert, rank := a.receive(k.Kernel, up.list, chosen, slot)
	up.countMisses(ptx.Uint(1))
	number := up.number(ptx.LdGlobal[ptx.U32](up.ids))
	k.If(number.NeI(noAdapter), func() {
		place := number.SubI(1)
		matrix := place.MulI(a.NumExperts).Add(expert)
		k.If(k.TidX().EqI(0), func() {
			up.prefetchB(matrix)
			down.prefetch(down.factorA, matrix, a.LoRARank*a.Intermediate)
		})
		row := adapted{matrix: matrix, scale: ptx.LdGlobal[ptx.F32](up.scales.Index(place, 4)), live: ptx.Uint(1),
			input: func(ptx.U32) ptx.U32 { return ptx.Uint(0) }, row: func(ptx.U32) ptx.U32 { return rank }, ofA: func(ptx.U32) ptx.U32 { return slot }}
		up.rows(row)
		k.BarSync(ptx.Uint(0)) // A' is complete
		row.input = row.ofA
		down.first(row)
		k.BarSync(ptx.Uint(0))
		down.sum(row.scale)
		k.BarSync(ptx.Uint(0))
		rowBytes := weights.SingleU(a.Config).Elements() * tile.ElementBytes
		k.If(k.TidX().LtI(rowBytes/4), func() {
			at := k.TidX().ShlI(2)
			ptx.StGlobal(u.Index(slot, rowBytes).Plus(at.U64()), ptx.LdShared[ptx.U32](down.u.Plus(at)))
		})
	})
	k.GridDepWait()
	return k.Build()
}

// operands declares the parameters and the shared memory of the products of the kernel after Up.
func (a AdaptSingle) operands(k *jit.Builder[AdaptSingleArgs], of Adapt) *adapting {
	e := newAdapting(of, k.Kernel)
	e.x, e.ids, e.scales, e.misses = k.Ptr(&k.Args.X), k.Ptr(&k.Args.AdapterIDs), k.Ptr(&k.Args.Scales), k.Ptr(&k.Args.Misses)
	e.factorA, e.factorB = k.Ptr(&k.Args.LoraA1), []ptx.Global{k.Ptr(&k.Args.LoraB1)}
	if a.GateUp == spec.Apart {
		e.factorB = append(e.factorB, k.Ptr(&k.Args.LoraB3))
	}
	e.results, e.a = k.Ptr(&k.Args.H), k.Ptr(&k.Args.A)
	cta := pipeline.NewCTA(k.Kernel)
	e.list = cta.Shared("list", 4*a.TopK, 16)
	e.reserve(cta)
	return e
}

// receive waits for the chosen experts. It returns the expert of a slot, and the number of chosen
// experts with lower ids. The wait ends, because all CTAs of the kernel that chooses are running when
// this kernel starts.
func (a AdaptSingle) receive(k *ptx.Kernel, list ptx.Shared, chosen ptx.Global, slot ptx.U32) (expert, rank ptx.U32) {
	k.If(k.TidX().LtI(a.TopK), func() {
		id, at := ptx.NewVar(k, ptx.Uint(0)), chosen.Index(k.TidX(), 4)
		k.Loop(func() {
			id.Set(ptx.LdGlobalAcquire(at))
			k.BreakIf(id.Get().NeI(0))
		})
		ptx.StShared(list.Plus(k.TidX().ShlI(2)), id.Get().SubI(1))
	})
	k.BarSync(ptx.Uint(0))
	expert, rank = ptx.LdShared[ptx.U32](list.Plus(slot.ShlI(2))), ptx.Uint(0)
	for i := range a.TopK {
		rank = rank.Add(ptx.Select(ptx.LdShared[ptx.U32](list.At(4*i)).Lt(expert), ptx.Uint(1), ptx.Uint(0)))
	}
	return expert, rank
}

// AdaptSingleKernel runs in passes over a single token of plain weights.
var AdaptSingleKernel = &registry.Kernel[AdaptSingleArgs]{KernelName: "adapt-single", Only: HasAdaptSingle,
	Emit: func(l registry.Layer) (*jit.Kernel[AdaptSingleArgs], error) {
		return AdaptSingle{Config: l.Config}.Build()
	}}

// HasAdaptSingle reports whether the layer has [AdaptSingleKernel].
func HasAdaptSingle(c spec.Config) bool {
	return spec.HasAdapters(c) && choose.HasSingle(c) && spec.IsPlain(c)
}
