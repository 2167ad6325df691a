package order

import (
	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/pipeline"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/ptx"
)

// ClearWords zeroes 32-bit words of shared memory. All threads of the CTA take part.
func ClearWords(k *ptx.Kernel, at ptx.Shared, words int, tid ptx.U32, threads int) {
	k.For(tid, ptx.Uint(words), ptx.Uint(threads), func(i ptx.U32) {
		ptx.StShared(at.Plus(i.ShlI(2)), ptx.Uint(0))
	})
}

// StoreCounts copies the CTA's counts, one for each expert, from shared memory to its row of counts
// [CTAs, E].
func StoreCounts(k *ptx.Kernel, counts ptx.Global, from ptx.Shared, experts int, tid ptx.U32, threads int) {
	row := counts.Index(k.CtaidX(), 4*experts)
	k.For(tid, ptx.Uint(experts), ptx.Uint(threads), func(i ptx.U32) {
		ptx.StGlobal(row.Index(i, 4), ptx.LdShared[ptx.U32](from.Plus(i.ShlI(2))))
	})
}

// Always accepts every position.
func Always(ptx.U32) ptx.Pred { return ptx.True() }

// CountIDs counts how often each expert id occurs, and adds the counts to the array `own` in shared
// memory. It reads the ids at positions first, first+threads and so on, as long as they are below
// `to`. It skips ids outside [0, E), and positions for which the function `only` returns false.
func CountIDs(k *ptx.Kernel, own ptx.Shared, experts int, ids ptx.Global, first, to ptx.U32, threads int, only func(f ptx.U32) ptx.Pred) {
	k.For(first, to, ptx.Uint(threads), func(f ptx.U32) {
		id := ptx.LdGlobal[ptx.U32](ids.Index(f, 4))
		k.If(id.LtI(experts).And(only(f)), func() { k.RedSharedAdd(own.Plus(id.ShlI(2)), ptx.Uint(1)) })
	})
}

// Count counts, for each CTA's range of tokens, how many of them chose each expert. It is for
// expert ids from the caller; the kernels that choose experts count themselves. It skips ids
// outside [0, E).
type Count struct {
	NumExperts, TopK int
	// List makes the kernel count the entries of a list, see [Plan]. Ranges are then ranges of
	// entries, and TopK is 1.
	List bool
}

const countThreads = 256

// CountArgs are the arguments of [Count].
type CountArgs struct {
	// ExpertIDs [T, K] i32 are the chosen experts.
	ExpertIDs driver.DevicePtr
	// Counts [CTAs, E] u32 is an output: for each CTA, how many of its tokens chose each expert.
	Counts driver.DevicePtr
	TokenRanges
	Entries
}

// Build emits the kernel.
func (c Count) Build() (*jit.Kernel[CountArgs], error) {
	name := "moe_count"
	if c.List {
		name = "moe_count_list"
	}
	k := jit.NewBuilder[CountArgs](name, countThreads, 1)
	k.CTAs(func(a *CountArgs) int { return a.Count() })
	ids, counts := k.Ptr(&k.Args.ExpertIDs), k.Ptr(&k.Args.Counts)
	tokens, perCTA := k.U32(&k.Args.Tokens), k.U32(&k.Args.PerCTA)
	var list entries
	if c.List {
		list = entries{k.Ptr(&k.Args.TokenOf), k.U32(&k.Args.NumTokens)}
	}
	tid := k.TidX()
	own := pipeline.NewCTA(k.Kernel).Shared("counts", 4*c.NumExperts, 16)
	ClearWords(k.Kernel, own, c.NumExperts, tid, countThreads)
	k.BarSync(ptx.Uint(0))
	k.GridDepWait()
	k.GridDepLaunch()
	from := k.CtaidX().Mul(perCTA)
	to := from.Add(perCTA).Min(tokens)
	only := Always
	if c.List {
		only = func(f ptx.U32) ptx.Pred { return list.token(f).Lt(list.tokens) }
	}
	CountIDs(k.Kernel, own, c.NumExperts, ids, from.MulI(c.TopK).Add(tid), to.MulI(c.TopK), countThreads, only)
	k.BarSync(ptx.Uint(0))
	StoreCounts(k.Kernel, counts, own, c.NumExperts, tid, countThreads)
	return k.Build()
}

// CountKernel counts the chosen experts. CountListKernel counts the experts of a list's entries.
var (
	CountKernel = &registry.Kernel[CountArgs]{KernelName: "count", Emit: func(l registry.Layer) (*jit.Kernel[CountArgs], error) {
		return Count{NumExperts: l.NumExperts, TopK: l.TopK}.Build()
	}}
	CountListKernel = &registry.Kernel[CountArgs]{KernelName: "count-list", Only: spec.Config.HasLists, Emit: func(l registry.Layer) (*jit.Kernel[CountArgs], error) {
		return Count{NumExperts: l.NumExperts, TopK: 1, List: true}.Build()
	}}
)
