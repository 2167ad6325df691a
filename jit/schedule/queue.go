package schedule

import (
	"sonicmoe/jit/pipeline"
	"sonicmoe/ptx"
)

// Queue hands the tiles of Blocks to the roles of a persistent CTA. One
// thread draws tickets from a counter that all CTAs share and publishes each
// tile in a small ring; every role reads the same sequence. So tiles run in
// nearly the order of their numbers over the whole chip, whatever each of them
// costs, and tiles that share rows and weights meet in the L2 cache. (With a
// fixed share for each CTA the CTAs drift apart: at n=2048 the up-projection
// then read 19.6 GB from memory instead of 8.)
//
// Results don't depend on who takes which tile.
type Queue struct {
	k    *ptx.Kernel
	b    Blocks
	ring *pipeline.Ring
	// outbox is where the publisher of a cluster writes the tiles of both
	// CTAs before they are copied to each.
	outbox ptx.Shared
}

const (
	// queueDepth is how many published tiles the roles may be apart.
	queueDepth = 4
	// tileBytes is a published tile: expert, row, counts and flags, column.
	tileBytes = 16
)

// NewQueue makes a queue. readers is the number of arrivals that release a
// tile: one for each warp, or lone thread, of the CTA that reads.
func NewQueue(k *ptx.Kernel, set *pipeline.Setup, mem *pipeline.Shared, b Blocks, readers int) *Queue {
	q := &Queue{k: k, b: b}
	if b.clustered() {
		q.outbox = mem.Take(queueDepth*2*tileBytes, 16)
		readers *= 2
	}
	q.ring = pipeline.NewRing(k, set, mem, queueDepth, tileBytes, 1, readers)
	return q
}

// Reader is a role's place in the queue.
type Reader struct {
	q      *Queue
	at     *pipeline.Cursor
	leader ptx.Pred
}

// Reader starts at the first tile. leader holds in the one lane of each
// reading warp that releases what the warp has read.
func (q *Queue) Reader(leader ptx.Pred) *Reader {
	return &Reader{q: q, at: q.ring.Consumer(), leader: leader}
}

// Next waits for the next tile; its Rows are 0 after the last.
func (r *Reader) Next() Tile {
	k := r.q.k
	s := r.at.Wait()
	v := ptx.LdSharedVec[ptx.U32](s.Data, 4)
	k.Guarded(r.leader, func() {
		if r.q.b.clustered() {
			s.ReleaseTo(k, ptx.Uint(0))
		} else {
			s.Release(k)
		}
	})
	r.at.Advance()
	return unpackTile(v)
}

// Each runs body on the GPU for each of the CTA's tiles.
func (r *Reader) Each(body func(t Tile)) {
	k := r.q.k
	k.Loop(func() {
		t := r.Next()
		k.BreakIf(t.Rows.EqI(0))
		body(t)
	})
}

// pack is a tile as the queue passes it on: Rows, Live and Shared in one word.
func (t Tile) pack() []ptx.U32 {
	return []ptx.U32{t.Expert, t.Row, t.Rows.Or(t.Live.ShlI(8)).Or(t.Shared.ShlI(16)), t.Column}
}

func unpackTile(v []ptx.U32) Tile {
	return Tile{Expert: v[0], Row: v[1], Rows: v[2].AndI(0xff), Live: v[2].ShrI(8).AndI(0xff), Shared: v[2].ShrI(16), Column: v[3]}
}

// Publisher draws tickets and publishes tiles, in one thread of the CTA, or of
// the cluster. A ticket is drawn, and its table entry read, one tile before it
// is published: early enough that nobody waits for memory, late enough that
// tiles start in nearly the order of their tickets.
type Publisher struct {
	q             *Queue
	at            *pipeline.Cursor
	blocks, tiles ptx.U32
	entry         [4]*ptx.Var[ptx.U32] // of the next tile: expert, row, rows of the pair or block, column
}

// Publisher publishes the first tile. It reads the table's length, so it must
// come after the kernel that wrote the table is known to be done. Before each
// tile that its CTA starts, Publish gives the one after it. Both run in one
// thread: of a cluster, in CTA 0 (see [Queue.Publishes]).
func (q *Queue) Publisher() *Publisher {
	k := q.k
	p := &Publisher{q: q, at: q.ring.Producer()}
	p.blocks = ptx.LdGlobal[ptx.U32](q.b.Count)
	first := k.Special("%ctaid.x") // the first tiles are the CTAs' own numbers
	if q.b.clustered() {
		first = first.ShrI(1)
	} else {
		p.blocks = p.blocks.ShlI(1)
	}
	p.tiles = p.blocks.MulI(q.b.Columns)
	for i := range p.entry {
		p.entry[i] = ptx.NewVar(k, ptx.Uint(0))
	}
	p.fetch(first)
	p.Publish()
	return p
}

