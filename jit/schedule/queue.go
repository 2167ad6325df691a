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
}

// queueDepth is how many published tiles the roles may be apart.
const queueDepth = 4

// NewQueue makes a queue. readers is the number of arrivals that release a
// tile: one for each warp, or lone thread, that reads.
func NewQueue(k *ptx.Kernel, set *pipeline.Setup, mem *pipeline.Shared, b Blocks, readers int) *Queue {
	return &Queue{k: k, b: b, ring: pipeline.NewRing(k, set, mem, queueDepth, BlockBytes, 1, readers)}
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
	k.Guarded(r.leader, func() { s.Release(k) })
	r.at.Advance()
	return Tile{Expert: v[0], Row: v[1], Rows: v[2], Column: v[3]}
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

// Publisher draws tickets and publishes tiles, in one thread. A ticket is
// drawn, and its table entry read, one tile before it is published: early
// enough that nobody waits for memory, late enough that tiles start in nearly
// the order of their tickets.
type Publisher struct {
	q             *Queue
	at            *pipeline.Cursor
	blocks, tiles ptx.U32
	entry         [4]*ptx.Var[ptx.U32]
}

// Publisher publishes the first tile. It reads the block count, so it must
// come after the kernel that wrote the table is known to be done. Before each
// tile that its CTA starts, Publish gives the one after it. Both run in one
// thread.
func (q *Queue) Publisher() *Publisher {
	k := q.k
	p := &Publisher{q: q, at: q.ring.Producer()}
	p.blocks = ptx.LdGlobal[ptx.U32](q.b.Count)
	p.tiles = p.blocks.MulI(q.b.Columns)
	for i := range p.entry {
		p.entry[i] = ptx.NewVar(k, ptx.Uint(0))
	}
	p.fetch(k.Special("%ctaid.x")) // the first tiles are the CTAs' own numbers
	p.Publish()
	return p
}

// Publish gives the next tile to the readers.
func (p *Publisher) Publish() {
	k := p.q.k
	s := p.at.Acquire()
	ptx.StShared(s.Data, p.entry[0].Get(), p.entry[1].Get(), p.entry[2].Get(), p.entry[3].Get())
	k.MbarrierArrive(s.Full)
	p.at.Advance()
	k.If(p.entry[2].Get().NeI(0), func() {
		p.fetch(k.Special("%nctaid.x").Add(k.AtomGlobalAdd(p.q.b.Tickets, ptx.Uint(1))))
	})
}

// fetch reads a ticket's table entry, none (0 rows) past the last tile.
func (p *Publisher) fetch(ticket ptx.U32) {
	p.entry[2].Set(ptx.Uint(0))
	p.q.k.If(ticket.Lt(p.tiles), func() {
		at, column := p.q.b.place(ticket, p.blocks)
		e := ptx.LdGlobalVec[ptx.U32](p.q.b.Table.Index(at, BlockBytes), 4)
		for i := range 3 {
			p.entry[i].Set(e[i])
		}
		p.entry[3].Set(column)
	})
}
