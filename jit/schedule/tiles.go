package schedule

import "sonicmoe/ptx"

// PairBytes is the size of an entry of the table of row pairs. It has four 32-bit
// words: expert, first row, number of rows (1 to PairRows), and a word that only
// the kernel which makes the table uses.
const PairBytes = 16

// TileRows is the number of rows of a tile, PairRows of a pair of tiles.
const (
	TileRows = 128
	PairRows = 2 * TileRows
)

// Tiles are the tiles of a grouped product: row tiles x column tiles. The row
// tiles come from a table of row pairs in global memory. The table's length is a
// word in global memory, so the host need not know it.
//
// A cluster of two CTAs takes a row pair, one row tile for each CTA, and the same
// columns. Each CTA loads one half of the weights into both (a shared tile). A
// short pair has one row tile only. Both CTAs then take that row tile and adjacent
// columns, each with its own weights, so that no CTA works on missing rows.
//
// Tiles are numbered in groups of GroupM row tiles. Within a group rows vary
// fastest. Tiles that run at the same time then share rows and columns in the L2
// cache.
//
// One thread of each CTA or cluster draws tickets from a counter that all CTAs
// share. Tiles thus start in nearly the order of their numbers over the whole
// chip, whatever each costs. With a fixed share for each CTA, the CTAs would drift
// apart and share less in the L2 cache (see examples/bench/h200/experiments.md).
// Results do not depend on which CTA computes a tile.
type Tiles struct {
	// Table is the address of the first entry, RowPairs the address of the number of
	// entries, Tickets the address of the counter, which is 0 when the kernel starts.
	Table, RowPairs, Tickets ptx.Global
	// Columns is the number of column tiles, GroupM the number of row tiles in a
	// group.
	Columns, GroupM int
	// ClusterM is the number of CTAs in a cluster, 1 or 2.
	ClusterM int
}

// A plan serves two products. Each draws tickets from its own counter.
const (
	// TicketBytes is the size of one counter, TicketsBytes the size of a plan's
	// counters.
	TicketBytes  = 4
	TicketsBytes = 2 * TicketBytes
)

// ClearTickets sets a plan's counters to 0. It runs in a kernel before the
// products.
func ClearTickets(at ptx.Global) { ptx.StGlobal(at, ptx.Uint(0), ptx.Uint(0)) }

// Tile is one tile of the schedule.
type Tile struct {
	Expert ptx.U32
	// Row is the tile's first packed row. Rows is the number of its rows that belong
	// to the expert.
	Row, Rows ptx.U32
	// Live is Rows. It is 0 in a tile past the last column, which is loaded but not
	// multiplied.
	Live ptx.U32
	// Column is the column tile, from 0.
	Column ptx.U32
	// Shared is 1 if the CTAs of the cluster share the weights, else 0.
	Shared ptx.U32
}

// TileWords is the size of a tile in a queue, in words.
const TileWords = 4

// Words packs both counts of a tile into 8 bits each.
const _ = uint8(TileRows)

// Words returns expert, row, counts and flags, column.
func (t Tile) Words() []ptx.U32 {
	return []ptx.U32{t.Expert, t.Row, t.Rows.Or(t.Live.ShlI(8)).Or(t.Shared.ShlI(16)), t.Column}
}

// FromWords returns the tile of these words.
func (Tile) FromWords(v []ptx.U32) Tile {
	return Tile{Expert: v[0], Row: v[1], Rows: v[2].AndI(0xff), Live: v[2].ShrI(8).AndI(0xff), Shared: v[2].ShrI(16), Column: v[3]}
}

// IsEnd holds for a tile without rows.
func (t Tile) IsEnd() ptx.Pred { return t.Rows.EqI(0) }

func (b Tiles) clustered() bool { return b.ClusterM == 2 }

// place returns the row tile and the column of tile t if there are rowTiles row
// tiles, or in a cluster its row pair and column. In the last group, which may be
// lower, columns vary fastest, so that all divisors are constants.
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

// TilePublisher draws tickets and publishes their tiles, in one thread of the CTA
// or cluster. It draws a ticket and reads its table entry one tile ahead. This is
// early enough to hide the latency of memory, and late enough that tiles start in
// nearly the order of their tickets.
type TilePublisher struct {
	k               *ptx.Kernel
	of              Tiles
	queue           *Publisher[Tile]
	rowTiles, tiles ptx.U32
	entry           [4]*ptx.Var[ptx.U32] // of the next tile: expert, row, rows of the pair or tile, column
}

// Publisher returns a publisher and publishes the first tile. It reads the table's
// length, so the kernel that wrote the table must have ended. Publish publishes
// the next tile; call it before each tile that the CTA starts. Both run in one
// thread, in a cluster in CTA 0 (see [Queue.Publishes]).
func (b Tiles) Publisher(q *Queue[Tile]) *TilePublisher {
	k := q.k
	p := &TilePublisher{k: k, of: b, queue: q.Publisher()}
	p.rowTiles = ptx.LdGlobal[ptx.U32](b.RowPairs)
	first := k.CtaidX() // the first tiles have the numbers of the CTAs
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
	p.Publish()
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

// pair returns each CTA's tile of a row pair.
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

// draw draws the next ticket.
func (p *TilePublisher) draw() ptx.U32 {
	runners := p.k.NctaidX()
	if p.of.clustered() {
		runners = runners.ShrI(1)
	}
	return runners.Add(p.k.AtomGlobalAdd(p.of.Tickets, ptx.Uint(1)))
}

// fetch reads the tile of a ticket. If that ticket has no tile, it draws further
// tickets until one has, or returns 0 rows past the last tile. Tickets without a
// tile are the second row tile of a short pair and, in a cluster, the second half
// of the columns of a short pair, on which both CTAs work at once.
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
