package dw

import (
	"sonicmoe/jit/gemm"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/schedule"
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

// This file has the load role: its copies, and the items of work that it draws and
// publishes for both roles.

// To gather a row, 16 threads copy its 128 columns. All threads of the role cover 8 rows at a time,
// which is a pass.
const (
	chunksOfRow = gemm.TileM * tile.ElementBytes / tile.CopyBytes
	passRows    = pipeline.WarpgroupThreads / chunksOfRow
	passes      = tile.K / passRows
)

// loadRole fills the ring. A stage has 64 packed rows: their 128 columns of the gathered tensor, and
// their TileN columns of the packed tensor.
type loadRole struct {
	role
	operands
	items items
}

// run emits the role.
func (e loadRole) run() {
	k := e.k
	thread := k.ThreadInWarpgroup()
	elected := k.ElectOne().And(thread.LtI(32))
	at := e.ring.Producer()
	var publisher *publisher
	k.If(elected, func() { publisher = e.items.publisher(e.queue) })
	g := e.newGather(thread)
	e.queue.Reader(ptx.LaneOf(thread).EqI(0)).Each(func(t item) {
		k.If(elected, publisher.publish)
		g.start(t)
		full := t.rows.DivI(tile.K)
		steps := kTiles(t)
		k.For(ptx.Uint(0), steps, ptx.Uint(1), func(kt ptx.U32) {
			tokens := g.next(t, kt)
			s := at.Acquire()
			k.IfElse(kt.Lt(full), func() {
				k.If(elected, func() {
					k.MbarrierArriveExpectTx(s.Full, ptx.Uint(e.Tiling.TileBBytes()))
					e.rowsAtoms().Load(k, s.Data.At(e.bytesOfA), e.packedMap, s.Full, t.row.Add(kt.MulI(tile.K)), t.n)
				})
				g.copy(s, tokens, ptx.Uint(tile.K))
			}, func() {
				k.If(elected, func() { k.MbarrierArrive(s.Full) })
				left := t.rows.Sub(kt.MulI(tile.K))
				g.copy(s, tokens, left)
				e.copyTail(s, t, kt, left, thread)
			})
			k.CpAsyncMbarrierArriveNoInc(s.Full)
			at.Advance()
			k.If(elected.And(kt.LeI(2)), func() { publisher.within(kt, steps) })
		})
	})
}

// rowGather is a thread's part in gathering a tile: one chunk in each of 8 rows. 16 lanes
// of a warp load the tokens of the warp's 16 rows, one step ahead.
type rowGather struct {
	loadRole
	tile.RowCopy
	row     ptx.U32           // number of the thread's row in a pass
	to      ptx.U32           // offset in a stage of the thread's chunk of that row
	fetched ptx.U32           // number of the row whose token this lane loads
	half    ptx.U32           // half of the warp in which the lane is
	token   *ptx.Var[ptx.U32] // token that this lane has loaded
	from    *ptx.Var[ptx.U64] // address of the thread's chunk in the row of token 0
	bytes   *ptx.Var[ptx.U32] // bytes of a copy: 16, or 0 past the last column
}

func (e loadRole) newGather(thread ptx.U32) *rowGather {
	k := e.k
	lane := ptx.LaneOf(thread)
	c := tile.NewRowCopy(k, thread, chunksOfRow)
	g := &rowGather{loadRole: e, RowCopy: c, row: c.Row(), half: lane.ShrI(4)}
	g.to = c.Swizzled(g.row)
	g.fetched = ptx.WarpOf(thread).MulI(2).Add(lane.AndI(1)).Add(lane.ShrI(1).AndI(passes - 1).MulI(passRows))
	g.token = ptx.NewVar(k, ptx.Uint(0))
	g.from = ptx.NewVar(k, e.x.Addr())
	g.bytes = ptx.NewVar(k, ptx.Uint(tile.CopyBytes))
	return g
}

// fetch loads the lane's token for step kt. Past the split's end the token is 0.
func (g *rowGather) fetch(t item, kt ptx.U32) {
	row := kt.MulI(tile.K).Add(g.fetched)
	g.token.Set(ptx.Uint(0))
	g.loadRole.k.If(row.Lt(t.rows), func() {
		if g.IsPacked {
			g.token.Set(t.row.Add(row))
			return
		}
		g.token.Set(ptx.LdGlobal[ptx.U32](g.gather.Index(t.row.Add(row), 4), ".nc"))
	})
}

// start prepares the loads of an item.
func (g *rowGather) start(t item) {
	column := t.m.Add(g.Chunk.MulI(tile.CopyElements))
	inside := column.LtI(g.Hidden)
	g.bytes.Set(tile.BytesIf(inside))
	g.from.Set(g.x.Index(ptx.Select(inside, column, ptx.Uint(0)), tile.ElementBytes).Addr())
	g.fetch(t, ptx.Uint(0))
}

// next returns the tokens of the thread's rows for step kt, and loads the tokens of the
// step after it.
func (g *rowGather) next(t item, kt ptx.U32) []ptx.U32 {
	tokens := make([]ptx.U32, passes)
	for i := range tokens {
		tokens[i] = g.token.Get().ShflIdx(g.half.AddI(2 * i))
	}
	g.fetch(t, kt.AddI(1))
	return tokens
}

// copy starts the copies of the first `rows` rows of the tile, and fills the other rows with zeros.
// If rows is a constant, it copies all rows.
func (g *rowGather) copy(s pipeline.Stage, tokens []ptx.U32, rows ptx.U32) {
	to := s.Data.Plus(g.to)
	_, all := rows.Const()
	for i, token := range tokens {
		src := ptx.GlobalAt(g.from.Get()).Index(token, g.rowBytes())
		var bytes []ptx.U32
		switch {
		case !all:
			bytes = []ptx.U32{ptx.Select(g.row.AddI(passRows*i).Lt(rows), g.bytes.Get(), ptx.Uint(0))}
		case g.Hidden%gemm.TileM != 0:
			bytes = []ptx.U32{g.bytes.Get()}
		}
		g.Copy(to.At(i*passRows*tile.RowBytes), src, bytes...)
	}
}

// copyTail copies the first rows of a tile of packed rows if there are fewer than 64, and fills the
// other rows of the tile with zeros. A TMA load would bring rows of the next expert.
func (e loadRole) copyTail(s pipeline.Stage, t item, kt, rows, thread ptx.U32) {
	k := e.k
	const passRows = pipeline.WarpgroupThreads / tile.LanesOfRow
	c := tile.NewRowCopy(k, thread, tile.LanesOfRow)
	column := t.n.Add(c.Chunk.MulI(tile.CopyElements))
	k.For(c.Row(), ptx.Uint(tile.K), ptx.Uint(passRows), func(row ptx.U32) {
		there := row.Lt(rows)
		to := s.Data.At(e.bytesOfA).Plus(c.Swizzled(row))
		src := e.rows.Index(t.row.Add(kt.MulI(tile.K)).Add(ptx.Select(there, row, ptx.Uint(0))), e.width()*tile.ElementBytes).Index(column, tile.ElementBytes)
		for block := range e.Tiling.TileN / tile.Block {
			inside := there
			if e.width()%e.Tiling.TileN != 0 {
				inside = there.And(column.AddI(block * tile.Block).LtI(e.width()))
			}
			c.Copy(to.At(block*tile.BlockBytes), src.At(block*tile.Block*tile.ElementBytes), tile.BytesIf(inside))
		}
	})
}

// item is the unit of work: a tile of the weight gradient of one expert, summed over
// one split of its rows.
type item struct {
	// m and n are the tile's first line and column of the product [d, N].
	m, n   ptx.U32
	expert ptx.U32
	// row is the split's first packed row. rows is the number of rows of the split.
	row, rows ptx.U32
	// split is the number of the split, from 0. splits is the number of splits of the
	// expert, or 0 in the item after the last one.
	split, splits ptx.U32
	// serial is the number of the tile among the tiles of split experts.
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

// items lists the items of a launch in the order of the split table. The splits of a tile
// follow each other. A split waits for the splits before it. That cannot deadlock: every
// ticket, the first one included, is drawn by a CTA that is already running, so earlier
// splits are running or done.
type items struct {
	k                      *ptx.Kernel
	splits, count, tickets ptx.Global
	splitRows              int
	tilesM, tilesN, widthN int
}

// publisher is one thread, which draws tickets and publishes items. It draws the ticket of an item
// when it has published the item before it. Its memory accesses are spread over the steps of the
// current item: publish draws a ticket, read loads the ticket's split, makeItem computes the item.
type publisher struct {
	of     items
	queue  *schedule.Publisher[item]
	tiles  ptx.U32
	ticket *ptx.Var[ptx.U32]
	// next is the item to be published. Between read and makeItem, its words from 2 on hold
	// the split: expert, first row, rows, first split, splits, rank.
	next [8]*ptx.Var[ptx.U32]
}

// splitsWord is the index in next of the number of splits, which is 0 after the last item.
const splitsWord = 6

// publisher publishes the first item and prepares the second.
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

// publish publishes the next item. It runs at the start of each item.
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

// read loads the split of the drawn ticket.
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

// makeItem computes the tile and the rows of the drawn ticket.
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

// within emits read in step 1 of an item and makeItem in step 2. If the item has fewer steps, its
// last step runs what is left of the two.
func (p *publisher) within(kt, steps ptx.U32) {
	k := p.of.k
	last := kt.AddI(1).Eq(steps)
	k.If(kt.EqI(1).Or(last.And(kt.EqI(0))), p.read)
	k.If(kt.EqI(2).Or(last.And(kt.LtI(2))), p.makeItem)
}
