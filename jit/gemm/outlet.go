package gemm

import (
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/schedule"
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

// Outlet writes the 64 x 64 sub-tiles of both math warpgroups to global memory. A
// thread of the load role issues the TMA stores and waits for them. A math
// warpgroup thus has a slot of shared memory for each of its sub-tiles, and returns
// to its products as soon as it has filled them. The warpgroups use the same slots
// in turns if there are not enough for both.
type Outlet struct {
	k       *ptx.Kernel
	element tile.Element
	n       int // sub-tiles of a warpgroup
	to      ptx.TensorMap
	at      func(t Tile, i int) []ptx.U32

	memory ptx.Shared
	full   ptx.Shared // a barrier for each slot
	free   ptx.Shared // a barrier for each warpgroup's use of each of its slots
	turns  bool       // the warpgroups have the same slots
}

// outletSlots is the number of slots. They take the same memory as a [Store].
const outletSlots = StoreBytes / tile.StagingBytes

// NewOutlet reserves the slots, which take [StoreBytes]. n is the number of
// sub-tiles of a warpgroup. to is the map of the tensor, and at returns the
// coordinates in it of sub-tile i.
func NewOutlet(k *ptx.Kernel, of tile.Element, cta *pipeline.CTA, n int, to ptx.TensorMap, at func(t Tile, i int) []ptx.U32) *Outlet {
	return &Outlet{k: k, element: of, n: n, to: to, at: at, turns: 2*n > outletSlots, memory: cta.Shared("store", StoreBytes, 1024)}
}

// withBarriers reserves the barriers, and returns an outlet that has them. The barriers follow the
// stages, whose alignment would otherwise cost memory.
func (o Outlet) withBarriers(cta *pipeline.CTA) *Outlet {
	const warps = pipeline.WarpgroupThreads / 32
	o.full, o.free = cta.Mbarriers("store.full", 2*o.n, warps), cta.Mbarriers("store.free", 2*o.n, 1)
	return &o
}

// slot is a slot as a warpgroup uses it.
type slot struct {
	data ptx.Shared
	// full completes when the slot is filled, free when it may be filled. release is
	// the barrier free of the slot's next use.
	full, free, release ptx.Shared
}

// slot returns the slot of sub-tile i of a warpgroup.
func (o *Outlet) slot(wg ptx.U32, i int) slot {
	const barrier = 8
	own, other := wg.MulI(o.n), wg.XorI(1).MulI(o.n)
	free := func(first ptx.U32) ptx.Shared { return o.free.Plus(first.MulI(barrier)).At(i * barrier) }
	if o.turns {
		return slot{o.memory.At(i * tile.StagingBytes), o.full.At(i * barrier), free(own), free(other)}
	}
	return slot{o.memory.Plus(own.MulI(tile.StagingBytes)).At(i * tile.StagingBytes), o.full.Plus(own.MulI(barrier)).At(i * barrier), free(own), free(own)}
}

// outletUser is a math warpgroup that fills slots.
type outletUser struct {
	*Outlet
	warpgroup ptx.U32
	phase     *ptx.Var[ptx.U32] // of the warpgroup's barriers in free
}

// user returns a math warpgroup as a user. Its first slots are free at once, except those that
// the other warpgroup uses first.
func (o *Outlet) user(wg ptx.U32) outletUser {
	if o == nil {
		return outletUser{}
	}
	first := ptx.Uint(1)
	if o.turns {
		first = wg.XorI(1)
	}
	return outletUser{o, wg, ptx.NewVar(o.k, first)}
}

// Store stores the warpgroup's sub-tiles through the product's [Outlet]. values returns the values
// of sub-tile i.
func (t Tile) Store(values func(i int) Values) {
	o := t.outlet
	k := o.k
	to := tile.NewStaging(k, o.element, ptx.InWarpgroup(k.TidX()))
	o.each(func(i int, data ptx.Shared) {
		values(i)(to, data)
		k.FenceProxyAsync(".shared::cta")
		k.BarWarpSync(ptx.Uint(ptx.FullMask))
	})
}

// StoreSums stores the warpgroup's sums as they are, as [Tile.Store] does.
func (t Tile) StoreSums(acc []ptx.F32) {
	t.Store(func(i int) Values { return Registers(OfSubTile(acc, i)) })
}

// skip passes over the warpgroup's turn if it has no rows in a tile.
func (o outletUser) skip() { o.each(func(int, ptx.Shared) {}) }

// each fills the warpgroup's slots.
func (o outletUser) each(fill func(i int, data ptx.Shared)) {
	k := o.k
	leader := k.Lane().EqI(0)
	for i := range o.n {
		s := o.slot(o.warpgroup, i)
		pipeline.WaitParity(k, s.free, o.phase.Get())
		fill(i, s.data)
		k.Guarded(leader, func() { k.MbarrierArrive(s.full) })
	}
	o.phase.Set(o.phase.Get().XorI(1))
}

// ByOutlet is for embedding in epilogues that store by [Tile.Store]. The load role waits for the
// stores.
type ByOutlet struct{ NoPerKTile }

// Finish implements [Epilogue].
func (ByOutlet) Finish() {}

// Sums is the epilogue of a product that stores its sums as they are, through its [Outlet].
type Sums struct{ ByOutlet }

// UnderLastMMA implements [Epilogue].
func (Sums) UnderLastMMA(t Tile) func(acc []ptx.F32) { return t.StoreSums }

// run stores the sub-tiles of all tiles, in one thread. A slot is released when its
// bytes have been read.
func (o *Outlet) run(p *Product) {
	k := o.k
	phase := ptx.NewVar(k, ptx.Uint(0)) // of the full barriers, if the warpgroups have their own
	p.Queue.Reader(ptx.True()).Each(func(t schedule.Tile) {
		for wg := range 2 {
			mine, parity := p.part(t, ptx.Uint(wg)), phase.Get()
			if o.turns {
				parity = ptx.Uint(wg) // each slot is filled twice a tile
			}
			for i := range o.n {
				s := o.slot(ptx.Uint(wg), i)
				pipeline.WaitParity(k, s.full, parity)
				k.If(mine.ValidRows.NeI(0), func() { k.TMAStore(o.to, s.data, o.at(mine, i)...) })
				k.BulkCommit()
				if i > 0 {
					k.BulkWait(1, ".read")
					k.MbarrierArrive(o.slot(ptx.Uint(wg), i-1).release)
				}
			}
			k.BulkWait(0, ".read")
			k.MbarrierArrive(o.slot(ptx.Uint(wg), o.n-1).release)
		}
		if !o.turns {
			phase.Set(phase.Get().XorI(1))
		}
	})
	k.BulkWait(0)
}
