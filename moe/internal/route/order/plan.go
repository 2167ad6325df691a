package order

import (
	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/schedule"
	"sonicmoe/moe/internal/lanes"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/ptx"
)

// Plan turns expert ids and counts into everything the products need, in one
// launch with no sort and no grid barrier: expert offsets, the packed order
// of the rows (by expert, then token, then slot), its inverse, and the table
// of row pairs. Every CTA reads all counts and places the tokens of its own
// range, the same ranges as Router's or Count's.
type Plan struct {
	NumExperts, TopK int
	// Pairs also writes each row's (token, slot) pair: backward needs it, and forward
	// where scores multiply the experts' inputs.
	Pairs bool
	// List plans a list of entries, each of any token: ranges are of entries, an
	// entry takes the place of a pair, TopK is 1. An entry whose token is not
	// below NumTokens has no row.
	List bool
}

// Entries are the tokens of a list's entries, for a struct of arguments to
// embed; only kernels of lists look at them.
type Entries struct {
	// TokenOf [L] i32 is each entry's token, NumTokens is T.
	TokenOf   driver.DevicePtr
	NumTokens int
}

// entries are Entries on the device.
type entries struct {
	tokenOf ptx.Global
	tokens  ptx.U32
}

// token is an entry's.
func (l entries) token(entry ptx.U32) ptx.U32 {
	return ptx.LdGlobal[ptx.U32](l.tokenOf.Index(entry, 4))
}

const (
	// PlanThreads is the number of threads of a CTA of the plan, PlanWarps of its warps.
	PlanThreads = 512
	PlanWarps   = PlanThreads / 32
	// NoRow marks a (token, slot) whose expert id is outside [0, E).
	NoRow = 0xffffffff
)

// plan is the emission of a Plan. The shared arrays have one word an expert.
type plan struct {
	Plan
	k               *ptx.Kernel
	tid, warp, lane ptx.U32
	cta             ptx.U32
	total, before   ptx.Shared // rows of all CTAs; of the CTAs before this one
	offset, pairsAt ptx.Shared // first row and first row pair of the expert
	sum             ptx.Shared // rows and row pairs of all experts
	perWarp         ptx.Shared // [warp][expert]
	// gather is each row's token, pairs its token·K + slot, inverse each
	// pair's row.
	gather, pairs, inverse ptx.Global
	list                   entries
	// id is the expert of a pair.
	id func(pair ptx.U32) ptx.U32
	// countsTotal: the CTA has all pairs and counts the experts' rows itself.
	countsTotal                       bool
	offsets, table, rowPairs, tickets ptx.Global
}

// PlanArgs are the arguments of [Plan].
type PlanArgs struct {
	PlanTensors
	// Counts [CTAs, E] u32 are each CTA's tokens by expert.
	Counts driver.DevicePtr
	TokenRanges
	Entries
}

// PlanTensors are what a plan is made from and of, for a struct of arguments to
// embed.
type PlanTensors struct {
	// ExpertIDs [T, K] i32 are the chosen experts.
	ExpertIDs driver.DevicePtr
	// Gather [R] u32 (each row's token), Inverse [T, K] u32 (each pair's row, or
	// NoRow) and, with Pairs, Pairs [R] u32 (each row's token·K + slot) are
	// written.
	Gather  driver.DevicePtr
	Inverse driver.DevicePtr
	Pairs   driver.DevicePtr
	// Offsets [E+1] u32 is written: the experts' first rows.
	Offsets driver.DevicePtr
	// Table is written, see [schedule.Tiles] and TableBytes, RowPairs its
	// length; Tickets [2] u32 become 0.
	Table    driver.DevicePtr
	RowPairs driver.DevicePtr
	Tickets  driver.DevicePtr
}

// TableBytes is the size of the table of row pairs, given the packed rows.
func (p Plan) TableBytes(rows int) int64 {
	return schedule.PairBytes * (int64(p.NumExperts) + int64(rows)/schedule.PairRows)
}

