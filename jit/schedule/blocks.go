package schedule

import "sonicmoe/ptx"

// BlockBytes is the size of a row-block table entry: expert, first row, row
// count, 0 as 32-bit words.
const BlockBytes = 16

// Blocks are the tiles of a product: row blocks x column tiles. The blocks are
// a table in global memory, whose length is a word in global memory too, so
// the host never needs to know it.
//
// Tiles go in panels of Panel row blocks, rows fast, columns slow: tiles that
// run together share rows and columns in the L2 cache.
type Blocks struct {
	// Table is the first entry, Count the word with the number of entries,
	// Tickets a word that is 0 when the kernel starts.
	Table, Count, Tickets ptx.Global
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

// place is where tile t is: its table entry and column. The last panel, which
// may be lower, goes columns fast: only constants divide.
func (b Blocks) place(t, blocks ptx.U32) (entry, column ptx.U32) {
	perPanel := b.Panel * b.Columns
	panel := t.DivI(perPanel)
	first := panel.MulI(b.Panel)
	in := t.Sub(panel.MulI(perPanel))
	whole := blocks.Sub(first).GeI(b.Panel)
	row := ptx.Select(whole, in.RemI(b.Panel), in.DivI(b.Columns))
	column = ptx.Select(whole, in.DivI(b.Panel), in.RemI(b.Columns))
	return first.Add(row), column
}
