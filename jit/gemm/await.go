package gemm

import "sonicmoe/ptx"

// Await is for a product that runs at the same time as its predecessor, which writes B expert by
// expert. The predecessor must itself have waited for the kernels that wrote all else that the
// product reads, before it let the product start. Such a product waits for the end of its predecessor
// only after its last tile. A CTA of the product needs registers and shared memory that the
// predecessor's CTAs leave free on an SM. Without these the product starts after the predecessor.
type Await struct {
	// Ready [E] u32 counts the parts of each expert's B that are written. The predecessor adds 1
	// with release. Parts is the number of all parts of an expert.
	Ready ptx.Global
	Parts int
}

// awaiter waits for the weights of a tile's expert, in one thread of the load role.
type awaiter struct {
	*Await
	k    *ptx.Kernel
	last *ptx.Var[ptx.U32] // the expert of the latest tile
}

func (p *Product) awaiter() awaiter {
	a := awaiter{Await: p.Await, k: p.K}
	if a.Await != nil {
		a.last = ptx.NewVar(p.K, ptx.Uint(ptx.FullMask))
	}
	return a
}

// wait waits until all parts of an expert's B are written. The fence orders TMA loads after the
// acquiring load.
func (a awaiter) wait(expert ptx.U32) {
	if a.Await == nil {
		return
	}
	a.k.If(expert.Ne(a.last.Get()), func() {
		a.last.Set(expert)
		at := a.Ready.Index(expert, 4)
		a.k.Loop(func() { a.k.BreakIf(ptx.LdGlobalAcquire(at).GeI(a.Parts)) })
		a.k.FenceProxyAsync(".global")
	})
}
