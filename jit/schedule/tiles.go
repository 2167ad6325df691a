package schedule

import "sonicmoe/ptx"

// PairBytes is the size of an entry of the table of row pairs. A row pair is up to two row tiles of
// one expert. An entry has four 32-bit words: expert, first row, number of rows (1 to PairRows),
// and a word that only some kernels use: up to 8 tokens it is the set of the row pair's tokens. In a
// plan's table it is 0, and an up-projection with CTAs of 32 tokens counts there what it has stored.
const PairBytes = 16

// TileRows is the number of rows of a row tile, PairRows the number of rows of a pair of row tiles.
const (
	TileRows = 128
	PairRows = 2 * TileRows
)

// Tiles is the schedule of a grouped product: its tiles are row tiles x column tiles. The row tiles
// come from a table of row pairs in global memory. The length of the table is a word in global
// memory, so the host need not know it.
//
// A cluster of two CTAs takes a row pair, one row tile for each CTA, and the same columns. Each CTA
// loads one half of the weights into both CTAs (the weights are shared). A short pair has only one
// row tile. Both CTAs then take this row tile, with adjacent columns and each with its own weights,
// so that no CTA works on missing rows.
//
// Tiles are numbered in groups of GroupM row tiles. Within a group rows vary fastest. Tiles that
// run at the same time then share rows and columns in the L2 cache.
//
// One thread of each CTA or cluster draws tickets (numbers of tiles) from a counter that all CTAs
// share. Over the whole chip, tiles thus start in nearly the order of their numbers, even if some
// take longer than others. With a fixed share of tiles for each CTA, the CTAs would drift apart and
// share less in the L2 cache (see examples/bench/h200/experiments.md). Results do not depend on
// which CTA computes a tile.
type Tiles struct {
	// Table is the address of the first entry, RowPairs the address of the number of entries, and
	// Tickets the address of the counter, which must be 0 when the kernel starts.
	Table, RowPairs, Tickets ptx.Global
	// Columns is the number of column tiles. GroupM is the number of row tiles in a group.
	Columns, GroupM int
	// ClusterM is the number of CTAs in a cluster, 1 or 2.
	ClusterM int
}

// A plan serves two products, each of which draws tickets from a counter of its own.
const (
	// TicketBytes is the size of one counter, TicketsBytes the size of both counters of a plan.
	TicketBytes  = 4
	TicketsBytes = 2 * TicketBytes
)

// ClearTickets sets a plan's counters to 0. It must run in a kernel before the products.
func ClearTickets(at ptx.Global) { ptx.StGlobal(at, ptx.Uint(0), ptx.Uint(0)) }

// Tile is one tile of the schedule.
type Tile struct {
	Expert ptx.U32
	// Row is the tile's first packed row. Rows is the number of its rows that belong to the expert.
	Row, Rows ptx.U32
	// Live equals Rows, except in a tile past the last column. There it is 0: such a tile is loaded
	// but not multiplied.
	Live ptx.U32
	// Column is the number of the column tile, starting at 0.
	Column ptx.U32
	// Shared is 1 if the CTAs of the cluster share the tile's weights, else 0.
	Shared ptx.U32
}

// TileWords is the size of a tile in a queue, in words.
const TileWords = 4

// Words needs TileRows to fit into 8 bits.
const _ = uint8(TileRows)

// Words returns expert, row, a word of Rows, Live and Shared, and column.
func (t Tile) Words() []ptx.U32 {
	return []ptx.U32{t.Expert, t.Row, t.Rows.Or(t.Live.ShlI(8)).Or(t.Shared.ShlI(16)), t.Column}
}

// FromWords is the inverse of Words.
func (Tile) FromWords(v []ptx.U32) Tile {
	return Tile{Expert: v[0], Row: v[1], Rows: v[2].AndI(0xff), Live: v[2].ShrI(8).AndI(0xff), Shared: v[2].ShrI(16), Column: v[3]}
}

// IsEnd returns whether the tile has no rows, as a predicate.
func (t Tile) IsEnd() ptx.Pred { return t.Rows.EqI(0) }

func (b Tiles) clustered() bool { return b.ClusterM == 2 }

// place returns the row tile and the column of tile number t. rowTiles is the number of row tiles.
// In a cluster, row pairs take the place of row tiles. Within a group of GroupM row tiles the row
// tile varies fastest. The last group may have fewer row tiles, a number known only at run time.
// There the column varies fastest, so that t is still divided by constants alone.
func (b Tiles) place(t, rowTiles ptx.U32) (rowTile, column ptx.U32) {
	high := b.GroupM
	if b.clustered() {
		high = max(1, high/2)
	}
	perGroup := high * b.Columns
	group := t.DivI(perGroup)
	first := group.MulI(high)
	in := t.Sub(group.MulI(perGroup))
	whole := rowTiles.Sub(first).GeI(high)
	row := ptx.Select(whole, in.RemI(high), in.DivI(b.Columns))
	column = ptx.Select(whole, in.DivI(high), in.RemI(b.Columns))
	return first.Add(row), column
}

