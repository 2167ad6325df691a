package decode

import (
	"sonicmoe/jit/schedule"
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

// block is a piece of work: a unit of an expert's weights for each math warpgroup,
// or for some of them, and some of its tokens. A turn of a CTA is a block with all of
// an entry's tokens.
type block struct {
	expert ptx.U32
	// unit is the first of the units, of a math warpgroup's block its own, units how
	// many there are.
	unit, units ptx.U32
	// row is the first packed row, rows how many there are, of a part of a turn 1 to
	// the shape's.
	row, rows ptx.U32
	// set has a bit for each token, where the CTA has chosen.
	set ptx.U32
}

// Words are expert and units, unit, row, rows and set.
func (b block) Words() []ptx.U32 {
	return []ptx.U32{b.expert.Or(b.units.ShlI(16)), b.unit, b.row, b.rows.Or(b.set.ShlI(16))}
}

// FromWords is the block of these words.
func (block) FromWords(w []ptx.U32) block {
	return block{expert: w[0].AndI(0xffff), units: w[0].ShrI(16), unit: w[1], row: w[2], rows: w[3].AndI(0xffff), set: w[3].ShrI(16)}
}

// IsEnd holds for a turn without rows.
func (b block) IsEnd() ptx.Pred { return b.rows.EqI(0) }

// Both counts of an entry, and the bits of a set, have 16 bits of a word.
const (
	_ = uint16(schedule.PairRows)
	_ = uint16(1<<MostSmall - 1)
)

// turns hands a product's turns to the roles of a CTA. Turns lie side by side in
// memory: the first are the CTAs' own numbers, the others go to who draws them, since
// SMs are not equally fast. On an H200, 8 tokens take 112.7 µs so at Qwen3-30B's sizes, 128
// tokens 282.5, where they took 114.1 and 287.3 with a fixed share for each CTA.
type turns struct {
	*product
	queue   *schedule.Queue[block]
	tickets ptx.Global
}

func newTurns(p *product, tickets ptx.Global) *turns {
	const words, tokensWarp = 4, 1
	return &turns{p, schedule.NewQueue[block](p.k, p.cta, words, p.mathWarps()+tokensWarp, 1), tickets}
}

// read runs body for each of the CTA's blocks, in the warps that multiply and that
// which loads tokens.
func (t *turns) read(body func(b block)) {
	t.queue.Reader(t.thread.AndI(31).EqI(0)).Each(func(turn block) { t.parts(turn, body) })
}

// parts runs body for so many of a turn's tokens at a time as the shape has.
func (t *turns) parts(turn block, body func(b block)) {
	t.k.For(ptx.Uint(0), turn.rows, ptx.Uint(t.tokens), func(first ptx.U32) {
		b := turn
		b.row, b.rows = turn.row.Add(first), turn.rows.Sub(first).Min(ptx.Uint(t.tokens))
		body(b)
	})
}

// A turn's ticket is drawn when so many k-tiles of the one before are still to be
// loaded, and its entry read, and published, when so many are: early enough that
// loads don't wait for memory, late enough that the fast ones draw more.
const (
	drawAhead    = 6
	publishAhead = 3
)

// publish runs body for each of the CTA's blocks, in the one thread that loads weights,
// which before each k-tile runs what the body is given, with the k-tile's first
// column.
func (t *turns) publish(body func(b block, before func(column ptx.U32))) {
	k, ctas, atOnce := t.k, t.k.NctaidX(), t.shape.units
	ofExpert := ceil(t.units, atOnce)
	end := t.length().MulI(ofExpert)
	// Where the last turns are not for all CTAs, more CTAs take fewer units each.
	rest := end.Rem(ctas)
	last := end.Sub(rest) // the first of the last turns
	most := ptx.Uint(atOnce)
	for n := atOnce / 2; n > 0; n /= 2 {
		most = ptx.Select(rest.MulI(atOnce/n).Le(ctas), ptx.Uint(n), most)
	}
	out := t.queue.Publisher()
	entry, unit, units := ptx.NewVars(k, 4, ptx.Uint(0)), ptx.NewVar(k, ptx.Uint(0)), ptx.NewVar(k, ptx.Uint(0))
	next := func() block {
		return block{expert: entry[0].Copy(), row: entry[1].Copy(), rows: entry[2].Copy(), set: entry[3].Copy(), unit: unit.Copy(), units: units.Copy()}
	}
	publish := func(turn ptx.U32) {
		isLast := turn.Ge(last)
		// at is the first of the turn's units, of those of all turns.
		at := ptx.Select(isLast, last.MulI(atOnce).Add(turn.Sub(last).Mul(most)), turn.MulI(atOnce))
		entry[2].Set(ptx.Uint(0))
		k.If(at.Lt(end.MulI(atOnce)), func() {
			ptx.SetAll(entry, t.entry(at.DivI(ofExpert*atOnce)))
			unit.Set(at.RemI(ofExpert * atOnce))
			units.Set(ptx.Uint(t.units).Sub(unit.Get().MinI(t.units)).Min(ptx.Select(isLast, most, ptx.Uint(atOnce))))
		})
		out.Publish(next())
	}
	publish(k.CtaidX())
	ticket := ptx.NewVar(k, ptx.Uint(0))
	k.Loop(func() {
		turn := next()
		k.BreakIf(turn.IsEnd())
		t.parts(turn, func(b block) {
			body(b, func(column ptx.U32) {
				isIn := func(ahead int) ptx.Pred {
					return b.row.Eq(turn.row).And(column.EqI(tile.K * max(0, t.kTiles-ahead)))
				}
				k.If(isIn(drawAhead), func() { ticket.Set(ctas.Add(k.AtomGlobalAdd(t.tickets, ptx.Uint(1)))) })
				k.If(isIn(publishAhead), func() { publish(ticket.Get()) })
			})
		})
	})
}

// length is the number of the table's entries.
func (p *product) length() ptx.U32 {
	switch {
	case p.chosen != nil:
		return ptx.LdShared[ptx.U32](p.chosen.count)
	case p.told:
		// The kernel that writes the table is under way, all of its CTAs.
		length := ptx.NewVar(p.k, ptx.Uint(0))
		p.k.Loop(func() {
			length.Set(ptx.LdGlobalAcquire(p.rowPairs))
			p.k.BreakIf(length.Get().NeI(0))
		})
		return length.Get()
	case p.early:
		// Nothing of the table may be from a stale cache: the kernel that wrote it
		// has ended, but this one has not waited for that.
		return ptx.LdGlobalAcquire(p.rowPairs)
	}
	return ptx.LdGlobal[ptx.U32](p.rowPairs)
}

// entry is one of the table's: expert, first row, rows and, where the CTA has
// chosen, the set.
func (p *product) entry(i ptx.U32) []ptx.U32 {
	if p.chosen != nil {
		return ptx.LdSharedVec[ptx.U32](p.chosen.entries.Plus(i.MulI(schedule.PairBytes)), 4)
	}
	words := ptx.LdGlobalVec[ptx.U32](p.table.Index(i, schedule.PairBytes), 4)
	return append(words[:3], ptx.Uint(0))
}
