package kernel

import (
	"sonicmoe/ptx"
)

// clearWords zeroes words of shared memory with all threads of the CTA.
func clearWords(k *ptx.Kernel, at ptx.Shared, words int, tid ptx.U32, threads int) {
	k.For(tid, ptx.Uint(words), ptx.Uint(threads), func(i ptx.U32) {
		ptx.StShared(at.Plus(i.ShlI(2)), ptx.Uint(0))
	})
}

// storeCounts writes the CTA's expert counts as its row of counts [CTAs, E].
func storeCounts(k *ptx.Kernel, counts ptx.Global, from ptx.Shared, experts int, tid ptx.U32, threads int) {
	row := counts.Index(k.Special("%ctaid.x"), 4*experts)
	k.For(tid, ptx.Uint(experts), ptx.Uint(threads), func(i ptx.U32) {
		ptx.StGlobal(row.Index(i, 4), ptx.LdShared[ptx.U32](from.Plus(i.ShlI(2))))
	})
}

// Count counts the experts of each CTA's range of tokens: what Router does on
// the way, for expert ids that come from elsewhere. Ids outside [0, E) are
// not counted.
type Count struct {
	Experts, TopK int
}

const countThreads = 256

// Build emits the kernel.
func (c Count) Build() (Kernel, error) {
	const name = "moe_count"
	k := ptx.NewKernel(name)
	k.SetLaunchBounds(countThreads, 1)
	ids, counts := k.ParamPtr("experts"), k.ParamPtr("counts")
	tokens, perCTA := k.ParamU32("tokens"), k.ParamU32("perCTA")
	tid := k.Special("%tid.x")
	own := k.SharedBase()
	clearWords(k, own, c.Experts, tid, countThreads)
	k.BarSync(ptx.Uint(0))
	k.GridDepWait()
	k.GridDepLaunch()
	from := k.Special("%ctaid.x").Mul(perCTA)
	to := from.Add(perCTA).Min(tokens)
	k.For(from.MulI(c.TopK).Add(tid), to.MulI(c.TopK), ptx.Uint(countThreads), func(f ptx.U32) {
		id := ptx.LdGlobal[ptx.U32](ids.Index(f, 4))
		k.If(id.LtI(c.Experts), func() { k.RedSharedAdd(own.Plus(id.ShlI(2)), ptx.Uint(1)) })
	})
	k.BarSync(ptx.Uint(0))
	storeCounts(k, counts, own, c.Experts, tid, countThreads)
	return build(k, name, countThreads, 4*c.Experts)
}