// TilePublisher draws tickets and publishes their tiles, in one thread of the CTA or cluster. It
// draws a ticket and reads its table entry one tile before the tile is published. This is early
// enough to hide the latency of memory, and late enough that tiles start in nearly the order of
// their tickets.
type TilePublisher struct {
	k               *ptx.Kernel
	of              Tiles
	queue           *Publisher[Tile]
	rowTiles, tiles ptx.U32
	entry           [4]*ptx.Var[ptx.U32] // table entry of the next tile: expert, row, rows of the pair or tile, column
}

// Publisher returns a publisher and publishes the first tile. It reads the table's length, so the
// kernel that wrote the table must have ended. Publish publishes the next tile; call it before each
// tile that the CTA starts. One thread runs both; in a cluster, it is a thread of CTA 0 (see
// [Queue.Publishes]).
func (b Tiles) Publisher(q *Queue[Tile]) *TilePublisher {
	p := b.publisher(q)
	p.Publish()
	return p
}

// PublishAll publishes all tiles. It is for a thread that does nothing else. wait
// waits until the CTA starts a tile that it has not waited for yet.
func (b Tiles) PublishAll(q *Queue[Tile], wait func()) {
	p := b.publisher(q)
	p.k.Loop(func() {
		end := p.entry[2].Get().EqI(0)
		p.Publish()
		p.k.BreakIf(end)
		wait()
	})
}

// publisher returns a publisher that has fetched the first tile.
func (b Tiles) publisher(q *Queue[Tile]) *TilePublisher {
	k := q.k
	p := &TilePublisher{k: k, of: b, queue: q.Publisher()}
	p.rowTiles = ptx.LdGlobal[ptx.U32](b.RowPairs)
	first := k.CtaidX() // CTA or cluster i starts with tile i
	if b.clustered() {
		first = first.ShrI(1)
	} else {
		p.rowTiles = p.rowTiles.ShlI(1)
	}
	p.tiles = p.rowTiles.MulI(b.Columns)
	for i := range p.entry {
		p.entry[i] = ptx.NewVar(k, ptx.Uint(0))
	}
	p.fetch(first)
	return p
}

// Publish publishes the next tile.
func (p *TilePublisher) Publish() {
	if p.of.clustered() {
		p.queue.PublishPair(p.pair())
	} else {
		rows := p.entry[2].Get()
		p.queue.Publish(Tile{Expert: p.entry[0].Get(), Row: p.entry[1].Get(), Rows: rows, Live: rows, Column: p.entry[3].Get(), Shared: ptx.Uint(0)})
	}
	p.k.If(p.entry[2].Get().NeI(0), func() { p.fetch(p.draw()) })
}

// pair returns the tile of each CTA of a cluster, for the present row pair and column.
func (p *TilePublisher) pair() (pair [2]Tile) {
	expert, row, rows, column := p.entry[0].Get(), p.entry[1].Get(), p.entry[2].Get(), p.entry[3].Get()
	both := rows.Gt(ptx.Uint(TileRows))
	shared := ptx.Select(both, ptx.Uint(1), ptx.Uint(0))
	for rank := range pair {
		t := Tile{Expert: expert, Shared: shared}
		t.Row = row.Add(ptx.Select(both, ptx.Uint(rank*TileRows), ptx.Uint(0)))
		t.Rows = ptx.Select(both, rows.Sub(rows.Min(ptx.Uint(rank*TileRows))), rows).Min(ptx.Uint(TileRows))
		t.Column = ptx.Select(both, column, column.MulI(2).AddI(rank))
		t.Live = ptx.Select(t.Column.LtI(p.of.Columns), t.Rows, ptx.Uint(0))
		pair[rank] = t
	}
	return pair
}

// draw draws the next ticket. The first tickets are the numbers of the CTAs or clusters, so the
// counter starts after them.
func (p *TilePublisher) draw() ptx.U32 {
	runners := p.k.NctaidX()
	if p.of.clustered() {
		runners = runners.ShrI(1)
	}
	return runners.Add(p.k.AtomGlobalAdd(p.of.Tickets, ptx.Uint(1)))
}

// fetch reads the table entry of a ticket's tile. If the ticket has no tile, fetch draws further
// tickets until a ticket has a tile. Past the last tile it stores an entry of 0 rows. These tickets
// have no tile: without clusters, the ticket of the second row tile of a short pair; with clusters,
// the tickets of a short pair's second half of columns, because both CTAs work on the first half at
// once.
func (p *TilePublisher) fetch(ticket ptx.U32) {
	k, b := p.k, p.of
	now := ptx.NewVar(k, ticket)
	k.Loop(func() {
		p.entry[2].Set(ptx.Uint(0))
		more := now.Get().Lt(p.tiles)
		k.If(more, func() {
			at, column := b.place(now.Get(), p.rowTiles)
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
