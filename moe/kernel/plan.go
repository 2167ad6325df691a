package kernel

import (
	"sonicmoe/jit/schedule"
	"sonicmoe/ptx"
)

// Plan turns expert ids and counts into everything the products need, in one
// launch with no sort and no grid barrier: expert offsets, the packed order
// of the rows (by expert, then token, then slot), its inverse, and the table
// of row pairs. Every CTA reads all counts and places the tokens of its own
// range, the same ranges as Router's or Count's.
type Plan struct {
	Experts, TopK int
	// Pairs also writes each row's (token, slot) pair, which backward needs.
	Pairs bool
}

const (
	planThreads = 512
	planWarps   = planThreads / 32
	// NoRow marks a (token, slot) whose expert id is outside [0, E).
	NoRow = 0xffffffff
)

// plan is the emission of a Plan. The shared arrays have one word an expert.
type plan struct {
	Plan
	k                *ptx.Kernel
	tid, warp, lane  ptx.U32
	cta              ptx.U32
	total, before    ptx.Shared // rows of all CTAs; of the CTAs before this one
	offset, blocksAt ptx.Shared // first row and first row pair of the expert
	sum              ptx.Shared // rows and row pairs of all experts
	perWarp          ptx.Shared // [warp][expert]
	// gather is each row's token, pairs its token·K + slot, inverse each
	// pair's row.
	gather, pairs, inverse ptx.Global
}

// Build emits the kernel.
func (p Plan) Build() (Kernel, error) {
	const name = "moe_plan"
	k := ptx.NewKernel(name)
	k.SetLaunchBounds(planThreads, 1)
	e := plan{Plan: p, k: k}
	ids, counts := k.ParamPtr("experts"), k.ParamPtr("counts")
	e.gather, e.inverse = k.ParamPtr("gather"), k.ParamPtr("inverse")
	if p.Pairs {
		e.pairs = k.ParamPtr("pairs")
	}
	offsets, table := k.ParamPtr("offsets"), k.ParamPtr("table")
	blocks, tickets := k.ParamPtr("blocks"), k.ParamPtr("tickets")
	tokens, perCTA := k.ParamU32("tokens"), k.ParamU32("perCTA")

	e.tid = k.Special("%tid.x")
	e.warp, e.lane = e.tid.ShrI(5), e.tid.AndI(31)
	e.cta = k.Special("%ctaid.x")
	words := 4 * p.Experts
	base := k.SharedBase()
	e.total, e.before = base, base.At(words)
	e.offset, e.blocksAt = base.At(2*words), base.At(3*words)
	e.perWarp = base.At(4 * words)
	e.sum = e.perWarp.At(planWarps * words)

	clearWords(k, base, (4+planWarps)*p.Experts, e.tid, planThreads)
	k.BarSync(ptx.Uint(0))
	k.GridDepWait()
	k.GridDepLaunch()
	from := e.cta.Mul(perCTA)
	to := from.Add(perCTA).Min(tokens)
	seg := e.segment(from.MulI(p.TopK), to.MulI(p.TopK))

	e.addCounts(counts)
	e.countWarps(ids, seg)
	k.BarSync(ptx.Uint(0))
	k.If(e.warp.EqI(0), e.scan)
	k.BarSync(ptx.Uint(0))
	e.startWarps()
	k.BarSync(ptx.Uint(0))
	e.place(ids, seg)
	e.writeTable(offsets, table, blocks, tickets)
	return build(k, name, planThreads, (4+planWarps)*words+8)
}

func (e *plan) word(array ptx.Shared, expert ptx.U32) ptx.Shared { return array.Plus(expert.ShlI(2)) }

