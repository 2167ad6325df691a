package order

import (
	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/pipeline"
	"sonicmoe/moe/internal/lanes"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/ptx"
)

// PlanSorted plans a list that is sorted by expert, then token, as token rounding writes it. In one
// launch it writes what Count, Plan and ByToken write for any list. The row of an entry is its
// position in the list. Each CTA has a range of tokens. It finds their rows by binary search among
// each expert's entries.
//
// A list that is not sorted gives wrong sums, but no address outside the tensors: no two CTAs find
// the same row, and tokens are clamped to the CTA's range. If two rows of an expert then have the
// same token, one index of the outputs TokenRows and Weights stays free, and gets row 0.
type PlanSorted struct {
	NumExperts int
}

const (
	// maxSorted is the largest number of tokens that a CTA handles.
	maxSorted = 256
	// guides is the number of evenly spaced ids that a CTA loads before its binary search.
	guides = 2 * PlanThreads
)

// SortedRanges splits the tokens among the SMs for PlanSorted.
func SortedRanges(tokens, sms int) TokenRanges {
	r := RangesOf(tokens, sms)
	r.PerCTA = min(r.PerCTA, maxSorted)
	return r
}

// PlanSortedArgs are the arguments of [PlanSorted].
type PlanSortedArgs struct {
	PlanTensors
	// TokenOf [L] i32 is the token of each of the L entries. ExpertIDs [L] is the expert of each
	// entry, or 0xffffffff past the last row. Entries is L.
	TokenOf driver.DevicePtr
	Entries int
	// Regrouped.Unordered is not used.
	Regrouped
	TokenRanges
}

// planSorted is the state of a PlanSorted while its code is emitted. Arrays of experts in shared
// memory have one word for each expert.
type planSorted struct {
	*plan
	regrouped
	experts  int
	tokenOf  ptx.Global
	ids      ptx.Global
	entries  ptx.U32
	tokens   ptx.U32
	from, to ptx.U32    // the CTA's tokens
	guide    ptx.Shared // the evenly spaced ids that the search starts from
	first    ptx.Shared // first row of each expert; the last word is the number of rows
	low      ptx.Shared // first row of each expert that has one of the CTA's tokens
	ahead    ptx.Shared // number of rows of the CTA's tokens in the experts before each expert; the last word counts all experts
	taken    ptx.Shared // for each token, a bit for each expert, set if the token has a row of the expert
	start    ptx.Shared // for each token, the index in TokenRows where its rows start
	used     ptx.Shared // two indices in TokenRows: where the rows of the CTA's tokens start, and where they end
}

// Build emits the kernel.
func (s PlanSorted) Build() (*jit.Kernel[PlanSortedArgs], error) {
	k := jit.NewBuilder[PlanSortedArgs]("moe_plan_sorted", PlanThreads, 1)
	k.CTAs(func(a *PlanSortedArgs) int { return a.Count() })
	cta := pipeline.NewCTA(k.Kernel)
	e := planSorted{experts: s.NumExperts, plan: Plan{NumExperts: s.NumExperts, TopK: 1, Pairs: true}.declare(k.Kernel, cta, k, &k.Args.PlanTensors)}
	e.regrouped = newRegrouped(k, &k.Args.Regrouped)
	e.ids, e.tokenOf, e.entries = k.Ptr(&k.Args.ExpertIDs), k.Ptr(&k.Args.TokenOf), k.U32(&k.Args.Entries)
	e.tokens = k.U32(&k.Args.Tokens)
	perCTA := k.U32(&k.Args.PerCTA)
	e.from = e.cta.Mul(perCTA).Min(e.tokens)
	e.to = e.from.Add(perCTA).Min(e.tokens)
	e.first, e.ahead = cta.Shared("first", 4*(s.NumExperts+1), 4), cta.Shared("ahead", 4*(s.NumExperts+1), 4)
	e.low, e.start, e.used = e.plan.before, cta.Shared("start", 4*maxSorted, 4), cta.Shared("used", 8, 8)
	words := maxSorted * e.words()
	e.taken, e.guide = cta.Shared("taken", 4*words, 4), cta.Shared("guide", 4*guides, 4)
	ClearWords(k.Kernel, e.taken, words, e.tid, PlanThreads)
	ClearWords(k.Kernel, e.used, 2, e.tid, PlanThreads)
	k.GridDepWait()
	k.GridDepLaunch()

	e.findExperts()
	k.BarSync(ptx.Uint(0))
	e.findTokens()
	k.BarSync(ptx.Uint(0))
	k.If(e.warp.EqI(0), e.scan)
	k.If(e.warp.EqI(1), e.sumAhead)
	k.BarSync(ptx.Uint(0))
	e.eachRow(func(list []sortedRow) {
		for _, r := range list {
			k.If(r.there, func() {
				k.RedSharedOr(e.bits(r.token).Plus(r.expert.ShrI(5).ShlI(2)), ptx.Uint(1).Shl(r.expert.AndI(31)))
				ptx.StGlobal(e.gather.Index(r.row, 4), r.token)
				ptx.StGlobal(e.pairs.Index(r.row, 4), r.row)
				ptx.StGlobal(e.inverse.Index(r.row, 4), r.row)
			})
		}
	})
	rows := ptx.LdShared[ptx.U32](e.word(e.first, ptx.Uint(s.NumExperts)))
	k.For(rows.Add(e.cta.MulI(PlanThreads)).Add(e.tid), e.entries, k.NctaidX().MulI(PlanThreads), func(entry ptx.U32) {
		ptx.StGlobal(e.inverse.Index(entry, 4), ptx.Uint(NoRow))
	})
	k.BarSync(ptx.Uint(0))
	e.startTokens(rows)
	e.regroup()
	e.writeTable()
	return k.Build()
}