// Build emits the kernel.
func (p Plan) Build() (*jit.Kernel[PlanArgs], error) {
	name := "moe_plan"
	if p.Pairs {
		name = "moe_plan_pairs"
	}
	if p.List {
		name += "_list"
	}
	k := jit.NewBuilder[PlanArgs](name, PlanThreads, 1)
	k.CTAs(func(a *PlanArgs) int { return a.Count() })
	e := p.declare(k.Kernel, pipeline.NewCTA(k.Kernel), k, &k.Args.PlanTensors)
	counts, tokens, perCTA := k.Ptr(&k.Args.Counts), k.U32(&k.Args.Tokens), k.U32(&k.Args.PerCTA)
	if p.List {
		e.list = entries{k.Ptr(&k.Args.TokenOf), k.U32(&k.Args.NumTokens)}
	}
	e.clear()
	k.GridDepWait()
	k.GridDepLaunch()
	from := e.cta.Mul(perCTA)
	seg := e.segment(from.MulI(p.TopK), from.Add(perCTA).Min(tokens).MulI(p.TopK))
	e.addCounts(counts)
	e.countWarps(seg)
	e.finish(seg)
	return k.Build()
}

// InOneCTA is the plan of all pairs by one CTA of another kernel, which counts the experts'
// rows itself. The CTA has PlanThreads threads.
type InOneCTA struct {
	// Warp and Lane are the thread's.
	Warp, Lane ptx.U32
	plan       *plan
}

// InOneCTA declares the parameters of the plan's tensors and reserves its shared memory.
func (p Plan) InOneCTA(k *ptx.Kernel, cta *pipeline.CTA, params jit.Params, args *PlanTensors) InOneCTA {
	e := p.declare(k, cta, params, args)
	e.countsTotal = true
	return InOneCTA{Warp: e.warp, Lane: e.lane, plan: e}
}

// Clear zeroes the plan's shared memory.
func (o InOneCTA) Clear() { o.plan.clear() }

// Write writes the plan of the given number of pairs; expert returns a pair's expert.
func (o InOneCTA) Write(pairs ptx.U32, expert func(pair ptx.U32) ptx.U32) {
	o.plan.id = expert
	all := o.plan.segment(ptx.Uint(0), pairs)
	o.plan.countWarps(all)
	o.plan.finish(all)
}

// declare declares the tensors' parameters and reserves the shared arrays.
func (p Plan) declare(k *ptx.Kernel, cta *pipeline.CTA, params jit.Params, args *PlanTensors) *plan {
	ids := params.Ptr(&args.ExpertIDs)
	e := &plan{Plan: p, k: k, gather: params.Ptr(&args.Gather), inverse: params.Ptr(&args.Inverse)}
	e.id = func(pair ptx.U32) ptx.U32 { return ptx.LdGlobal[ptx.U32](ids.Index(pair, 4)) }
	if p.Pairs {
		e.pairs = params.Ptr(&args.Pairs)
	}
	e.offsets, e.table = params.Ptr(&args.Offsets), params.Ptr(&args.Table)
	e.rowPairs, e.tickets = params.Ptr(&args.RowPairs), params.Ptr(&args.Tickets)
	e.tid = k.TidX()
	e.warp, e.lane = e.tid.ShrI(5), e.tid.AndI(31)
	e.cta = k.CtaidX()
	words := func(name string, n int) ptx.Shared { return cta.Shared(name, 4*n, 4) }
	e.total, e.before = words("total", p.NumExperts), words("before", p.NumExperts)
	e.offset, e.pairsAt = words("offset", p.NumExperts), words("pairsAt", p.NumExperts)
	e.perWarp = words("perWarp", PlanWarps*p.NumExperts)
	e.sum = cta.Shared("sum", 8, 8)
	return e
}

// clear zeroes the shared arrays.
func (e *plan) clear() {
	ClearWords(e.k, e.total, (4+PlanWarps)*e.NumExperts, e.tid, PlanThreads)
	e.k.BarSync(ptx.Uint(0))
}

// finish does the rest when totals are known, and what comes before the CTA's
// own pairs, and of these each warp's counts.
func (e *plan) finish(s segment) {
	k := e.k
	k.BarSync(ptx.Uint(0))
	k.If(e.warp.EqI(0), e.scan)
	k.BarSync(ptx.Uint(0))
	e.startWarps()
	k.BarSync(ptx.Uint(0))
	e.place(s)
	e.writeTable()
}