// addCounts sums the counts of all CTAs, and of those before this one. Groups
// of threads take every so many rows of the counts.
func (e *plan) addCounts(counts ptx.Global) {
	k := e.k
	width := 32
	for width < e.Experts && width < planThreads {
		width *= 2
	}
	group, lane := e.tid.DivI(width), e.tid.RemI(width)
	rows := k.Special("%nctaid.x")
	k.For(lane, ptx.Uint(e.Experts), ptx.Uint(width), func(expert ptx.U32) {
		total, before := ptx.NewVar(k, ptx.Uint(0)), ptx.NewVar(k, ptx.Uint(0))
		at := counts.Index(expert, 4)
		k.For(group, rows, ptx.Uint(planThreads/width), func(row ptx.U32) {
			n := ptx.LdGlobal[ptx.U32](at.Index(row, 4*e.Experts))
			total.Set(total.Get().Add(n))
			before.Set(before.Get().Add(ptx.Select(row.Lt(e.cta), n, ptx.Uint(0))))
		})
		k.RedSharedAdd(e.word(e.total, expert), total.Get())
		k.RedSharedAdd(e.word(e.before, expert), before.Get())
	})
}

// segment is the warp's part of the CTA's (token, slot) pairs [from, to): a
// multiple of 32 long, but for the end.
type segment struct{ from, to ptx.U32 }

func (e *plan) segment(from, to ptx.U32) segment {
	// The last CTAs may have no tokens at all: from is then past to.
	n := to.Max(from).Sub(from)
	each := n.AddI(planThreads - 1).DivI(planThreads).MulI(32)
	start := from.Add(e.warp.Mul(each))
	return segment{start.Min(to), start.Add(each).Min(to)}
}

// eachPair runs body for 32 pairs at a time; id is NoRow past the end. The
// whole warp takes part.
func (e *plan) eachPair(ids ptx.Global, s segment, body func(f, id ptx.U32)) {
	e.k.For(s.from, s.to, ptx.Uint(32), func(first ptx.U32) {
		f := first.Add(e.lane)
		id := ptx.NewVar(e.k, ptx.Uint(NoRow))
		e.k.If(f.Lt(s.to), func() { id.Set(ptx.LdGlobal[ptx.U32](ids.Index(f, 4))) })
		body(f, id.Get())
	})
}

// countWarps counts each warp's experts.
func (e *plan) countWarps(ids ptx.Global, s segment) {
	own := e.perWarp.Plus(e.warp.MulI(4 * e.Experts))
	e.eachPair(ids, s, func(_, id ptx.U32) {
		e.k.If(id.LtI(e.Experts), func() { e.k.RedSharedAdd(e.word(own, id), ptx.Uint(1)) })
	})
}

// scan sums rows and row pairs over the experts, in one warp.
func (e *plan) scan() {
	k := e.k
	rows, blocks := ptx.NewVar(k, ptx.Uint(0)), ptx.NewVar(k, ptx.Uint(0))
	k.For(ptx.Uint(0), ptx.Uint(e.Experts), ptx.Uint(32), func(first ptx.U32) {
		expert := first.Add(e.lane)
		n := ptx.NewVar(k, ptx.Uint(0))
		k.If(expert.LtI(e.Experts), func() { n.Set(ptx.LdShared[ptx.U32](e.word(e.total, expert))) })
		b := n.Get().AddI(schedule.PairRows - 1).DivI(schedule.PairRows)
		rowsTo, blocksTo := e.inclusive(n.Get()), e.inclusive(b)
		k.If(expert.LtI(e.Experts), func() {
			ptx.StShared(e.word(e.offset, expert), rows.Get().Add(rowsTo).Sub(n.Get()))
			ptx.StShared(e.word(e.blocksAt, expert), blocks.Get().Add(blocksTo).Sub(b))
		})
		rows.Set(rows.Get().Add(rowsTo.ShflIdx(ptx.Uint(31))))
		blocks.Set(blocks.Get().Add(blocksTo.ShflIdx(ptx.Uint(31))))
	})
	k.If(e.lane.EqI(0), func() { ptx.StShared(e.sum, rows.Get(), blocks.Get()) })
}

// inclusive is the sum over the lanes up to this one.
func (e *plan) inclusive(x ptx.U32) ptx.U32 {
	for d := 1; d < 32; d *= 2 {
		up := x.ShflUp(d)
		x = x.Add(ptx.Select(e.lane.GeI(d), up, ptx.Uint(0)))
	}
	return x
}

