package decode

import (
	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/schedule"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/fragments"
	"sonicmoe/moe/internal/weights"
	"sonicmoe/ptx"
)

// block is a piece of work: one or several units of an expert's weights, times some of the expert's
// tokens. A tile of a CTA is a block with all tokens of an entry of the table.
type block struct {
	expert ptx.U32
	// unit is the number of the first unit; in the "math" role it is the warpgroup's own unit.
	// units is the number of units.
	unit, units ptx.U32
	// row is the first packed row. rows is the number of rows, in parts of a tile at most
	// shape.tokens.
	row, rows ptx.U32
	// mark has a bit for each of the expert's tokens, if the CTA has chosen the experts itself. In a CTA
	// that counts its progress, or awaits it, mark is the number of the table's entry.
	mark ptx.U32
}

// Words packs the block for the queue.
func (b block) Words() []ptx.U32 {
	return []ptx.U32{b.expert.Or(b.units.ShlI(16)), b.unit, b.row, b.rows.Or(b.mark.ShlI(16))}
}

// FromWords unpacks a block.
func (block) FromWords(w []ptx.U32) block {
	return block{expert: w[0].AndI(0xffff), units: w[0].ShrI(16), unit: w[1], row: w[2], rows: w[3].AndI(0xffff), mark: w[3].ShrI(16)}
}

// IsEnd reports whether the block has no rows. Such a block ends the queue.
func (b block) IsEnd() ptx.Pred { return b.rows.EqI(0) }

// These constants overflow at compile time unless the two numbers that Words packs into 16 bits
// each fit there: the rows of an entry, and the bits of a set.
const (
	_ = uint16(schedule.PairRows)
	_ = uint16(1<<MaxTiny - 1)
)

// units are weights that TMA loads in boxes of 64 rows of gate or of up.
type units struct{ weights.Matrix }

// mnMajor reports whether the weights are contiguous along the rows.
func (u units) mnMajor() bool { return u.Out.Stride == 1 }

// hasPart reports whether the tensor map has a dimension for gate and up.
func (u units) hasPart() bool { return u.Part.Extent > 1 && !u.Apart }

// tensorMap returns the map of the tensor at address p.
func (u units) tensorMap(p driver.DevicePtr) gpu.TensorMap {
	// The capacity is constant so that a launch allocates nothing.
	box, dims := append(make([]int, 0, gpu.MaxTensorRank), tile.K, unitRows), make([]tile.Dim, 0, gpu.MaxTensorRank)
	if u.mnMajor() {
		dims = append(dims, u.Out, u.In)
	} else {
		dims = append(dims, u.In, u.Out)
	}
	if u.hasPart() {
		box, dims = append(box, 1), append(dims, u.Part)
	}
	return tile.LoadMap(p, append(box, 1), append(dims, u.Expert)...)
}

// at returns the coordinates of a block's weights in the k-tile that starts at column.
func (u units) at(b block, column ptx.U32, part int) []ptx.U32 {
	row := b.unit.MulI(unitRows)
	at := []ptx.U32{column, row}
	if u.mnMajor() {
		at = []ptx.U32{row, column}
	}
	if u.hasPart() {
		at = append(at, ptx.Uint(part))
	}
	return append(at, b.expert)
}

// loadPacked returns the function that loads a unit's blocks of a stage.
func loadPacked(k *ptx.Kernel, at ptx.Global, m fragments.Matrix) loadUnit {
	return func(to, full ptx.Shared, b block, column, bytes ptx.U32, _ int) {
		unit := at.Index(b.expert.MulI(m.Units).Add(b.unit), m.UnitBytes())
		k.BulkLoad(to, unit.Index(column.DivI(fragments.Columns), m.BlockBytes()), bytes, full)
	}
}

// table lists the experts with tokens. An entry has up to schedule.PairRows rows of one expert.
type table interface {
	// prepare emits what all threads of the CTA do before they read the table.
	prepare()
	// length returns the number of entries.
	length() ptx.U32
	// entry returns an entry: expert, first row, number of rows, and the mark of its blocks.
	entry(i ptx.U32) []ptx.U32
}

// planned is a table in global memory that an earlier kernel has made.
type planned struct {
	at, size ptx.Global
	load     func(size ptx.Global) ptx.U32
	// isNumbered reports whether the last word of an entry is a count, see progress. The mark is then the
	// number of the entry.
	isNumbered bool
}

func (planned) prepare() {}

func (t planned) length() ptx.U32 { return t.load(t.size) }

