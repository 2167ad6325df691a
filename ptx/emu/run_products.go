package emu

import (
	"sync"
	"sync/atomic"

	"sonicmoe/ptx/emu/internal/arith"
	"sonicmoe/ptx/emu/internal/mma"
	"sonicmoe/ptx/isa"
)

// Once its operands are read, a wgmma depends on nothing else, and no instruction may touch its
// accumulator before a wait_group. Helper goroutines can therefore multiply in parallel with the
// goroutine that runs the cluster. That goroutine waits for them only where an instruction touches
// an accumulator. The results and faults of a kernel do not depend on the number of helpers.

// product is one wgmma with its decoded operands.
type product struct {
	a mma.A
	b [sparseShare]mma.B // B; if A is sparse, B has twice the k extent and fills both elements
	// picks says which elements of B a sparse A multiplies. It is nil if A is dense.
	picks *mma.Picks
	in    *inst
	list  []int32 // register slots of the accumulator
	keep  bool
	// integers reports whether the elements are integers, saturate whether their sums saturate.
	integers, saturate bool
	halves             bool         // sums are FP16
	left               atomic.Int32 // number of warps that have not multiplied yet
}

var productPool = sync.Pool{New: func() any { return &product{} }}

func newProduct(op *wgmmaOp) *product {
	p := productPool.Get().(*product)
	p.in, p.list, p.keep = op.in, op.in.args[0].list, op.keep
	p.integers, p.saturate = op.in.form.Args[0].Type == isa.S32, op.in.has(".satfinite")
	p.halves, p.picks = op.in.inHalves(), op.picks
	p.left.Store(4)
	return p
}

// maxProducts is the largest number of products that wait in a warp's queue.
const maxProducts = 16

// productQueue holds the products that a warp's accumulators still lack, in order.
type productQueue struct {
	some    bool // the queue may have products; only the cluster's goroutine uses this field
	mu      sync.Mutex
	done    sync.Cond
	list    []*product
	running bool // a goroutine is multiplying for this warp
	offered bool // the queue is in the helpers' channel
}

// multiply adds a product to the warp's accumulators, at once or later by a helper.
func (w *warp) multiply(p *product) {
	helpers := w.cta.cluster.grid.helpers
	switch {
	case w.cta.cluster.finite:
		w.addFinite(p)
		return
	case helpers == nil:
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
		helpers <- w // does not block: the channel has capacity for every warp
	case len(q.list) >= maxProducts: // the helpers are too slow, so this goroutine multiplies
		q.run(w)
	}
	q.mu.Unlock()
}

func (w *warp) add(p *product) {
	warp := w.id % 4
	switch {
	case p.integers && p.picks != nil:
		mma.AddSparseIntegers(w.r32, p.list, &p.a, warp, &p.b, p.picks, p.keep, p.saturate)
	case p.integers:
		mma.AddIntegers(w.r32, p.list, &p.a, warp, &p.b[0], p.keep, p.saturate)
	case p.halves:
		p.addHalves(w.r32, warp)
	default:
		p.addFloats(w.r32, p.list, warp)
	}
	if p.left.Add(-1) == 0 {
		productPool.Put(p)
	}
}

// addFloats adds the product to accumulators that are FP32.
func (p *product) addFloats(registers mma.Registers, list []int32, warp int) {
	if p.picks != nil {
		mma.AddSparse(registers, list, &p.a, warp, &p.b, p.picks, p.keep)
	} else {
		mma.Add(registers, list, &p.a, warp, &p.b[0], p.keep)
	}
}

// addHalves adds the product to accumulators that are FP16. The format of A must have Halves set.
func (p *product) addHalves(registers mma.Registers, warp int) {
	sums, slots := make(mma.Registers, 2*len(p.list)), make([]int32, 2*len(p.list))
	for i := range slots {
		slots[i] = int32(i)
		for l, pair := range registers[p.list[i/2]] {
			sums[i][l] = arith.F32FromF16(uint16(pair >> (i % 2 * 16)))
		}
	}
	p.addFloats(sums, slots, warp)
	for i, s := range p.list {
		for l := range registers[s] {
			registers[s][l] = arith.F16Nearest(sums[2*i][l]) | arith.F16Nearest(sums[2*i+1][l])<<16
		}
	}
}

// run multiplies all queued products. The caller holds q.mu.
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

// settle waits until the warp's accumulators hold the sums of all issued products.
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

// help multiplies for the warps of the channel until it is closed.
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