// startWarps turns each warp's counts into the row where its first goes.
func (e *plan) startWarps() {
	k := e.k
	k.For(e.tid, ptx.Uint(e.Experts), ptx.Uint(planThreads), func(expert ptx.U32) {
		at := ptx.NewVar(k, ptx.LdShared[ptx.U32](e.word(e.offset, expert)).Add(ptx.LdShared[ptx.U32](e.word(e.before, expert))))
		for w := range planWarps {
			slot := e.word(e.perWarp.At(4*e.Experts*w), expert)
			n := ptx.LdShared[ptx.U32](slot)
			ptx.StShared(slot, at.Get())
			at.Set(at.Get().Add(n))
		}
	})
}

// place gives each pair its row. Lanes with the same expert take rows in lane
// order, so the order is by token and slot.
func (e *plan) place(ids ptx.Global, s segment) {
	k := e.k
	own := e.perWarp.Plus(e.warp.MulI(4 * e.Experts))
	below := k.Special("%lanemask_lt")
	e.eachPair(ids, s, func(f, id ptx.U32) {
		valid := id.LtI(e.Experts)
		peers := k.MatchAny(id, ptx.Uint(ptx.FullMask))
		rank := peers.And(below).Popc()
		row := ptx.NewVar(k, ptx.Uint(NoRow))
		k.If(valid, func() {
			row.Set(ptx.LdShared[ptx.U32](e.word(own, id)).Add(rank))
			ptx.StGlobal(e.gather.Index(row.Get(), 4), f.DivI(e.TopK))
			if e.Pairs {
				ptx.StGlobal(e.pairs.Index(row.Get(), 4), f)
			}
		})
		k.BarWarpSync(ptx.Uint(ptx.FullMask))
		k.If(valid.And(rank.EqI(0)), func() {
			ptx.StShared(e.word(own, id), row.Get().Add(peers.Popc()))
		})
		k.BarWarpSync(ptx.Uint(ptx.FullMask))
		k.If(f.Lt(s.to), func() { ptx.StGlobal(e.inverse.Index(f, 4), row.Get()) })
	})
}

// writeTable writes the row pairs of each expert, the CTAs taking turns, and
// the offsets.
func (e *plan) writeTable(offsets, table, blocks, tickets ptx.Global) {
	k := e.k
	ctas := k.Special("%nctaid.x")
	k.For(e.cta.Add(e.warp.Mul(ctas)), ptx.Uint(e.Experts), ctas.MulI(planWarps), func(expert ptx.U32) {
		n := ptx.LdShared[ptx.U32](e.word(e.total, expert))
		first := ptx.LdShared[ptx.U32](e.word(e.offset, expert))
		at := ptx.LdShared[ptx.U32](e.word(e.blocksAt, expert))
		k.For(e.lane.MulI(schedule.PairRows), n, ptx.Uint(32*schedule.PairRows), func(row ptx.U32) {
			entry := table.Index(at.Add(row.DivI(schedule.PairRows)), schedule.PairBytes)
			ptx.StGlobal(entry, expert, first.Add(row), n.Sub(row).Min(ptx.Uint(schedule.PairRows)), ptx.Uint(0))
		})
	})
	k.If(e.cta.EqI(0), func() {
		k.For(e.tid, ptx.Uint(e.Experts), ptx.Uint(planThreads), func(expert ptx.U32) {
			ptx.StGlobal(offsets.Index(expert, 4), ptx.LdShared[ptx.U32](e.word(e.offset, expert)))
		})
		k.If(e.tid.EqI(0), func() {
			s := ptx.LdSharedVec[ptx.U32](e.sum, 2)
			ptx.StGlobal(offsets.At(4*e.Experts), s[0])
			ptx.StGlobal(blocks, s[1])
			// The tile counters of both products start at 0.
			ptx.StGlobal(tickets, ptx.Uint(0), ptx.Uint(0))
		})
	})
}