func (t planned) entry(i ptx.U32) []ptx.U32 {
	at := t.at.Index(i, schedule.PairBytes)
	if t.isNumbered {
		return append(ptx.LdGlobalVec[ptx.U32](at, 2), ptx.LdGlobal[ptx.U32](at.At(8)), i)
	}
	words := ptx.LdGlobalVec[ptx.U32](at, 4)
	return append(words[:3], ptx.Uint(0))
}

// afterWait loads the length of a table after this kernel has waited for the kernel that made it.
func afterWait(size ptx.Global) ptx.U32 { return ptx.LdGlobal[ptx.U32](size) }

// beforeWait loads the length of a table before this kernel waits for its predecessor. The kernel
// that made the table has ended. The acquire keeps later loads from reading stale cache lines.
func beforeWait(size ptx.Global) ptx.U32 { return ptx.LdGlobalAcquire(size) }

// poll waits until the length of a table is not 0. This ends, because all CTAs of the kernel that
// writes the length are running.
func poll(k *ptx.Kernel) func(size ptx.Global) ptx.U32 {
	return func(size ptx.Global) ptx.U32 {
		length := ptx.NewVar(k, ptx.Uint(0))
		k.Loop(func() {
			length.Set(ptx.LdGlobalAcquire(size))
			k.BreakIf(length.Get().NeI(0))
		})
		return length.Get()
	}
}

// scheduler gives a CTA its tiles. The units of a tile are neighbours in memory. The first tile of
// a CTA is the tile with the CTA's own number. A CTA draws its later tiles from a counter, because
// SMs are not equally fast.
type scheduler struct {
	*product
	table   table
	tickets ptx.Global
}

// read calls body for each of the CTA's blocks. It runs in the math warps and in the warps that
// load tokens.
func (s scheduler) read(body func(b block)) { s.readAfter(func(block) {}, body) }

// readAfter does the same as read, and calls function await before the blocks of each tile.
func (s scheduler) readAfter(await, body func(b block)) {
	s.queue.Reader(s.k.Lane().EqI(0)).Each(func(whole block) {
		await(whole)
		s.split(whole, body)
	})
}

// readAlone is read for a single thread of a warp.
func (s scheduler) readAlone(body func(b block)) {
	s.queue.Reader(ptx.True()).Each(func(whole block) { s.split(whole, body) })
}

// split divides a tile into blocks of at most shape.tokens rows, and calls body for each. Blocks of wide
// and mid tiles of packed weights are about as large as each other: a block of few rows takes as long as
// the unpacking of the weights.
func (s scheduler) split(whole block, body func(b block)) {
	most := ptx.Uint(s.tokens)
	if s.hasBoxes() {
		blocks := whole.rows.AddI(s.tokens - 1).DivI(s.tokens)
		most = whole.rows.AddI(widthStep - 1).DivI(widthStep).Add(blocks.SubI(1)).Div(blocks).MulI(widthStep)
	}
	s.k.For(ptx.Uint(0), whole.rows, most, func(first ptx.U32) {
		b := whole
		b.row, b.rows = whole.row.Add(first), whole.rows.Sub(first).Min(most)
		body(b)
	})
}

// entry returns an entry of the table. For wide and mid tiles of packed weights, entry moves rows between the
// last two entries of an expert if the last entry has few rows: half of the rows of the entry before
// it. The blocks then have about the same number of rows, see split.
func (s scheduler) entry(i, length ptx.U32) []ptx.U32 {
	own := s.table.entry(i)
	if !s.hasBoxes() {
		return own
	}
	const few, half = schedule.PairRows / 4, schedule.PairRows / 2
	// follows reports whether the entry b has few rows, which follow the rows of the full entry a.
	follows := func(a, b []ptx.U32) ptx.Pred {
		return a[0].Eq(b[0]).And(a[1].AddI(schedule.PairRows).Eq(b[1])).And(a[2].EqI(schedule.PairRows)).And(b[2].LeI(few))
	}
	after, before := s.table.entry(i.AddI(1).Min(length.SubI(1))), s.table.entry(i.MaxI(1).SubI(1))
	gives, gets := follows(own, after), follows(before, own)
	moved := ptx.Select(gets, ptx.Uint(half), ptx.Uint(0))
	return []ptx.U32{own[0], own[1].Sub(moved), ptx.Select(gives, ptx.Uint(half), own[2].Add(moved)), own[3]}
}

