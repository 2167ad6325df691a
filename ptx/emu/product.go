package emu

import (
	"sync"
	"sync/atomic"

	"sonicmoe/ptx/emu/internal/mma"
	"sonicmoe/ptx/isa"
)

// Products of wgmma wait for nothing once their operands are read: until a
// wait_group nobody may touch their accumulators. So goroutines that have no
// cluster to run multiply beside the cluster's own, which waits for them only
// where an instruction touches an accumulator. What the kernel computes, and
// the faults it makes, do not depend on how many there are.

// product is one wgmma with its operands.
type product struct {
	a    mma.A
	b    mma.B
	list []int32 // slots of the accumulator
	keep bool
	// integers: the elements are, and saturate says how their sums end.
	integers, saturate bool
	halves             bool         // sums are FP16
	left               atomic.Int32 // warps that have not multiplied yet
}

var productPool = sync.Pool{New: func() any { return &product{} }}

func newProduct(op *wgmmaOp) *product {
	p := productPool.Get().(*product)
	p.list, p.keep = op.in.args[0].list, op.keep
	p.integers, p.saturate = op.in.form.Args[0].Type == isa.S32, op.in.has(".satfinite")
	p.halves = op.in.inHalves()
	p.left.Store(4)
	return p
}

// maxProducts bounds those of a warp that are not multiplied yet.
const maxProducts = 16

// productQueue is the products of a warp, in order.
type productQueue struct {
	some    bool // there may be products; the cluster's own
	mu      sync.Mutex
	done    sync.Cond
	list    []*product
	running bool // some goroutine multiplies
	offered bool // to the helpers, none of which has come yet
}

// multiply adds a product to the warp's accumulator, now or a little later.
func (w *warp) multiply(p *product) {
	helpers := w.cta.cluster.grid.helpers
	if helpers == nil {
		w.add(p)
		return
	}
	q := &w.products
	q.some = true
	q.mu.Lock()
	for len(q.list) >= maxProducts && q.running {
		q.done.Wait()
	}
	q.list = append(q.list, p)
	switch {
	case q.running:
	case !q.offered:
		q.offered = true
		helpers <- w // which has room for every warp
	case len(q.list) >= maxProducts: // all are busy
		q.run(w)
	}
	q.mu.Unlock()
}

func (w *warp) add(p *product) {
	switch {
	case p.integers:
		mma.AddIntegers(w.r32, p.list, &p.a, w.id%4, &p.b, p.keep, p.saturate)
	case p.halves:
		addHalves(w.r32, p.list, &p.a, w.id%4, &p.b, p.keep)
	default:
		mma.Add(w.r32, p.list, &p.a, w.id%4, &p.b, p.keep)
	}
	if p.left.Add(-1) == 0 {
		productPool.Put(p)
	}
}

// addHalves is [mma.Add] of FP16 sums, for which A's format is.
func addHalves(registers mma.Registers, list []int32, a *mma.A, warp int, b *mma.B, keep bool) {
	sums, slots := make(mma.Registers, 2*len(list)), make([]int32, 2*len(list))
	for i := range slots {
		slots[i] = int32(i)
		for l, pair := range registers[list[i/2]] {
			sums[i][l] = f32FromF16(uint16(pair >> (i % 2 * 16)))
		}
	}
	mma.Add(sums, slots, a, warp, b, keep)
	for i, s := range list {
		for l := range registers[s] {
			registers[s][l] = f16Nearest(sums[2*i][l]) | f16Nearest(sums[2*i+1][l])<<16
		}
	}
}

// run multiplies all there is. The caller holds mu.
func (q *productQueue) run(w *warp) {
	q.running = true
	for len(q.list) > 0 {
		p := q.list[0]
		q.list[0] = nil
		q.list = q.list[1:]
		q.mu.Unlock()
		w.add(p)
		q.mu.Lock()
		q.done.Signal()
	}
	q.running = false
	q.done.Signal()
}

// settle waits until the warp's accumulators hold their sums.
func (w *warp) settle() {
	q := &w.products
	if !q.some {
		return
	}
	q.mu.Lock()
	for q.running {
		q.done.Wait()
	}
	q.run(w)
	q.some = false
	q.mu.Unlock()
}

// help multiplies for warps until there are no more.
func help(warps <-chan *warp) {
	for w := range warps {
		q := &w.products
		q.mu.Lock()
		if q.offered = false; !q.running {
			q.run(w)
		}
		q.mu.Unlock()
	}
}