// words returns the number of words of a token's bits. bits returns the address of these words.
func (e *planSorted) words() int { return (e.experts + 31) / 32 }

func (e *planSorted) bits(token ptx.U32) ptx.Shared {
	return e.taken.Plus(token.Sub(e.from).MulI(4 * e.words()))
}

// findExperts finds the first row of each expert. It first searches the guides, then the
// entries between two guides.
func (e *planSorted) findExperts() {
	k := e.k
	step := e.entries.AddI(guides - 1).DivI(guides)
	guide := func(i ptx.U32) ptx.Shared { return e.guide.Plus(i.ShlI(2)) }
	for i := range guides / PlanThreads {
		of := e.tid.AddI(i * PlanThreads)
		id, at := ptx.NewVar(k, ptx.Uint(NoRow)), of.Mul(step)
		k.If(at.Lt(e.entries), func() { id.Set(ptx.LdGlobal[ptx.U32](e.ids.Index(at, 4))) })
		ptx.StShared(guide(of), id.Get())
	}
	k.BarSync(ptx.Uint(0))
	k.For(e.tid, ptx.Uint(e.experts+1), ptx.Uint(PlanThreads), func(expert ptx.U32) {
		above := search(k, ptx.Uint(0), ptx.Uint(guides), func(i ptx.U32) ptx.U32 { return ptx.LdShared[ptx.U32](guide(i)) }, expert)[0]
		// The guide before these entries is below the expert.
		from := above.Max(ptx.Uint(1)).SubI(1).Mul(step).Min(e.entries)
		to := above.Mul(step).Min(e.entries)
		at := search(k, from, to.Sub(from), func(i ptx.U32) ptx.U32 { return ptx.LdGlobal[ptx.U32](e.ids.Index(i, 4)) }, expert)
		ptx.StShared(e.word(e.first, expert), at[0])
	})
}

// findTokens finds, for each expert, the first row whose token is one of the CTA's, and the number
// of such rows.
func (e *planSorted) findTokens() {
	k := e.k
	// The range of the last CTA also covers tokens past the last one, which a valid list does not
	// have.
	bound := func(token ptx.U32) ptx.U32 { return ptx.Select(token.Lt(e.tokens), token, ptx.Uint(NoRow)) }
	k.For(e.tid, ptx.Uint(e.experts), ptx.Uint(PlanThreads), func(expert ptx.U32) {
		first, end := ptx.LdShared[ptx.U32](e.word(e.first, expert)), ptx.LdShared[ptx.U32](e.word(e.first, expert.AddI(1)))
		at := search(k, first, end.Sub(first), func(i ptx.U32) ptx.U32 { return ptx.LdGlobal[ptx.U32](e.tokenOf.Index(i, 4)) }, bound(e.from), bound(e.to))
		ptx.StShared(e.word(e.total, expert), end.Sub(first))
		ptx.StShared(e.word(e.low, expert), at[0])
		ptx.StShared(e.word(e.ahead, expert), at[1].Sub(at[0]))
		k.RedSharedAdd(e.used, at[0].Sub(first))
	})
}

