package kernel

import (
	"sonicmoe/jit/pipeline"
	"sonicmoe/ptx"
)

// dwItem is a tile of one expert's weight gradient, summed over one split of
// its rows.
type dwItem struct {
	// m and n are the tile's first line and column of the product [d, N].
	m, n   ptx.U32
	expert ptx.U32
	// row is the split's first packed row, rows how many it has.
	row, rows ptx.U32
	// split counts from 0; splits is 0 behind the last item.
	split, splits ptx.U32
	// serial numbers the tiles of split experts.
	serial ptx.U32
}

const (
	dwItemBytes  = 32
	dwQueueDepth = 4
)

// dwQueue hands items to the roles of a persistent CTA in the order of the
// split table, the splits of a tile one after the other. Every ticket, the
// first too, is drawn by a CTA that runs: a split waits for those before it,
// which are then at work or done.
type dwQueue struct {
	k                      *ptx.Kernel
	ring                   *pipeline.Ring
	splits, count, tickets ptx.Global
	splitRows              int
	tilesM, tilesN, widthN int
}

// reader is a role's place in the queue; leader is the one lane of each
// reading warp that releases an item.
type dwReader struct {
	q      *dwQueue
	at     *pipeline.Cursor
	leader ptx.Pred
}

func (q *dwQueue) reader(leader ptx.Pred) *dwReader {
	return &dwReader{q, q.ring.Consumer(), leader}
}

// each runs body on the GPU for each of the CTA's items.
func (r *dwReader) each(body func(t dwItem)) {
	k := r.q.k
	k.Loop(func() {
		s := r.at.Wait()
		v := append(ptx.LdSharedVec[ptx.U32](s.Data, 4), ptx.LdSharedVec[ptx.U32](s.Data.At(16), 4)...)
		k.Guarded(r.leader, func() { s.Release(k) })
		r.at.Advance()
		t := dwItem{m: v[0], n: v[1], expert: v[2], row: v[3], rows: v[4], split: v[5], splits: v[6], serial: v[7]}
		k.BreakIf(t.splits.EqI(0))
		body(t)
	})
}

// dwPublisher draws tickets and publishes items, in one thread, each drawn
// one item before it is published. What waits for memory is spread over the
// steps of the item under way: publish draws a ticket, read asks for its
// split, place makes an item of it.
type dwPublisher struct {
	q      *dwQueue
	at     *pipeline.Cursor
	tiles  ptx.U32
	ticket *ptx.Var[ptx.U32]
	// next is the item to be published; between read and place, from word 2
	// on, its split: expert, first row, rows, first split, splits, rank.
	next [8]*ptx.Var[ptx.U32]
}

// splitsWord is where next has the number of splits: 0 behind the last item.
const splitsWord = 6

// publisher publishes the first item and has the second ready.
func (q *dwQueue) publisher() *dwPublisher {
	k := q.k
	p := &dwPublisher{q: q, at: q.ring.Producer()}
	p.tiles = ptx.LdGlobal[ptx.U32](q.count).MulI(q.tilesM * q.tilesN)
	for i := range p.next {
		p.next[i] = ptx.NewVar(k, ptx.Uint(0))
	}
	p.next[splitsWord].Set(ptx.Uint(1))
	p.ticket = ptx.NewVar(k, k.AtomGlobalAdd(q.tickets, ptx.Uint(1)))
	p.read()
	p.place()
	p.publish()
	p.read()
	p.place()
	return p
}

// publish gives the next item to the readers. Before each item that the CTA
// starts, it gives the one after it.
func (p *dwPublisher) publish() {
	k := p.q.k
	s := p.at.Acquire()
	for i := 0; i < len(p.next); i += 4 {
		ptx.StShared(s.Data.At(4*i), p.next[i].Get(), p.next[i+1].Get(), p.next[i+2].Get(), p.next[i+3].Get())
	}
	k.MbarrierArrive(s.Full)
	p.at.Advance()
	k.If(p.more(), func() { p.ticket.Set(k.AtomGlobalAdd(p.q.tickets, ptx.Uint(1))) })
}

func (p *dwPublisher) more() ptx.Pred { return p.next[splitsWord].Get().NeI(0) }

// read loads the ticket's split.
func (p *dwPublisher) read() {
	k, q := p.q.k, p.q
	ticket := p.ticket.Get()
	k.If(p.more(), func() {
		p.next[splitsWord].Set(ptx.Uint(0))
		k.If(ticket.Lt(p.tiles), func() {
			at := q.splits.Index(ticket.DivI(q.tilesM*q.tilesN), SplitBytes)
			e := append(ptx.LdGlobalVec[ptx.U32](at, 4), ptx.LdGlobalVec[ptx.U32](at.At(16), 2)...)
			for i, x := range e {
				p.next[2+i].Set(x)
			}
		})
	})
}

// place finds the ticket's tile and rows.
func (p *dwPublisher) place() {
	k, q := p.q.k, p.q
	k.If(p.more(), func() {
		tiles := q.tilesM * q.tilesN
		first, rows, base, splits, rank := p.next[3].Get(), p.next[4].Get(), p.next[5].Get(), p.next[6].Get(), p.next[7].Get()
		tile := ptx.NewVar(k, p.ticket.Get().Sub(base.MulI(tiles)))
		split := ptx.NewVar(k, ptx.Uint(0))
		k.If(splits.GtI(1), func() {
			in := tile.Copy()
			tile.Set(in.Div(splits))
			split.Set(in.Sub(tile.Get().Mul(splits)))
		})
		from := split.Get().MulI(q.splitRows)
		p.next[0].Set(tile.Get().DivI(q.tilesN).MulI(BlockRows))
		p.next[1].Set(tile.Get().RemI(q.tilesN).MulI(q.widthN))
		p.next[3].Set(first.Add(from))
		p.next[4].Set(rows.Sub(from).Min(ptx.Uint(q.splitRows)))
		p.next[5].Set(split.Get())
		p.next[7].Set(rank.MulI(tiles).Add(tile.Get()))
	})
}

// within runs the publisher's next part at step kt of an item of so many
// steps; a short item's last step runs what is left.
func (p *dwPublisher) within(kt, steps ptx.U32) {
	k := p.q.k
	last := kt.AddI(1).Eq(steps)
	k.If(kt.EqI(1).Or(last.And(kt.EqI(0))), p.read)
	k.If(kt.EqI(2).Or(last.And(kt.LtI(2))), p.place)
}
