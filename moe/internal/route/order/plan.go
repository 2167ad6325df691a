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

// Plan computes the inputs of the experts' products from expert ids and counts. These are each
// expert's first row, the order of the rows (by expert, then token, then slot), the inverse of this
// order, and the table of row pairs. An entry of the table is up to two row tiles of one expert.
// Plan is one launch without a sort and without a grid barrier: every CTA reads all counts and
// places the tokens of its own range. Its ranges must be the ranges of the kernel that counted.
type Plan struct {
	NumExperts, TopK int
	// Pairs adds an output: the pair of token and slot of each row. Backward needs the pairs, and
	// so does forward if scores multiply the experts' inputs.
	Pairs bool
	// Packed is for packed weights. The plan then also sets the counters of Unpack to 0.
	Packed bool
	// List makes the plan for a list, whose entries have any token and expert, instead of pairs.
	// Ranges are then ranges of entries, and TopK is 1. An entry gets no row if its token is not
	// below NumTokens.
	List bool
}

const (
	// PlanThreads and PlanWarps are the numbers of threads and warps of a CTA of the plan.
	PlanThreads = 512
	PlanWarps   = PlanThreads / lanes.Count
	// NoRow stands for the row of a pair whose expert id is outside [0, E).
	NoRow = 0xffffffff
)

// plan is the state of a Plan while its code is emitted. The arrays in shared memory have one word
// for each expert.
type plan struct {
	Plan
	k                 *ptx.Kernel
	tid, warp, lane   ptx.U32
	cta               ptx.U32
	total, before     ptx.Shared // number of rows of all CTAs, and of the CTAs before this one
	offset, rowPairAt ptx.Shared // first row and first row pair of the expert
	sum               ptx.Shared // number of rows and of row pairs of all experts
	perWarp           ptx.Shared // [warp][expert]: first the number of rows of the warp, later the row of the warp's next pair
	// These are the outputs, see [PlanTensors].
	gather, pairs, inverse            ptx.Global
	offsets, table, rowPairs, tickets ptx.Global
	ready                             ptx.Global // with Packed
	list                              entries
	// id returns the expert of a pair.
	id func(pair ptx.U32) ptx.U32
	// countsTotal reports whether one CTA has all pairs, and so counts the rows of all experts
	// itself.
	countsTotal bool
}

// PlanArgs are the arguments of [Plan].
type PlanArgs struct {
	PlanTensors
	// Counts [CTAs, E] u32 has, for each CTA, how many of its tokens chose each expert.
	Counts driver.DevicePtr
	TokenRanges
	Entries
}

// PlanTensors are the expert ids and the tensors of the plan. Structs of arguments embed it.
type PlanTensors struct {
	// ExpertIDs [T, K] i32 are the chosen experts.
	ExpertIDs driver.DevicePtr
	// These are outputs. Gather [R] u32 is each row's token. Inverse [T, K] u32 is each pair's row,
	// or NoRow. With the option Pairs, Pairs [R] u32 is each row's pair, token·K + slot.
	Gather  driver.DevicePtr
	Inverse driver.DevicePtr
	Pairs   driver.DevicePtr
	// Offsets [E+1] u32 is an output: the first row of each expert, followed by the number of rows.
	Offsets driver.DevicePtr
	// Table is an output: the table of row pairs, see [schedule.Tiles]. It has TableBytes bytes.
	// RowPairs gets the number of its entries. Tickets [2] u32 are set to 0.
	Table    driver.DevicePtr
	RowPairs driver.DevicePtr
	Tickets  driver.DevicePtr
	// With the option Packed, Ready [E] u32 are set to 0, see [gemm.Await].
	Ready driver.DevicePtr
}

// TableBytes returns the size of Table for a number of rows.
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