// search returns, for each bound, the index of the first word >= bound among the n words
// that begin at index first. For the bound NoRow, it returns the end. All bounds take the
// same steps of one binary search. A larger bound therefore never gets a smaller index,
// even if the words are not sorted.
func search(k *ptx.Kernel, first, n ptx.U32, word func(i ptx.U32) ptx.U32, bounds ...ptx.U32) (found []ptx.U32) {
	at := ptx.NewVars(k, len(bounds), first)
	left := ptx.NewVar(k, n)
	step := func(by ptx.U32, probe ptx.U32) {
		for i, bound := range bounds {
			below := word(at[i].Get().Add(probe)).Lt(bound).Or(bound.Eq(ptx.Uint(NoRow)))
			at[i].Set(at[i].Get().Add(ptx.Select(below, by, ptx.Uint(0))))
		}
	}
	k.Loop(func() {
		k.BreakIf(left.Get().LeI(1))
		half := left.Get().ShrI(1)
		step(half, half.SubI(1))
		left.Set(left.Get().Sub(half))
	})
	k.If(left.Get().EqI(1), func() { step(ptx.Uint(1), ptx.Uint(0)) })
	for _, v := range at {
		found = append(found, v.Get())
	}
	return found
}

// sumAhead replaces the numbers of rows in ahead by their prefix sums, in one warp.
func (e *planSorted) sumAhead() {
	k := e.k
	sum := ptx.NewVar(k, ptx.Uint(0))
	k.For(ptx.Uint(0), ptx.Uint(e.experts), ptx.Uint(lanes.Count), func(first ptx.U32) {
		expert, n := first.Add(e.lane), ptx.NewVar(k, ptx.Uint(0))
		k.If(expert.LtI(e.experts), func() { n.Set(ptx.LdShared[ptx.U32](e.word(e.ahead, expert))) })
		up := lanes.PrefixSum(n.Get(), e.lane)
		k.If(expert.LtI(e.experts), func() {
			ptx.StShared(e.word(e.ahead, expert), sum.Get().Add(up).Sub(n.Get()))
		})
		sum.Set(sum.Get().Add(up.ShflIdx(ptx.Uint(lanes.Count - 1))))
	})
	ptx.StShared(e.word(e.ahead, ptx.Uint(e.experts)), sum.Get())
}

// sortedRow is a row of one of the CTA's tokens. Past the last row, there is false, and
// the other fields repeat the last row.
type sortedRow struct {
	there              ptx.Pred
	row, expert, token ptx.U32
}

// eachRow calls body with the thread's share of the rows of the CTA's tokens, byTokenLoads rows at
// a time. Within such a group the code has no branches, so that the loads of its rows overlap.
func (e *planSorted) eachRow(body func(list []sortedRow)) {
	k := e.k
	rows := ptx.LdShared[ptx.U32](e.word(e.ahead, ptx.Uint(e.experts)))
	size := 1
	for size < e.experts {
		size *= 2
	}
	k.For(e.tid, rows, ptx.Uint(byTokenLoads*PlanThreads), func(first ptx.U32) {
		var list [byTokenLoads]sortedRow
		for i := range list {
			r, nth := &list[i], first.AddI(i*PlanThreads)
			r.there, nth = nth.Lt(rows), nth.Min(rows.SubI(1))
			// The row with number nth is in the last expert that has at most nth rows ahead of its
			// own.
			r.expert = ptx.Uint(0)
			for half := size / 2; half > 0; half /= 2 {
				next := r.expert.AddI(half)
				is := ptx.LdShared[ptx.U32](e.word(e.ahead, next.MinI(e.experts))).Le(nth).And(next.LtI(e.experts))
				r.expert = ptx.Select(is, next, r.expert)
			}
			r.row = ptx.LdShared[ptx.U32](e.word(e.low, r.expert)).Add(nth).Sub(ptx.LdShared[ptx.U32](e.word(e.ahead, r.expert)))
			r.token = ptx.LdGlobal[ptx.U32](e.tokenOf.Index(r.row, 4)).Max(e.from).Min(e.to.SubI(1))
		}
		body(list[:])
	})
}