// Publishes says whether this CTA's thread that could publish does: the first
// CTA of a cluster publishes for both.
func (q *Queue) Publishes() ptx.Pred {
	if q.b.clustered() {
		return q.k.Special("%cluster_ctarank").EqI(0)
	}
	return ptx.True()
}

// Publish gives the next tile to the readers.
func (p *Publisher) Publish() {
	k := p.q.k
	s := p.at.Acquire()
	if p.q.b.clustered() {
		p.send(s)
	} else {
		rows := p.entry[2].Get()
		t := Tile{Expert: p.entry[0].Get(), Row: p.entry[1].Get(), Rows: rows, Live: rows, Column: p.entry[3].Get(), Shared: ptx.Uint(0)}
		ptx.StShared(s.Data, t.pack()...)
		k.MbarrierArrive(s.Full)
	}
	p.at.Advance()
	k.If(p.entry[2].Get().NeI(0), func() { p.fetch(p.draw()) })
}

// send copies each CTA's part of the pair to it.
func (p *Publisher) send(s pipeline.Stage) {
	k := p.q.k
	out := p.q.outbox.Plus(p.at.Index().MulI(2 * tileBytes))
	expert, row, rows, column := p.entry[0].Get(), p.entry[1].Get(), p.entry[2].Get(), p.entry[3].Get()
	pair := rows.Gt(ptx.Uint(TileRows))
	shared := ptx.Select(pair, ptx.Uint(1), ptx.Uint(0))
	for r := range 2 {
		t := Tile{Expert: expert, Shared: shared}
		t.Row = row.Add(ptx.Select(pair, ptx.Uint(r*TileRows), ptx.Uint(0)))
		t.Rows = ptx.Select(pair, rows.Sub(rows.Min(ptx.Uint(r*TileRows))), rows).Min(ptx.Uint(TileRows))
		t.Column = ptx.Select(pair, column, column.MulI(2).AddI(r))
		t.Live = ptx.Select(t.Column.LtI(p.q.b.Columns), t.Rows, ptx.Uint(0))
		ptx.StShared(out.At(r*tileBytes), t.pack()...)
	}
	k.FenceProxyAsync(".shared::cta")
	for r := range 2 {
		there := func(s ptx.Shared) ptx.Shared { return ptx.SharedAt(s.Addr().MapaI(r)) }
		full := there(s.Full)
		k.MbarrierArriveExpectTxCluster(full, ptx.Uint(tileBytes))
		k.BulkCopyCluster(there(s.Data), out.At(r*tileBytes), ptx.Uint(tileBytes), full)
	}
}

// draw takes the next ticket.
func (p *Publisher) draw() ptx.U32 {
	k := p.q.k
	runners := k.Special("%nctaid.x")
	if p.q.b.clustered() {
		runners = runners.ShrI(1)
	}
	return runners.Add(k.AtomGlobalAdd(p.q.b.Tickets, ptx.Uint(1)))
}

// fetch reads a ticket's tile, or the next one's that has a tile; none (0
// rows) past the last. The second block of a short pair has none; in a
// cluster, where both CTAs work on a short pair, the second half of its
// columns have none.
func (p *Publisher) fetch(ticket ptx.U32) {
	k, b := p.q.k, p.q.b
	now := ptx.NewVar(k, ticket)
	k.Loop(func() {
		p.entry[2].Set(ptx.Uint(0))
		more := now.Get().Lt(p.tiles)
		k.If(more, func() {
			at, column := b.place(now.Get(), p.blocks)
			pair := at
			if !b.clustered() {
				pair = at.ShrI(1)
			}
			e := ptx.LdGlobalVec[ptx.U32](b.Table.Index(pair, PairBytes), 4)
			row, rows := e[1], e[2]
			if b.clustered() {
				none := rows.LeI(TileRows).And(column.GeI((b.Columns + 1) / 2))
				rows = ptx.Select(none, ptx.Uint(0), rows)
			} else {
				before := at.AndI(1).MulI(TileRows)
				row, rows = row.Add(before), rows.Sub(rows.Min(before)).Min(ptx.Uint(TileRows))
			}
			for i, v := range []ptx.U32{e[0], row, rows, column} {
				p.entry[i].Set(v)
			}
		})
		k.BreakIf(more.Not().Or(p.entry[2].Get().NeI(0)))
		now.Set(p.draw())
	})
}
