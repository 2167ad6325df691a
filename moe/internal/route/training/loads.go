package training

import (
	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/pipeline"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/route/order"
	"sonicmoe/ptx"
)

// Loads adds to each expert's load the number of tokens that chose it. Ids outside [0, E) are not
// counted. The sums are integers, so the order of the CTAs does not change them.
type Loads struct{ NumExperts, TopK int }

const loadsThreads = 256

// LoadsArgs are the arguments of [Loads].
type LoadsArgs struct {
	// ExpertIDs [T, K] i32 are the chosen experts.
	ExpertIDs driver.DevicePtr
	// Loads [E] i32 is increased by the counts.
	Loads driver.DevicePtr
	order.TokenRanges
}

// Build emits the kernel.
func (l Loads) Build() (*jit.Kernel[LoadsArgs], error) {
	k := jit.NewBuilder[LoadsArgs]("moe_loads", loadsThreads, 1)
	k.CTAs(func(a *LoadsArgs) int { return a.Count() })
	ids, loads := k.Ptr(&k.Args.ExpertIDs), k.Ptr(&k.Args.Loads)
	tokens, perCTA := k.U32(&k.Args.Tokens), k.U32(&k.Args.PerCTA)
	tid := k.TidX()
	own := pipeline.NewCTA(k.Kernel).Shared("counts", 4*l.NumExperts, 16)
	order.ClearWords(k.Kernel, own, l.NumExperts, tid, loadsThreads)
	k.BarSync(ptx.Uint(0))
	k.GridDepWait()
	k.GridDepLaunch()
	from := k.CtaidX().Mul(perCTA)
	to := from.Add(perCTA).Min(tokens)
	order.CountIDs(k.Kernel, own, l.NumExperts, ids, from.MulI(l.TopK).Add(tid), to.MulI(l.TopK), loadsThreads, order.Always)
	k.BarSync(ptx.Uint(0))
	k.For(tid, ptx.Uint(l.NumExperts), ptx.Uint(loadsThreads), func(i ptx.U32) {
		n := ptx.LdShared[ptx.U32](own.Plus(i.ShlI(2)))
		k.If(n.NeI(0), func() { k.RedGlobalAdd(loads.Index(i, 4), n) })
	})
	return k.Build()
}

// BalanceBias makes one step of loss-free balancing (arXiv 2408.15664), in one CTA, and clears
// the loads:
//
//	bias_e += rate · sign(mean(load) - load_e)      load_e = 0
//
// It compares E·load_e with the sum of all loads in 64 bits, which is exact, instead of dividing
// for the mean.
type BalanceBias struct{ NumExperts int }

// BalanceBiasArgs are the arguments of [BalanceBias].
type BalanceBiasArgs struct {
	// Loads [E] i32 has the counts of [Loads], none of them negative. The kernel sets it to
	// 0.
	Loads driver.DevicePtr
	// Bias [E] f32 is updated in place.
	Bias driver.DevicePtr
	Rate float32
}

// Build emits the kernel.
func (b BalanceBias) Build() (*jit.Kernel[BalanceBiasArgs], error) {
	k := jit.NewBuilder[BalanceBiasArgs]("moe_balance_bias", loadsThreads, 1)
	k.CTAs(func(*BalanceBiasArgs) int { return 1 })
	loads, bias, rate := k.Ptr(&k.Args.Loads), k.Ptr(&k.Args.Bias), k.F32(&k.Args.Rate)
	tid := k.TidX()
	halves := pipeline.NewCTA(k.Kernel).Shared("halves", 8, 16)
	order.ClearWords(k.Kernel, halves, 2, tid, loadsThreads)
	k.BarSync(ptx.Uint(0))
	k.GridDepWait()
	k.GridDepLaunch()
	each := func(body func(expert, load ptx.U32)) {
		k.For(tid, ptx.Uint(b.NumExperts), ptx.Uint(loadsThreads), func(expert ptx.U32) {
			body(expert, ptx.LdGlobal[ptx.U32](loads.Index(expert, 4)))
		})
	}
	// The lower and the upper 16 bits of the loads are summed separately: neither sum over 1024
	// experts exceeds 32 bits.
	low, high := ptx.NewVar(k.Kernel, ptx.Uint(0)), ptx.NewVar(k.Kernel, ptx.Uint(0))
	each(func(_, load ptx.U32) {
		low.Set(low.Get().Add(load.AndI(0xffff)))
		high.Set(high.Get().Add(load.ShrI(16)))
	})
	of := [2]ptx.U32{low.Get().ReduxAdd(), high.Get().ReduxAdd()}
	k.If(k.Lane().EqI(0), func() {
		k.RedSharedAdd(halves, of[0])
		k.RedSharedAdd(halves.At(4), of[1])
	})
	k.BarSync(ptx.Uint(0))
	sum := ptx.LdShared[ptx.U32](halves.At(4)).MulWideI(1 << 16).Add(ptx.LdShared[ptx.U32](halves).U64())
	each(func(expert, load ptx.U32) {
		times := load.MulWideI(b.NumExperts)
		k.If(times.Ne(sum), func() {
			at := bias.Index(expert, 4)
			old := ptx.LdGlobal[ptx.F32](at)
			ptx.StGlobal(at, ptx.Select(times.Lt(sum), old.Add(rate), old.Sub(rate)))
		})
		ptx.StGlobal(loads.Index(expert, 4), ptx.Uint(0))
	})
	return k.Build()
}

// LoadsKernel and BalanceBiasKernel are part of layers with a backward pass.
var (
	LoadsKernel = &registry.Kernel[LoadsArgs]{KernelName: "loads", Backward: true, Emit: func(l registry.Layer) (*jit.Kernel[LoadsArgs], error) {
		return Loads{NumExperts: l.NumExperts, TopK: l.TopK}.Build()
	}}
	BalanceBiasKernel = &registry.Kernel[BalanceBiasArgs]{KernelName: "balance-bias", Backward: true, Only: func(c spec.Config) bool { return c.SelectionBias },
		Emit: func(l registry.Layer) (*jit.Kernel[BalanceBiasArgs], error) { return BalanceBias{l.NumExperts}.Build() }}
)
