package schedule

import "sonicmoe/ptx"

// BlockBytes is the size of a row-block table entry: expert, first row, row
// count, 0 as 32-bit words.
const BlockBytes = 16

// Blocks is a persistent schedule over row blocks x column tiles. The blocks
// are a table in global memory, whose length is a word in global memory too,
// so the host never needs to know it.
//
// Tiles go in panels of Panel row blocks, rows fast, columns slow: tiles that
// run together share rows and columns in the L2 cache. CTA c of g takes tiles
// c, c+g, c+2g …; every role walks the same sequence by itself.
type Blocks struct {
	// Table is the first entry, Count the word with the number of entries.
	Table, Count ptx.Global
	// Columns is the number of column tiles, Panel the row blocks of a panel.
	Columns, Panel int
}

// Tile is one tile of the schedule.
type Tile struct {
	Expert ptx.U32
	// Row is the block's first row in the packed rows, Rows how many of the
	// block belong to the expert.
	Row, Rows ptx.U32
	// Column is the column tile, from 0.
	Column ptx.U32
}

// place is where tile t is: its table entry and column.
func (b Blocks) place(t, blocks ptx.U32) (entry, column ptx.U32) {
	perPanel := b.Panel * b.Columns
	panel := t.DivI(perPanel)
	first := panel.MulI(b.Panel)
	in := t.Sub(panel.MulI(perPanel))
	height := blocks.Sub(first).Min(ptx.Uint(b.Panel))
	column = in.Div(height)
	return first.Add(in.Sub(column.Mul(height))), column
}

// Walk is a role's way through the schedule, with the next tile's entry
// already on its way.
type Walk struct {
	k                      *ptx.Kernel
	b                      Blocks
	blocks, tiles, stride  ptx.U32
	t                      *ptx.Var[ptx.U32]
	expert, row, rows, col *ptx.Var[ptx.U32]
}

// Walk starts at the CTA's first tile. It reads the block count, so it must
// come after the kernel that wrote the table is known to be done.
func (b Blocks) Walk(k *ptx.Kernel) *Walk {
	w := &Walk{k: k, b: b}
	w.blocks = ptx.LdGlobal[ptx.U32](b.Count)
	w.tiles = w.blocks.MulI(b.Columns)
	w.stride = k.Special("%nctaid.x")
	w.t = ptx.NewVar(k, k.Special("%ctaid.x"))
	zero := ptx.Uint(0)
	w.expert, w.row, w.rows, w.col = ptx.NewVar(k, zero), ptx.NewVar(k, zero), ptx.NewVar(k, zero), ptx.NewVar(k, zero)
	w.fetch()
	return w
}

// fetch loads the entry of tile t where there is one.
func (w *Walk) fetch() {
	w.k.If(w.t.Get().Lt(w.tiles), func() {
		entry, column := w.b.place(w.t.Get(), w.blocks)
		e := ptx.LdGlobalVec[ptx.U32](w.b.Table.Index(entry, BlockBytes), 4)
		w.expert.Set(e[0])
		w.row.Set(e[1])
		w.rows.Set(e[2])
		w.col.Set(column)
	})
}

// More holds while the CTA has a tile left, the one that Next gives.
func (w *Walk) More() ptx.Pred { return w.t.Get().Lt(w.tiles) }

// Next is the tile that the walk goes to next; stale when there is none.
func (w *Walk) Next() Tile {
	return Tile{Expert: w.expert.Get(), Row: w.row.Get(), Rows: w.rows.Get(), Column: w.col.Get()}
}

// Each runs body on the GPU for each of the CTA's tiles. In body, More and
// Next speak of the tile after it: a producer may start what it needs early.
func (w *Walk) Each(body func(t Tile)) {
	w.k.Loop(func() {
		w.k.BreakIf(w.t.Get().Ge(w.tiles))
		t := Tile{Expert: w.expert.Copy(), Row: w.row.Copy(), Rows: w.rows.Copy(), Column: w.col.Copy()}
		w.t.Set(w.t.Get().Add(w.stride))
		w.fetch()
		body(t)
	})
}
