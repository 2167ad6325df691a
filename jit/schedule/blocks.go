package schedule

import "sonicmoe/ptx"

// PairBytes is the size of a row-pair table entry: expert, first row, row
// count (1 to PairRows), 0 as 32-bit words.
const PairBytes = 16

// TileRows is the rows of a row block: what one CTA multiplies at a time. A
// row pair is two of them.
const (
	TileRows = 128
	PairRows = 2 * TileRows
)

// Blocks are the tiles of a product: row blocks x column tiles. The blocks
// come from a table of row pairs in global memory, whose length is a word in
// global memory too, so the host never needs to know it.
//
// A cluster of two CTAs takes a row pair, a block each, and the same columns:
// each loads one half of the weights into both (a shared tile). Where a pair is
// short, of one block only, both take that block and columns side by side,
// each with its own weights: no CTA works on rows that are not there.
//
// Tiles go in panels of Panel row blocks, rows fast, columns slow: tiles that
// run together share rows and columns in the L2 cache.
type Blocks struct {
	// Table is the first entry, Count the word with the number of entries,
	// Tickets a word that is 0 when the kernel starts.
	Table, Count, Tickets ptx.Global
	// Columns is the number of column tiles, Panel the row blocks of a panel.
	Columns, Panel int
	// CTAs is the CTAs of a cluster: 1 (or 0), or 2.
	CTAs int
}

// Tile is one tile of the schedule.
type Tile struct {
	Expert ptx.U32
	// Row is the block's first row in the packed rows, Rows how many of the
	// block belong to the expert.
	Row, Rows ptx.U32
	// Live is Rows, or 0 in a tile past the last column, which is loaded but
	// not multiplied.
	Live ptx.U32
	// Column is the column tile, from 0.
	Column ptx.U32
	// Shared is 1 when the CTAs of the cluster share the weights, else 0.
	Shared ptx.U32
}

func (b Blocks) clustered() bool { return b.CTAs == 2 }

// place is where tile t of so many blocks is: its block and column; in a
// cluster, its pair and column. The last panel, which may be lower, goes
// columns fast: only constants divide.
func (b Blocks) place(t, blocks ptx.U32) (block, column ptx.U32) {
	high := b.Panel
	if b.clustered() {
		high = max(1, high/2)
	}
	perPanel := high * b.Columns
	panel := t.DivI(perPanel)
	first := panel.MulI(high)
	in := t.Sub(panel.MulI(perPanel))
	whole := blocks.Sub(first).GeI(high)
	row := ptx.Select(whole, in.RemI(high), in.DivI(b.Columns))
	column = ptx.Select(whole, in.DivI(high), in.RemI(b.Columns))
	return first.Add(row), column
}
