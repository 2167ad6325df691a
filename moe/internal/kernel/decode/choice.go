package decode

import (
	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/gemm"
	"sonicmoe/jit/schedule"
	"sonicmoe/moe/internal/lanes"
	"sonicmoe/moe/internal/route/choose"
	"sonicmoe/ptx"
)

// ChoiceArgs are the arguments of the choice of experts in a tiny batch. Every CTA of the
// up-projection chooses the experts of all tokens itself, and makes the plan of their few rows. A
// separate kernel for the choice would cost time: it would have to start and end before the first
// weights are in flight.
type ChoiceArgs struct {
	// Sums are the router's sums, as [choose.ByChains] reads them. RouterBias has
	// its biases.
	Sums, RouterBias driver.DevicePtr
	// ChosenScores [T, K] f32 and ExpertIDs [T, K] i32 are outputs, best first. Logits
	// [T, E], in the layer's format, is an output unless its address is 0.
	ChosenScores driver.DevicePtr
	ExpertIDs    driver.DevicePtr
	Logits       driver.DevicePtr
	// Inverse [T, K] u32 is an output: the packed row of each pair.
	Inverse driver.DevicePtr
	// Tokens is T, at most MaxTiny.
	Tokens int
}

// choiceTensors are the parameters of the choice.
type choiceTensors struct {
	sums, bias, scores, ids, logits, inverse ptx.Global
	tokens                                   ptx.U32 // the number of tokens of the pass
	// toTable and toLength are the addresses of the table for the down-projection and of its
	// length.
	toTable, toLength ptx.Global
}

func newChoiceTensors(c spec.Config, params jit.Params, args *ChoiceArgs, tiles *gemm.TileArgs) choiceTensors {
	t := choiceTensors{sums: params.Ptr(&args.Sums), scores: params.Ptr(&args.ChosenScores), ids: params.Ptr(&args.ExpertIDs),
		logits: params.Ptr(&args.Logits), inverse: params.Ptr(&args.Inverse), tokens: params.U32(&args.Tokens),
		toTable: params.Ptr(&tiles.Table), toLength: params.Ptr(&tiles.RowPairs)}
	if c.RouterBias {
		t.bias = params.Ptr(&args.RouterBias)
	}
	return t
}

// choice is the state of the code that chooses the experts and makes the table of their tokens.
type choice struct {
	spec.Config
	*product
	choiceTensors
	// sets [E] u32 has, for each expert, a bit for each of its tokens. firsts [E] u32 has an
	// expert's first row. entries are the entries of the table. The last word of an entry is the
	// expert's set. count is the number of entries.
	sets, firsts, entries, count ptx.Shared
}

// newChoice reserves the choice's shared memory and clears the sets.
func newChoice(p *product, c spec.Config, in choiceTensors) choice {
	words := 32 * ofLane(c)
	e := choice{
		Config: c, product: p, choiceTensors: in,
		sets: p.cta.Shared("sets", 4*words, 16), firsts: p.cta.Shared("firsts", 4*words, 16),
		entries: p.cta.Shared("entries", schedule.PairBytes*min(c.NumExperts, MaxTiny*c.TopK), 16),
		count:   p.cta.Shared("count", 4, 4),
	}
	p.k.For(p.k.TidX(), ptx.Uint(words), ptx.Uint(p.threads()), func(i ptx.U32) {
		ptx.StShared(e.sets.Plus(i.ShlI(2)), ptx.Uint(0))
	})
	return e
}

// ofLane returns the number of experts of a lane. The lanes of a warp divide all experts among
// them.
func ofLane(c spec.Config) int { return ceil(c.NumExperts, 32) }

// prepare emits the choice. One warp chooses the experts of each token, and another warp makes the
// table. The last CTA also computes the scores and writes the choice and the plan, while its other
// warps load weights. The last CTA does this because no other CTA has fewer tiles.
func (e choice) prepare() {
	k, warp, lane := e.k, e.k.Warp(), e.k.Lane()
	writes := k.CtaidX().Eq(k.NctaidX().SubI(1))
	of := choose.ByChains{Router: choose.RouterOf(e.Config), Sums: e.choiceTensors.sums, Bias: e.choiceTensors.bias, Tokens: e.tokens, Logits: ptx.GlobalAt(ptx.Select(writes, e.logits.Addr(), ptx.Long(0)))}
	meet := func() { k.BarSync(ptx.Uint(0)) }
	k.IfElse(warp.Lt(e.tokens), func() {
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
		k.If(writes.And(warp.EqI(0)), e.writeTable)
	}, func() {
		meet()
		k.If(warp.EqI(e.mathWarps()), e.makeTable)
		meet()
	})
}

// makeTable lists the experts with tokens in order, in one warp.
func (e choice) makeTable() {
	k, lane, each := e.k, e.k.Lane(), ofLane(e.Config)
	words := 1
	for words < 4 && each%(2*words) == 0 {
		words *= 2
	}
	first := lane.MulI(each)
	var sets, rows []ptx.U32
	for i := 0; i < each; i += words {
		sets = append(sets, ptx.LdSharedVec[ptx.U32](e.sets.Plus(first.ShlI(2)).At(4*i), words)...)
	}
	// The word `all` counts rows in its lower 16 bits and entries of the table in its upper 16
	// bits.
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

// writeTable writes the table for the down-projection, its length last, in one warp.
func (e choice) writeTable() {
	k, lane, count := e.k, e.k.Lane(), e.length()
	k.For(lane, count, ptx.Uint(32), func(i ptx.U32) {
		ptx.StGlobal(e.toTable.Index(i, schedule.PairBytes), e.entry(i)...)
	})
	k.BarWarpSync(ptx.Uint(ptx.FullMask))
	k.If(lane.EqI(0), func() { ptx.StGlobalRelease(e.toLength, count) })
}

func (e choice) length() ptx.U32 { return ptx.LdShared[ptx.U32](e.count) }

func (e choice) entry(i ptx.U32) []ptx.U32 {
	return ptx.LdSharedVec[ptx.U32](e.entries.Plus(i.MulI(schedule.PairBytes)), 4)
}

// tokenOf returns the token of a block's row: the position of bit number row of the block's set.
func tokenOf(b block, row ptx.U32) ptx.U32 {
	set := b.mark
	for before := range MaxTiny - 1 {
		set = ptx.Select(row.GtI(before), set.And(set.SubI(1)), set) // removes the lowest bit
	}
	return set.Xor(set.SubI(1)).ShrI(1).Popc()
}