// startTokens computes the index in TokenRows where each token's rows start, with one thread for each
// token.
func (e *planSorted) startTokens(rows ptx.U32) {
	k := e.k
	token, n := e.from.Add(e.tid), ptx.NewVar(k, ptx.Uint(0))
	mine := e.tid.Lt(e.to.Sub(e.from))
	k.If(mine, func() {
		for word := range e.words() {
			n.Set(n.Get().Add(ptx.LdShared[ptx.U32](e.bits(token).At(4 * word)).Popc()))
		}
	})
	up := lanes.PrefixSum(n.Get(), e.lane)
	k.If(e.lane.EqI(lanes.Count-1), func() { ptx.StShared(e.perWarp.Plus(e.warp.ShlI(2)), up) })
	k.BarSync(ptx.Uint(0))
	start := ptx.LdShared[ptx.U32](e.used).Add(up).Sub(n.Get())
	for w := range PlanWarps {
		of := ptx.LdShared[ptx.U32](e.perWarp.At(4 * w))
		start = start.Add(ptx.Select(e.warp.GtI(w), of, ptx.Uint(0)))
	}
	k.If(mine, func() {
		ptx.StShared(e.word(e.start, e.tid), start)
		ptx.StGlobal(e.starts.Index(token, 4), start)
	})
	k.If(e.tid.EqI(PlanThreads-1), func() { ptx.StShared(e.used.At(4), start.Add(n.Get())) })
	k.If(e.tid.EqI(0).And(e.to.Eq(e.tokens)), func() { ptx.StGlobal(e.starts.Index(e.tokens, 4), rows) })
	k.BarSync(ptx.Uint(0))
}

// regroup writes the rows of the CTA's tokens to TokenRows. A row's index there is the start of its
// token's rows plus the number of the token's experts that come before the row's expert.
func (e *planSorted) regroup() {
	k := e.k
	e.eachRow(func(list []sortedRow) {
		var places [byTokenLoads]ptx.U32
		var weights [byTokenLoads]ptx.F32
		for i, r := range list {
			weights[i] = ptx.LdGlobal[ptx.F32](e.scores.Index(r.row, 4))
			places[i] = ptx.LdShared[ptx.U32](e.word(e.start, r.token.Sub(e.from)))
			in, below := r.expert.ShrI(5), ptx.Uint(1).Shl(r.expert.AndI(31)).SubI(1)
			for word := range e.words() {
				mask := ptx.Select(in.GtI(word), ptx.Uint(ptx.FullMask), ptx.Select(in.EqI(word), below, ptx.Uint(0)))
				places[i] = places[i].Add(ptx.LdShared[ptx.U32](e.bits(r.token).At(4 * word)).And(mask).Popc())
			}
		}
		for i, r := range list {
			k.If(r.there, func() { e.put(places[i], r.row, weights[i]) })
		}
	})
	of := ptx.LdSharedVec[ptx.U32](e.used, 2)
	end := of[0].Add(ptx.LdShared[ptx.U32](e.word(e.ahead, ptx.Uint(e.experts))))
	k.For(of[1].Add(e.tid), end, ptx.Uint(PlanThreads), func(place ptx.U32) {
		e.put(place, ptx.Uint(0), ptx.LdGlobal[ptx.F32](e.scores))
	})
}

// put writes a row to TokenRows and its weight to Weights, both at the index `place`.
func (e *planSorted) put(place, row ptx.U32, weight ptx.F32) {
	ptx.StGlobal(e.tokenRows.Index(place, 4), row)
	ptx.StGlobal(e.weights.Index(place, 4), weight)
}

// PlanSortedKernel plans the list that token rounding writes.
var PlanSortedKernel = &registry.Kernel[PlanSortedArgs]{KernelName: "plan-sorted", Only: spec.Config.Rounds, Emit: func(l registry.Layer) (*jit.Kernel[PlanSortedArgs], error) {
	return PlanSorted{NumExperts: l.NumExperts}.Build()
}}