// InOneCTA is a plan that one CTA of another kernel computes for all pairs. The CTA has
// PlanThreads threads and counts the experts' rows itself.
type InOneCTA struct {
	// Warp and Lane are the thread's warp and lane.
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

// Write writes the plan of a number of pairs. expert returns the expert of a pair.
func (o InOneCTA) Write(pairs ptx.U32, expert func(pair ptx.U32) ptx.U32) {
	o.plan.id = expert
	all := o.plan.segment(ptx.Uint(0), pairs)
	o.plan.countWarps(all)
	o.plan.finish(all)
}

// declare declares the parameters of the tensors and reserves the arrays in shared memory.
func (p Plan) declare(k *ptx.Kernel, cta *pipeline.CTA, params jit.Params, args *PlanTensors) *plan {
	ids := params.Ptr(&args.ExpertIDs)
	e := &plan{Plan: p, k: k, gather: params.Ptr(&args.Gather), inverse: params.Ptr(&args.Inverse)}
	e.id = func(pair ptx.U32) ptx.U32 { return ptx.LdGlobal[ptx.U32](ids.Index(pair, 4)) }
	if p.Pairs {
		e.pairs = params.Ptr(&args.Pairs)
	}
	e.offsets, e.table = params.Ptr(&args.Offsets), params.Ptr(&args.Table)
	e.rowPairs, e.tickets = params.Ptr(&args.RowPairs), params.Ptr(&args.Tickets)
	if p.Packed {
		e.ready = params.Ptr(&args.Ready)
	}
	e.tid = k.TidX()
	e.warp, e.lane = k.Warp(), k.Lane()
	e.cta = k.CtaidX()
	words := func(name string, n int) ptx.Shared { return cta.Shared(name, 4*n, 4) }
	e.total, e.before = words("total", p.NumExperts), words("before", p.NumExperts)
	e.offset, e.rowPairAt = words("offset", p.NumExperts), words("pairsAt", p.NumExperts)
	e.perWarp = words("perWarp", PlanWarps*p.NumExperts)
	e.sum = cta.Shared("sum", 8, 8)
	return e
}

// clear zeroes the arrays in shared memory.
func (e *plan) clear() {
	ClearWords(e.k, e.total, (4+PlanWarps)*e.NumExperts, e.tid, PlanThreads)
	e.k.BarSync(ptx.Uint(0))
}

// finish gives each pair its row and writes the table. total, before and the counts of the warps
// must be complete in shared memory.
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

// word returns the address of an expert's word in an array.
func (e *plan) word(array ptx.Shared, expert ptx.U32) ptx.Shared { return array.Plus(expert.ShlI(2)) }

// addCounts sums the counts of all CTAs, and of the CTAs before this one. A group of `width`
// threads reads one row of counts, and the groups take the rows in turns.
func (e *plan) addCounts(counts ptx.Global) {
	k := e.k
	width := lanes.Count
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

// segment is the part [from, to) of the CTA's pairs that a warp handles. Its length is a
// multiple of 32, except at the end.
type segment struct{ from, to ptx.U32 }

// segment returns the warp's part of the CTA's pairs [from, to).
func (e *plan) segment(from, to ptx.U32) segment {
	// The last CTAs may have no tokens. Then from is past to.
	n := to.Max(from).Sub(from)
	each := n.AddI(PlanThreads - 1).DivI(PlanThreads).MulI(lanes.Count)
	start := from.Add(e.warp.Mul(each))
	return segment{start.Min(to), start.Add(each).Min(to)}
}

// eachPair runs body for 32 pairs at a time, one for each lane, with the number of the pair and its
// expert id.
// Past the end the id is NoRow. All lanes take part.
func (e *plan) eachPair(s segment, body func(f, id ptx.U32)) {
	e.k.For(s.from, s.to, ptx.Uint(lanes.Count), func(first ptx.U32) {
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

// countWarps counts the pairs of each warp by expert. With countsTotal it also adds them
// to total.
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

// scan computes the prefix sums of rows and of row pairs over the experts, in one warp. Each lane
// has consecutive experts.
func (e *plan) scan() {
	k := e.k
	each := (e.NumExperts + lanes.Count - 1) / lanes.Count
	first := e.lane.MulI(each)
	var rows, rowPairs []ptx.U32
	allRows, allRowPairs := ptx.Uint(0), ptx.Uint(0)
	mine := func(i int) ptx.Pred {
		if e.NumExperts%lanes.Count == 0 {
			return ptx.True()
		}
		return first.AddI(i).LtI(e.NumExperts)
	}
	for i := range each {
		n := ptx.NewVar(k, ptx.Uint(0))
		k.If(mine(i), func() { n.Set(ptx.LdShared[ptx.U32](e.word(e.total, first).At(4 * i))) })
		rows = append(rows, n.Get())
		rowPairs = append(rowPairs, n.Get().AddI(schedule.PairRows-1).DivI(schedule.PairRows))
		allRows, allRowPairs = allRows.Add(rows[i]), allRowPairs.Add(rowPairs[i])
	}
	rowsTo, rowPairsTo := lanes.PrefixSum(allRows, e.lane), lanes.PrefixSum(allRowPairs, e.lane)
	k.If(e.lane.EqI(lanes.Count-1), func() { ptx.StShared(e.sum, rowsTo, rowPairsTo) })
	row, rowPair := rowsTo.Sub(allRows), rowPairsTo.Sub(allRowPairs)
	for i := range each {
		k.If(mine(i), func() {
			ptx.StShared(e.word(e.offset, first).At(4*i), row)
			ptx.StShared(e.word(e.rowPairAt, first).At(4*i), rowPair)
		})
		row, rowPair = row.Add(rows[i]), rowPair.Add(rowPairs[i])
	}
}

// startWarps replaces each warp's count of an expert's pairs by the row of the warp's first such
// pair.
func (e *plan) startWarps() {
	k := e.k
	k.For(e.tid, ptx.Uint(e.NumExperts), ptx.Uint(PlanThreads), func(expert ptx.U32) {
		at := ptx.NewVar(k, ptx.LdShared[ptx.U32](e.word(e.offset, expert)).Add(ptx.LdShared[ptx.U32](e.word(e.before, expert))))
		for w := range PlanWarps {
			count := e.word(e.perWarp.At(4*e.NumExperts*w), expert)
			n := ptx.LdShared[ptx.U32](count)
			ptx.StShared(count, at.Get())
			at.Set(at.Get().Add(n))
		}
	})
}

// token returns the token of a pair.
func (e *plan) token(f ptx.U32) ptx.U32 {
	if e.List {
		return e.list.token(f)
	}
	return f.DivI(e.TopK)
}

// place gives each pair its row:
//
//	row = offset[expert]                      first row of the expert
//	    + before[expert]                      its pairs in earlier CTAs
//	    + its pairs in earlier warps, and in earlier steps of this warp (both in perWarp)
//	    + its pairs in lower lanes of this step
//
// Within an expert, rows are therefore ordered by token and slot.
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

// writeTable writes the offsets and the table of row pairs. The CTAs divide the experts among them.
func (e *plan) writeTable() {
	k := e.k
	ctas := k.NctaidX()
	k.For(e.cta.Add(e.tid.Mul(ctas)), ptx.Uint(e.NumExperts), ctas.MulI(PlanThreads), func(expert ptx.U32) {
		n := ptx.LdShared[ptx.U32](e.word(e.total, expert))
		first := ptx.LdShared[ptx.U32](e.word(e.offset, expert))
		at := ptx.LdShared[ptx.U32](e.word(e.rowPairAt, expert))
		k.For(ptx.Uint(0), n, ptx.Uint(schedule.PairRows), func(row ptx.U32) {
			entry := e.table.Index(at.Add(row.DivI(schedule.PairRows)), schedule.PairBytes)
			ptx.StGlobal(entry, expert, first.Add(row), n.Sub(row).Min(ptx.Uint(schedule.PairRows)), ptx.Uint(0))
		})
		if e.Packed {
			ptx.StGlobal(e.ready.Index(expert, 4), ptx.Uint(0))
		}
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

// PlanKernel plans the forward pass. PlanPairsKernel plans the backward pass. PlanListKernel plans
// both passes over a list.
var (
	PlanKernel = &registry.Kernel[PlanArgs]{KernelName: "plan", Emit: func(l registry.Layer) (*jit.Kernel[PlanArgs], error) {
		return Plan{NumExperts: l.NumExperts, TopK: l.TopK, Pairs: l.ScoreOnInput, Packed: spec.IsPacked(l.Config)}.Build()
	}}
	PlanPairsKernel = &registry.Kernel[PlanArgs]{KernelName: "plan-pairs", Backward: true, Emit: func(l registry.Layer) (*jit.Kernel[PlanArgs], error) {
		return Plan{NumExperts: l.NumExperts, TopK: l.TopK, Pairs: true}.Build()
	}}
	PlanListKernel = &registry.Kernel[PlanArgs]{KernelName: "plan-list", Only: spec.Config.HasLists, Emit: func(l registry.Layer) (*jit.Kernel[PlanArgs], error) {
		return Plan{NumExperts: l.NumExperts, TopK: 1, Pairs: true, List: true}.Build()
	}}
)
