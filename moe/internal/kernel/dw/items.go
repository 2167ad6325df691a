package dw

import (
	"sonicmoe/jit/gemm"
	"sonicmoe/jit/schedule"
	"sonicmoe/ptx"
)

// item is a tile of one expert's weight gradient, summed over one split of
// its rows.
type item struct {
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

// itemWords is the size of an item in a queue.
const itemWords = 8

// Words implements schedule.Item.
func (t item) Words() []ptx.U32 {
	return []ptx.U32{t.m, t.n, t.expert, t.row, t.rows, t.split, t.splits, t.serial}
}

// FromWords implements schedule.Item.
func (item) FromWords(v []ptx.U32) item {
	return item{m: v[0], n: v[1], expert: v[2], row: v[3], rows: v[4], split: v[5], splits: v[6], serial: v[7]}
}

// IsEnd implements schedule.Item.
func (t item) IsEnd() ptx.Pred { return t.splits.EqI(0) }

// items are the items of a launch, in the order of the split table, the
// splits of a tile one after the other. Every ticket, the first too, is drawn
// by a CTA that runs: a split waits for those before it, which are then at
// work or done.
type items struct {
	k                      *ptx.Kernel
	splits, count, tickets ptx.Global
	splitRows              int
	tilesM, tilesN, widthN int
}

// publisher draws tickets and publishes items, in one thread, each drawn
// one item before it is published. What waits for memory is spread over the
// steps of the item under way: publish draws a ticket, read asks for its
// split, makeItem makes an item of it.
type publisher struct {
	of     items
	queue  *schedule.Publisher[item]
	tiles  ptx.U32
	ticket *ptx.Var[ptx.U32]
	// next is the item to be published; between read and makeItem, from word 2
	// on, its split: expert, first row, rows, first split, splits, rank.
	next [8]*ptx.Var[ptx.U32]
}

// splitsWord is where next has the number of splits: 0 behind the last item.
const splitsWord = 6

// publisher publishes the first item and has the second ready.
func (d items) publisher(q *schedule.Queue[item]) *publisher {
	k := d.k
	p := &publisher{of: d, queue: q.Publisher()}
	p.tiles = ptx.LdGlobal[ptx.U32](d.count).MulI(d.tilesM * d.tilesN)
	for i := range p.next {
		p.next[i] = ptx.NewVar(k, ptx.Uint(0))
	}
	p.next[splitsWord].Set(ptx.Uint(1))
	p.ticket = ptx.NewVar(k, k.AtomGlobalAdd(d.tickets, ptx.Uint(1)))
	p.read()
	p.makeItem()
	p.publish()
	p.read()
	p.makeItem()
	return p
}

// publish gives the next item to the readers. Before each item that the CTA
// starts, it gives the one after it.
func (p *publisher) publish() {
	k := p.of.k
	var words []ptx.U32
	for _, v := range p.next {
		words = append(words, v.Get())
	}
	p.queue.Publish(item{}.FromWords(words))
	k.If(p.more(), func() { p.ticket.Set(k.AtomGlobalAdd(p.of.tickets, ptx.Uint(1))) })
}

func (p *publisher) more() ptx.Pred { return p.next[splitsWord].Get().NeI(0) }

// read loads the ticket's split.
func (p *publisher) read() {
	k, q := p.of.k, p.of
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

// makeItem finds the ticket's tile and rows.
func (p *publisher) makeItem() {
	k, q := p.of.k, p.of
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
		p.next[0].Set(tile.Get().DivI(q.tilesN).MulI(gemm.TileM))
		p.next[1].Set(tile.Get().RemI(q.tilesN).MulI(q.widthN))
		p.next[3].Set(first.Add(from))
		p.next[4].Set(rows.Sub(from).Min(ptx.Uint(q.splitRows)))
		p.next[5].Set(split.Get())
		p.next[7].Set(rank.MulI(tiles).Add(tile.Get()))
	})
}

// within runs the publisher's next part at step kt of an item's steps; a short
// item's last step runs what is left.
func (p *publisher) within(kt, steps ptx.U32) {
	k := p.of.k
	last := kt.AddI(1).Eq(steps)
	k.If(kt.EqI(1).Or(last.And(kt.EqI(0))), p.read)
	k.If(kt.EqI(2).Or(last.And(kt.LtI(2))), p.makeItem)
}