func (e *plan) word(array ptx.Shared, expert ptx.U32) ptx.Shared { return array.Plus(expert.ShlI(2)) }

// addCounts sums the counts of all CTAs, and of those before this one. Each
// group of threads strides over the rows of the counts.
func (e *plan) addCounts(counts ptx.Global) {
	k := e.k
	width := 32
	for width < e.NumExperts && width < PlanThreads {
		width *= 2
	}
	group, lane := e.tid.DivI(width), e.tid.RemI(width)
	rows := k.NctaidX()
	k.For(lane, ptx.Uint(e.NumExperts), ptx.Uint(width), func(expert ptx.U32) {
		total, before := ptx.NewVar(k, ptx.Uint(0)), ptx.NewVar(k, ptx.Uint(0))
		at := counts.Index(expert, 4)
		k.For(group, rows, ptx.Uint(PlanThreads/width), func(row ptx.U32) {
			n := ptx.LdGlobal[ptx.U32](at.Index(row, 4*e.NumExperts))
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
	each := n.AddI(PlanThreads - 1).DivI(PlanThreads).MulI(32)
	start := from.Add(e.warp.Mul(each))
	return segment{start.Min(to), start.Add(each).Min(to)}
}

// eachPair runs body for 32 pairs at a time; id is NoRow past the end. The
// whole warp takes part.
func (e *plan) eachPair(s segment, body func(f, id ptx.U32)) {
	e.k.For(s.from, s.to, ptx.Uint(32), func(first ptx.U32) {
		f := first.Add(e.lane)
		id := ptx.NewVar(e.k, ptx.Uint(NoRow))
		e.k.If(f.Lt(s.to), func() {
			of := e.id(f)
			if e.List {
				of = ptx.Select(e.list.token(f).Lt(e.list.tokens), of, ptx.Uint(NoRow))
			}
			id.Set(of)
		})
		body(f, id.Get())
	})
}

// countWarps counts each warp's experts, with countsTotal those of all warps too.
func (e *plan) countWarps(s segment) {
	own := e.perWarp.Plus(e.warp.MulI(4 * e.NumExperts))
	e.eachPair(s, func(_, id ptx.U32) {
		e.k.If(id.LtI(e.NumExperts), func() {
			e.k.RedSharedAdd(e.word(own, id), ptx.Uint(1))
			if e.countsTotal {
				e.k.RedSharedAdd(e.word(e.total, id), ptx.Uint(1))
			}
		})
	})
}

// scan sums rows and row pairs over the experts, in one warp: each lane's are
// neighbours.
func (e *plan) scan() {
	k := e.k
	each := (e.NumExperts + 31) / 32
	first := e.lane.MulI(each)
	var rows, pairs []ptx.U32
	allRows, allPairs := ptx.Uint(0), ptx.Uint(0)
	mine := func(i int) ptx.Pred {
		if e.NumExperts%32 == 0 {
			return ptx.True()
		}
		return first.AddI(i).LtI(e.NumExperts)
	}
	for i := range each {
		n := ptx.NewVar(k, ptx.Uint(0))
		k.If(mine(i), func() { n.Set(ptx.LdShared[ptx.U32](e.word(e.total, first).At(4 * i))) })
		rows = append(rows, n.Get())
		pairs = append(pairs, n.Get().AddI(schedule.PairRows-1).DivI(schedule.PairRows))
		allRows, allPairs = allRows.Add(rows[i]), allPairs.Add(pairs[i])
	}
	rowsTo, pairsTo := lanes.PrefixSum(allRows, e.lane), lanes.PrefixSum(allPairs, e.lane)
	k.If(e.lane.EqI(31), func() { ptx.StShared(e.sum, rowsTo, pairsTo) })
	row, pair := rowsTo.Sub(allRows), pairsTo.Sub(allPairs)
	for i := range each {
		k.If(mine(i), func() {
			ptx.StShared(e.word(e.offset, first).At(4*i), row)
			ptx.StShared(e.word(e.pairsAt, first).At(4*i), pair)
		})
		row, pair = row.Add(rows[i]), pair.Add(pairs[i])
	}
}

// startWarps turns each warp's counts into the row where its first goes.
func (e *plan) startWarps() {
	k := e.k
	k.For(e.tid, ptx.Uint(e.NumExperts), ptx.Uint(PlanThreads), func(expert ptx.U32) {
		at := ptx.NewVar(k, ptx.LdShared[ptx.U32](e.word(e.offset, expert)).Add(ptx.LdShared[ptx.U32](e.word(e.before, expert))))
		for w := range PlanWarps {
			slot := e.word(e.perWarp.At(4*e.NumExperts*w), expert)
			n := ptx.LdShared[ptx.U32](slot)
			ptx.StShared(slot, at.Get())
			at.Set(at.Get().Add(n))
		}
	})
}

// token is a pair's.
func (e *plan) token(f ptx.U32) ptx.U32 {
	if e.List {
		return e.list.token(f)
	}
	return f.DivI(e.TopK)
}

// place gives each pair its row. Lanes with the same expert take rows in lane
// order, so the order is by token and slot.
func (e *plan) place(s segment) {
	k := e.k
	own := e.perWarp.Plus(e.warp.MulI(4 * e.NumExperts))
	below := k.LanemaskLt()
	e.eachPair(s, func(f, id ptx.U32) {
		valid := id.LtI(e.NumExperts)
		peers := k.MatchAny(id, ptx.Uint(ptx.FullMask))
		rank := peers.And(below).Popc()
		row := ptx.NewVar(k, ptx.Uint(NoRow))
		k.If(valid, func() {
			row.Set(ptx.LdShared[ptx.U32](e.word(own, id)).Add(rank))
			ptx.StGlobal(e.gather.Index(row.Get(), 4), e.token(f))
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
func (e *plan) writeTable() {
	k := e.k
	ctas := k.NctaidX()
	k.For(e.cta.Add(e.tid.Mul(ctas)), ptx.Uint(e.NumExperts), ctas.MulI(PlanThreads), func(expert ptx.U32) {
		n := ptx.LdShared[ptx.U32](e.word(e.total, expert))
		first := ptx.LdShared[ptx.U32](e.word(e.offset, expert))
		at := ptx.LdShared[ptx.U32](e.word(e.pairsAt, expert))
		k.For(ptx.Uint(0), n, ptx.Uint(schedule.PairRows), func(row ptx.U32) {
			entry := e.table.Index(at.Add(row.DivI(schedule.PairRows)), schedule.PairBytes)
			ptx.StGlobal(entry, expert, first.Add(row), n.Sub(row).Min(ptx.Uint(schedule.PairRows)), ptx.Uint(0))
		})
	})
	k.If(e.cta.EqI(0), func() {
		k.For(e.tid, ptx.Uint(e.NumExperts), ptx.Uint(PlanThreads), func(expert ptx.U32) {
			ptx.StGlobal(e.offsets.Index(expert, 4), ptx.LdShared[ptx.U32](e.word(e.offset, expert)))
		})
		k.If(e.tid.EqI(0), func() {
			s := ptx.LdSharedVec[ptx.U32](e.sum, 2)
			ptx.StGlobal(e.offsets.At(4*e.NumExperts), s[0])
			ptx.StGlobal(e.rowPairs, s[1])
			schedule.ClearTickets(e.tickets)
		})
	})
}

// PlanKernel is the forward pass's, PlanPairsKernel the backward pass's,
// PlanListKernel both passes' of lists.
var (
	PlanKernel = &registry.Kernel[PlanArgs]{KernelName: "plan", Emit: func(l registry.Layer) (*jit.Kernel[PlanArgs], error) {
		return Plan{NumExperts: l.NumExperts, TopK: l.TopK, Pairs: l.ScoreOnInput}.Build()
	}}
	PlanPairsKernel = &registry.Kernel[PlanArgs]{KernelName: "plan-pairs", Backward: true, Emit: func(l registry.Layer) (*jit.Kernel[PlanArgs], error) {
		return Plan{NumExperts: l.NumExperts, TopK: l.TopK, Pairs: true}.Build()
	}}
	PlanListKernel = &registry.Kernel[PlanArgs]{KernelName: "plan-list", Only: spec.Config.HasLists, Emit: func(l registry.Layer) (*jit.Kernel[PlanArgs], error) {
		return Plan{NumExperts: l.NumExperts, TopK: 1, Pairs: true, List: true}.Build()
	}}
)