// While the loading thread works on a tile, it prepares the next one. It draws the next tile's
// ticket when drawAhead stages of the present tile are left to load. It reads and publishes the
// next tile's entry when publishAhead stages are left. This is early enough to hide the latency,
// and late enough for fast SMs to draw more tiles.
const (
	drawAhead    = 6
	publishAhead = 3
)

// publish calls body for each of the CTA's blocks, in the one thread that loads weights. Before
// body loads a k-tile, it calls the function `before` with the k-tile's first column.
func (s scheduler) publish(body func(b block, before func(column ptx.U32))) {
	k, ctas, atOnce := s.k, s.k.NctaidX(), s.shape.units
	ofExpert, length := ceil(s.units, atOnce), s.table.length()
	end := length.MulI(ofExpert)
	lastWave := end.Sub(end.Rem(ctas)) // number of the first tile of the last wave
	last := s.lastTiles(lastWave, end, ctas, length)
	out := s.queue.Publisher()
	entry, unit, units := ptx.NewVars(k, 4, ptx.Uint(0)), ptx.NewVar(k, ptx.Uint(0)), ptx.NewVar(k, ptx.Uint(0))
	published := func() block {
		return block{expert: entry[0].Copy(), row: entry[1].Copy(), rows: entry[2].Copy(), mark: entry[3].Copy(), unit: unit.Copy(), units: units.Copy()}
	}
	publish := func(number ptx.U32) {
		entry[2].Set(ptx.Uint(0))
		k.If(number.Lt(lastWave.Add(last.count)), func() {
			of, most := ptx.NewVar(k, number.DivI(ofExpert)), ptx.NewVar(k, ptx.Uint(atOnce))
			unit.Set(number.RemI(ofExpert).MulI(atOnce))
			k.If(number.Ge(lastWave), func() {
				n, first := last.place(number.Sub(lastWave))
				of.Set(n)
				unit.Set(first)
				most.Set(last.most)
			})
			ptx.SetAll(entry, s.entry(of.Get(), length))
			units.Set(ptx.Uint(s.units).Sub(unit.Get()).Min(most.Get()))
		})
		out.Publish(published())
	}
	publish(k.CtaidX())
	ticket := ptx.NewVar(k, ptx.Uint(0))
	k.Loop(func() {
		whole := published()
		k.BreakIf(whole.IsEnd())
		s.split(whole, func(b block) {
			body(b, func(column ptx.U32) {
				isAhead := func(stages int) ptx.Pred {
					return b.row.Eq(whole.row).And(column.EqI(tile.K * s.depth * max(0, ceil(s.kTiles, s.depth)-stages)))
				}
				k.If(isAhead(drawAhead), func() { ticket.Set(ctas.Add(k.AtomGlobalAdd(s.tickets, ptx.Uint(1)))) })
				k.If(isAhead(publishAhead), func() { publish(ticket.Get()) })
			})
		})
	})
}

// lastTiles describes the tiles of the last wave. A wave has a tile for each CTA. If the last wave has
// fewer, its tiles get fewer units each, so that more CTAs have one.
type lastTiles struct {
	// ofExpert is the number of units of an expert.
	ofExpert int
	// entry is the entry of the table that the first tile belongs to, unit the tile's first unit.
	entry, unit ptx.U32
	// most is the number of units of a tile. The last tile of an entry may have fewer. count is the
	// number of tiles.
	most, count ptx.U32
}

// lastTiles returns the tiles that replace the tiles from lastWave to end-1. They have as few units as
// the number of CTAs allows. length is the length of the table.
func (s scheduler) lastTiles(lastWave, end, ctas, length ptx.U32) lastTiles {
	atOnce := s.shape.units
	ofEntry := ceil(s.units, atOnce) // whole tiles of an entry
	l := lastTiles{
		ofExpert: s.units, entry: lastWave.DivI(ofEntry), unit: lastWave.RemI(ofEntry).MulI(atOnce),
		most: ptx.Uint(atOnce), count: end.Sub(lastWave),
	}
	hasTiles := l.count.NeI(0)
	for n := atOnce - 1; n > 0; n-- {
		tiles := ptx.Uint(s.units + n - 1).Sub(l.unit).DivI(n).Add(length.Sub(l.entry).SubI(1).MulI(ceil(s.units, n)))
		fit := hasTiles.And(tiles.Le(ctas))
		l.most, l.count = ptx.Select(fit, ptx.Uint(n), l.most), ptx.Select(fit, tiles, l.count)
	}
	return l
}

