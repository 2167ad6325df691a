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
// one item before it is published.
type dwPublisher struct {
	q     *dwQueue
	at    *pipeline.Cursor
	tiles ptx.U32
	next  [8]*ptx.Var[ptx.U32]
}

func (q *dwQueue) publisher() *dwPublisher {
	p := &dwPublisher{q: q, at: q.ring.Producer()}
	p.tiles = ptx.LdGlobal[ptx.U32](q.count).MulI(q.tilesM * q.tilesN)
	for i := range p.next {
		p.next[i] = ptx.NewVar(q.k, ptx.Uint(0))
	}
	p.fetch()
	p.publish()
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
	k.If(p.next[6].Get().NeI(0), p.fetch)
}

// fetch draws a ticket and reads its split.
func (p *dwPublisher) fetch() {
	k, q := p.q.k, p.q
	ticket := k.AtomGlobalAdd(q.tickets, ptx.Uint(1))
	p.next[6].Set(ptx.Uint(0))
	k.If(ticket.Lt(p.tiles), func() {
		tiles := q.tilesM * q.tilesN
		at := q.splits.Index(ticket.DivI(tiles), SplitBytes)
		e := ptx.LdGlobalVec[ptx.U32](at, 4)
		more := ptx.LdGlobalVec[ptx.U32](at.At(16), 2)
		expert, first, rows, base, splits, rank := e[0], e[1], e[2], e[3], more[0], more[1]
		tile := ptx.NewVar(k, ticket.Sub(base.MulI(tiles)))
		split := ptx.NewVar(k, ptx.Uint(0))
		k.If(splits.GtI(1), func() {
			in := tile.Copy()
			tile.Set(in.Div(splits))
			split.Set(in.Sub(tile.Get().Mul(splits)))
		})
		from := split.Get().MulI(q.splitRows)
		for i, x := range []ptx.U32{
			tile.Get().DivI(q.tilesN).MulI(BlockRows), tile.Get().RemI(q.tilesN).MulI(q.widthN), expert,
			first.Add(from), rows.Sub(from).Min(ptx.Uint(q.splitRows)),
			split.Get(), splits, rank.MulI(tiles).Add(tile.Get()),
		} {
			p.next[i].Set(x)
		}
	})
}
