package decode

import (
	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/schedule"
	"sonicmoe/moe/internal/lanes"
	"sonicmoe/moe/internal/route/choose"
	"sonicmoe/ptx"
)

// This file is the choice of the experts of up to MostSmall tokens in every CTA of
// the up-projection, with as much of a plan as few rows need: a kernel for them would
// have to start and end before the first weights are on their way.

// ChoiceArgs are the arguments of that.
type ChoiceArgs struct {
	// Sums are the router's, as [choose.ByChains] takes them, RouterBias its biases.
	Sums, RouterBias driver.DevicePtr
	// ChosenScores [T, K] f32 and ExpertIDs [T, K] i32 are written, best first, Logits
	// [T, E], in the layer's format, unless 0.
	ChosenScores driver.DevicePtr
	ExpertIDs    driver.DevicePtr
	Logits       driver.DevicePtr
	// Inverse [T, K] u32, each pair's row, is written.
	Inverse driver.DevicePtr
	// Tokens is T, at most MostSmall.
	Tokens int
}

// choice is the emission of that.
type choice struct {
	spec.Config
	*product
	sums, bias, scores, ids, logits, inverse ptx.Global
	ofPass                                   ptx.U32 // tokens
	// sets [E] u32 has a bit for each token of an expert, firsts [E] u32 an expert's
	// first row. entries are those of the table, which have such a set as the last
	// word, count how many there are.
	sets, firsts, entries, count ptx.Shared
}

func newChoice(p *product, c spec.Config, params jit.Params, args *ChoiceArgs) *choice {
	e := &choice{Config: c, product: p, sums: params.Ptr(&args.Sums), scores: params.Ptr(&args.ChosenScores), ids: params.Ptr(&args.ExpertIDs),
		logits: params.Ptr(&args.Logits), inverse: params.Ptr(&args.Inverse), ofPass: params.U32(&args.Tokens)}
	if c.RouterBias {
		e.bias = params.Ptr(&args.RouterBias)
	}
	e.sets = p.cta.Shared("sets", 4*32*e.ofLane(), 16)
	e.firsts = p.cta.Shared("firsts", 4*32*e.ofLane(), 16)
	e.entries = p.cta.Shared("entries", schedule.PairBytes*min(c.NumExperts, MostSmall*c.TopK), 16)
	e.count = p.cta.Shared("count", 4, 4)
	p.k.For(p.thread, ptx.Uint(32*e.ofLane()), ptx.Uint(p.threads()), func(i ptx.U32) {
		ptx.StShared(e.sets.Plus(i.ShlI(2)), ptx.Uint(0))
	})
	return e
}

// ofLane is how many experts a lane has where a warp goes through all, side by side.
func (e *choice) ofLane() int { return ceil(e.NumExperts, 32) }

// choose has a warp for each token choose, and another one make the table. The last
// CTA's, whose share is no larger than another's, then score, and write what is chosen
// and the plan, while the loads of its other warps go on.
func (e *choice) choose() {
	k, warp, lane := e.k, e.thread.ShrI(5), e.thread.AndI(31)
	writes := k.CtaidX().Eq(k.NctaidX().SubI(1))
	of := choose.ByChains{Router: choose.RouterOf(e.Config), Sums: e.sums, Bias: e.bias, Tokens: e.ofPass, Logits: ptx.GlobalAt(ptx.Select(writes, e.logits.Addr(), ptx.Long(0)))}
	meet := func() { k.BarSync(ptx.Uint(0)) }
	k.IfElse(warp.Lt(e.ofPass), func() {
		mine := ptx.Uint(1).Shl(warp)
		of.Choose(k, warp, lane, func(experts []ptx.U32) {
			k.If(lane.EqI(0), func() {
				for _, id := range experts {
					k.RedSharedOr(e.sets.Plus(id.ShlI(2)), mine)
				}
			})
			meet()
			meet()
		}, writes, func(slot ptx.U32, score ptx.F32, id ptx.U32) {
			at := warp.Mad(ptx.Uint(e.TopK), slot)
			ptx.StGlobal(e.scores.Index(at, 4), score)
			ptx.StGlobal(e.ids.Index(at, 4), id)
			first, set := ptx.LdShared[ptx.U32](e.firsts.Plus(id.ShlI(2))), ptx.LdShared[ptx.U32](e.sets.Plus(id.ShlI(2)))
			ptx.StGlobal(e.inverse.Index(at, 4), first.Add(set.And(mine.SubI(1)).Popc()))
		})
		k.If(writes.And(warp.EqI(0)), func() { e.tell(lane) })
	}, func() {
		meet()
		k.If(warp.EqI(e.mathWarps()), func() { e.makeTable(lane) })
		meet()
	})
}

// makeTable makes entries of the experts with tokens, in order, in one warp.
func (e *choice) makeTable(lane ptx.U32) {
	k, each := e.k, e.ofLane()
	words := 1
	for words < 4 && each%(2*words) == 0 {
		words *= 2
	}
	first := lane.MulI(each)
	var sets, rows []ptx.U32
	for i := 0; i < each; i += words {
		sets = append(sets, ptx.LdSharedVec[ptx.U32](e.sets.Plus(first.ShlI(2)).At(4*i), words)...)
	}
	// Rows are summed in the lower half of a word, entries in the upper one.
	const entry = 1 << 16
	all := ptx.Uint(0)
	for _, set := range sets {
		n := set.Popc()
		rows = append(rows, n)
		all = all.Add(n).Add(ptx.Select(set.EqI(0), ptx.Uint(0), ptx.Uint(entry)))
	}
	to := lanes.PrefixSum(all, lane)
	k.If(lane.EqI(31), func() { ptx.StShared(e.count, to.ShrI(16)) })
	at := to.Sub(all)
	for i, set := range sets {
		row, place := at.AndI(entry-1), at.ShrI(16)
		k.If(set.NeI(0), func() {
			ptx.StShared(e.entries.Plus(place.MulI(schedule.PairBytes)), first.AddI(i), row, rows[i], set)
			ptx.StShared(e.firsts.Plus(first.ShlI(2)).At(4*i), row)
		})
		at = at.Add(rows[i]).Add(ptx.Select(set.EqI(0), ptx.Uint(0), ptx.Uint(entry)))
	}
}

// tell writes the table for the down-projection, in one warp.
func (e *choice) tell(lane ptx.U32) {
	k := e.k
	count := ptx.LdShared[ptx.U32](e.count)
	k.For(lane, count, ptx.Uint(32), func(i ptx.U32) {
		at := i.MulI(schedule.PairBytes)
		ptx.StGlobal(e.table.Index(i, schedule.PairBytes), ptx.LdSharedVec[ptx.U32](e.entries.Plus(at), 4)...)
	})
	k.BarWarpSync(ptx.Uint(ptx.FullMask))
	k.If(lane.EqI(0), func() { ptx.StGlobalRelease(e.rowPairs, count) })
}

// tokenOf is the token of a block's row: of its set so many before it.
func tokenOf(b block, row ptx.U32) ptx.U32 {
	set := b.set
	for before := range MostSmall - 1 {
		set = ptx.Select(row.GtI(before), set.And(set.SubI(1)), set) // without the lowest
	}
	return set.Xor(set.SubI(1)).ShrI(1).Popc()
}