// place returns the entry of a tile, and the tile's first unit.
func (l lastTiles) place(tile ptx.U32) (entry, unit ptx.U32) {
	tiles := func(units ptx.U32) ptx.U32 { return units.Add(l.most).SubI(1).Div(l.most) }
	first := tiles(ptx.Uint(l.ofExpert).Sub(l.unit)) // tiles of the first entry
	ofEntry, after := tiles(ptx.Uint(l.ofExpert)), tile.Sub(first)
	isFirst := tile.Lt(first)
	return ptx.Select(isFirst, l.entry, l.entry.AddI(1).Add(after.Div(ofEntry))),
		ptx.Select(isFirst, l.unit.Add(tile.Mul(l.most)), after.Rem(ofEntry).Mul(l.most))
}

// loadTokens fills the tokens' part of the stages. Eight lanes copy the 128 bytes of a row, so a
// warp copies 4 rows at a time. If there are two warps, the first copies the upper 4 rows of each swizzle
// pattern of 8 rows, and the second copies the lower 4. Columns beyond the last row repeat the last row. loadTokens calls
// function await before it loads the tokens of a tile.
func (p *product) loadTokens(tiles scheduler, t tokens, await func(tile block)) {
	k, ring := p.k, p.ring.Producer()
	done := func(s pipeline.Stage) { k.CpAsyncMbarrierArriveNoInc(s.Full) }
	if p.packed.IsPacked() {
		copied := p.copied.Producer()
		done = func(pipeline.Stage) {
			k.CpAsyncMbarrierArriveNoInc(copied.Stage().Full)
			copied.Advance()
		}
	}
	copier := tile.NewRowCopy(k, k.Lane(), tile.LanesOfRow)
	first, apart := copier.Row(), copyRows*p.copiers() // the rows of a warp's next copy are this far apart
	if p.copiers() > 1 {
		first = first.Add(k.Warp().SubI(p.mathWarps() + 1).MulI(copyRows))
	}
	at := t.at.Plus(copier.Chunk.MulI(tile.CopyBytes).U64())
	to := []ptx.U32{copier.Swizzled(first)}
	if apart < patternRows { // every second copy is in the lower half of a pattern
		to = append(to, copier.Swizzled(first.AddI(apart)))
	}
	from := ptx.NewVars(k, p.tokens/apart, ptx.Long(0))
	tiles.readAfter(await, func(b block) {
		last := b.rows.SubI(1)
		p.eachCopy(b.rows, func(i int) {
			from[i].Set(at.Index(t.number(b, first.AddI(apart*i).Min(last)), t.rowBytes).Addr())
		})
		k.Range(ptx.Uint(ceil(p.kTiles, p.depth)), func(stage ptx.U32) {
			bytes := make([][]ptx.U32, p.depth)
			if t.rowBytes != ceil(p.kTiles, p.depth)*p.depth*tile.RowBytes {
				for i := range bytes {
					kt := stage.MulI(p.depth).AddI(i)
					bytes[i] = append(bytes[i], tile.BytesIf(kt.MulI(tile.LanesOfRow).Add(copier.Chunk).LtI(t.rowBytes/tile.CopyBytes)))
				}
			}
			for part := range p.parts {
				s := ring.Acquire()
				p.eachCopy(b.rows, func(i int) {
					for kt, bytes := range bytes {
						copier.Copy(s.Data.At(p.tokensAt(kt)+i*apart/patternRows*patternRows*tile.RowBytes).Plus(to[i%len(to)]), ptx.GlobalAt(from[i].Get()).At(kt*tile.RowBytes), bytes...)
					}
					if part == p.parts-1 {
						from[i].Set(from[i].Get().AddI(p.depth * tile.RowBytes))
					}
				})
				done(s)
				ring.Advance()
			}
		})
	})
}

// fenceTokens orders the copies of a stage's tokens before wgmma reads them. It runs in one thread.
// The math warps would have to wait for the fence, and with packed weights they have no time to
// spare.
func (p *product) fenceTokens(tiles scheduler) {
	k, copied, ring := p.k, p.copied.Consumer(), p.ring.Producer()
	tiles.readAlone(func(block) {
		k.Range(ptx.Uint(p.stages()), func(ptx.U32) {
			copied.Wait()
			k.FenceProxyAsync(".shared::cta")
			k.MbarrierArrive(ring.Stage().Full)
			copied.Advance()
			ring.Advance()
		})
	})
}
