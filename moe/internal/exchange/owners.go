package exchange

import (
	"sonicmoe/driver"
	"sonicmoe/jit"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/route/order"
	"sonicmoe/ptx"
)

// Owners finds the rank that owns the expert of each pair. It leaves out the pairs that repeat a
// rank among their token's pairs. A thread handles one pair.
type Owners struct{ NumExperts, TopK int }

const ownersThreads = 256

// OwnersArgs are the arguments of [Owners]. The package comment defines T, K, E and W.
type OwnersArgs struct {
	// ExpertIDs [T, K] i32 are the chosen experts.
	ExpertIDs driver.DevicePtr
	// RowRanks [T, K] i32 is an output, see [Split].
	RowRanks driver.DevicePtr
	// Ranks is W, and Pairs is T·K.
	Ranks, Pairs int
}

// Build emits the kernel.
func (o Owners) Build() (*jit.Kernel[OwnersArgs], error) {
	k := jit.NewBuilder[OwnersArgs]("moe_owners", ownersThreads, 1)
	k.CTAs(func(a *OwnersArgs) int { return (a.Pairs + ownersThreads - 1) / ownersThreads })
	ids, rowRanks := k.Ptr(&k.Args.ExpertIDs), k.Ptr(&k.Args.RowRanks)
	ranks, pairs := k.U32(&k.Args.Ranks), k.U32(&k.Args.Pairs)
	pair := k.CtaidX().MulI(ownersThreads).Add(k.TidX())
	k.GridDepWait()
	k.GridDepLaunch()
	k.If(pair.Lt(pairs), func() {
		owner := rankOf(ids, pair, o.NumExperts, ranks)
		first := ptx.NewVar(k.Kernel, owner)
		k.For(pair.Sub(pair.RemI(o.TopK)), pair, ptx.Uint(1), func(earlier ptx.U32) {
			repeated := rankOf(ids, earlier, o.NumExperts, ranks).Eq(owner)
			first.Set(ptx.Select(repeated, ptx.Uint(order.NoRow), first.Get()))
		})
		ptx.StGlobal(rowRanks.Index(pair, 4), first.Get())
	})
	return k.Build()
}

// rankOf loads the expert of a pair and returns the rank that owns it: the largest r with First(E,
// W, r) <= expert. It returns NoRow if the expert is outside [0, E).
func rankOf(ids ptx.Global, pair ptx.U32, experts int, ranks ptx.U32) ptx.U32 {
	id := ptx.LdGlobal[ptx.U32](ids.Index(pair, 4))
	return ptx.Select(id.LtI(experts), id.AddI(1).Mul(ranks).SubI(1).DivI(experts), ptx.Uint(order.NoRow))
}

// OwnersKernel is the kernel [Owners].
var OwnersKernel = &registry.Kernel[OwnersArgs]{KernelName: "owners", Emit: func(l registry.Layer) (*jit.Kernel[OwnersArgs], error) {
	return Owners{NumExperts: l.NumExperts, TopK: l.TopK}.Build()
}}
