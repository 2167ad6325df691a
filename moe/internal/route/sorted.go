package route

import (
	"sonicmoe/driver"
	"sonicmoe/jit"
	"sonicmoe/jit/pipeline"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/spec"
	"sonicmoe/ptx"
)

// Sorted plans a list that is sorted by expert, then token, as Take makes it: in
// one launch all that Count, Plan and ByToken make of any list. Entries are rows
// already; a CTA finds those of its tokens by binary search in each expert's.
//
// A list that is not sorted makes wrong sums, but no address outside the tensors:
// tokens are held to the CTA's, and the rows that CTAs find are never shared.
type Sorted struct {
	NumExperts int
}

// SortedArgs are the arguments of [Sorted].
type SortedArgs struct {
	PlanTensors
	// TokenOf [L] i32 are the entries' tokens, ExpertIDs [L] their experts,
	// 0xffffffff past the last row;
	// Entries is L.
	TokenOf driver.DevicePtr
	Entries int
	Regrouped
	TokenRanges
}

// planSorted is the emission of a Sorted. The shared arrays have one word an expert.
type planSorted struct {
	*plan
	by      byToken
	experts int
	tokenOf ptx.Global
	ids     ptx.Global
	entries ptx.U32
	tokens  ptx.U32
	first   ptx.Shared // first row of the expert, and of the one past the last
	low     ptx.Shared // first row of the CTA's tokens
	ahead   ptx.Shared // rows of the CTA's tokens in the experts before, and in all
}

// Build emits the kernel.
func (s Sorted) Build() (*jit.Kernel[SortedArgs], error) {
	k := jit.NewBuilder[SortedArgs]("moe_plan_sorted", planThreads, 1)
	k.CTAs(func(a *SortedArgs) int { return a.Count() })
	cta := pipeline.NewCTA(k.Kernel)
	e := planSorted{experts: s.NumExperts, plan: Plan{NumExperts: s.NumExperts, TopK: 1, Pairs: true}.declare(k.Kernel, cta, k, &k.Args.PlanTensors)}
	e.ids, e.tokenOf, e.entries = k.Ptr(&k.Args.ExpertIDs), k.Ptr(&k.Args.TokenOf), k.U32(&k.Args.Entries)
	e.tokens = k.U32(&k.Args.Tokens)
	e.by = byToken{k: k.Kernel, tid: e.tid, gather: e.gather, regrouped: newRegrouped(k, &k.Args.Regrouped)}
	e.by.from = e.cta.Mul(k.U32(&k.Args.PerCTA)).Min(e.tokens)
	e.by.to = e.by.from.Add(k.U32(&k.Args.PerCTA)).Min(e.tokens)
	e.by.each = e.eachRow
	e.first, e.low, e.ahead = cta.Shared("first", 4*(s.NumExperts+1), 4), cta.Shared("low", 4*s.NumExperts, 4), cta.Shared("ahead", 4*(s.NumExperts+1), 4)
	e.by.reserve(cta)
	k.BarSync(ptx.Uint(0))
	k.GridDepWait()
	k.GridDepLaunch()

	e.findExperts()
	k.BarSync(ptx.Uint(0))
	e.by.rows = ptx.LdShared[ptx.U32](e.word(e.first, ptx.Uint(s.NumExperts)))
	e.findTokens()
	k.BarSync(ptx.Uint(0))
	k.If(e.warp.EqI(0), e.scan)
	k.If(e.warp.EqI(1), e.sumAhead)
	k.BarSync(ptx.Uint(0))
	e.eachRow(func(row, token ptx.U32) {
		k.If(e.by.mine(token), func() {
			k.RedSharedAdd(e.by.word(e.by.cursor, token), ptx.Uint(1))
			ptx.StGlobal(e.gather.Index(row, 4), token)
			ptx.StGlobal(e.pairs.Index(row, 4), row)
			ptx.StGlobal(e.inverse.Index(row, 4), row)
		})
	})
	threads := k.NctaidX().MulI(planThreads)
	k.For(e.by.rows.Add(e.cta.MulI(planThreads)).Add(e.tid), e.entries, threads, func(entry ptx.U32) {
		ptx.StGlobal(e.inverse.Index(entry, 4), ptx.Uint(NoRow))
	})
	e.by.regroup(e.tokens, func(row ptx.U32) ptx.U32 { return row })
	e.writeTable()
	return k.Build()
}

// findExperts finds the experts' first rows.
func (e *planSorted) findExperts() {
	k := e.k
	k.For(e.tid, ptx.Uint(e.experts+1), ptx.Uint(planThreads), func(expert ptx.U32) {
		at := e.search(ptx.Uint(0), e.entries, e.ids, expert)
		ptx.StShared(e.word(e.first, expert), at[0])
	})
}

// findTokens finds the rows of the CTA's tokens in each expert.
func (e *planSorted) findTokens() {
	k := e.k
	// Past the last token are those that no list should have.
	bound := func(token ptx.U32) ptx.U32 { return ptx.Select(token.Lt(e.tokens), token, ptx.Uint(NoRow)) }
	k.For(e.tid, ptx.Uint(e.experts), ptx.Uint(planThreads), func(expert ptx.U32) {
		first, end := ptx.LdShared[ptx.U32](e.word(e.first, expert)), ptx.LdShared[ptx.U32](e.word(e.first, expert.AddI(1)))
		at := e.search(first, end.Sub(first), e.tokenOf, bound(e.by.from), bound(e.by.to))
		ptx.StShared(e.word(e.total, expert), end.Sub(first))
		ptx.StShared(e.word(e.low, expert), at[0])
		ptx.StShared(e.word(e.ahead, expert), at[1].Sub(at[0]))
		k.RedSharedAdd(e.by.before, at[0].Sub(first))
	})
}

// search finds, of n words from the first on, the first that is not below each
// bound. All bounds are looked for with the same steps, which a larger bound's
// result can't be before a smaller one's with, whatever the words are.
func (e *planSorted) search(first, n ptx.U32, words ptx.Global, bounds ...ptx.U32) (found []ptx.U32) {
	k := e.k
	at := ptx.NewVars(k, len(bounds), first)
	left := ptx.NewVar(k, n)
	step := func(by ptx.U32, probe ptx.U32) {
		for i, bound := range bounds {
			below := ptx.LdGlobal[ptx.U32](words.Index(at[i].Get().Add(probe), 4)).Lt(bound).Or(bound.Eq(ptx.Uint(NoRow)))
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

// sumAhead turns the counts of the CTA's rows into sums over the experts before,
// in one warp.
func (e *planSorted) sumAhead() {
	k := e.k
	sum := ptx.NewVar(k, ptx.Uint(0))
	k.For(ptx.Uint(0), ptx.Uint(e.experts), ptx.Uint(32), func(first ptx.U32) {
		expert, n := first.Add(e.lane), ptx.NewVar(k, ptx.Uint(0))
		k.If(expert.LtI(e.experts), func() { n.Set(ptx.LdShared[ptx.U32](e.word(e.ahead, expert))) })
		up := inclusive(n.Get(), e.lane)
		k.If(expert.LtI(e.experts), func() {
			ptx.StShared(e.word(e.ahead, expert), sum.Get().Add(up).Sub(n.Get()))
		})
		sum.Set(sum.Get().Add(up.ShflIdx(ptx.Uint(31))))
	})
	ptx.StShared(e.word(e.ahead, ptx.Uint(e.experts)), sum.Get())
}

// eachRow runs body for the thread's part of the rows of the CTA's tokens; past
// the last one the token is nobody's.
func (e *planSorted) eachRow(body func(row, token ptx.U32)) {
	k := e.k
	rows := ptx.LdShared[ptx.U32](e.word(e.ahead, ptx.Uint(e.experts)))
	steps := 1
	for steps < e.experts {
		steps *= 2
	}
	k.For(e.tid, rows, ptx.Uint(byTokenLoads*planThreads), func(first ptx.U32) {
		var rowOf, tokens [byTokenLoads]*ptx.Var[ptx.U32]
		for i := range tokens {
			nth := first.AddI(i * planThreads)
			rowOf[i], tokens[i] = ptx.NewVar(k, ptx.Uint(NoRow)), ptx.NewVar(k, ptx.Uint(NoRow))
			k.If(nth.Lt(rows), func() {
				// The last expert with no more rows ahead of it.
				expert := ptx.NewVar(k, ptx.Uint(0))
				for half := steps / 2; half > 0; half /= 2 {
					next := expert.Get().AddI(half)
					in := next.MinI(e.experts)
					less := ptx.LdShared[ptx.U32](e.word(e.ahead, in)).Le(nth).And(next.LtI(e.experts))
					expert.Set(ptx.Select(less, next, expert.Get()))
				}
				row := ptx.LdShared[ptx.U32](e.word(e.low, expert.Get())).Add(nth).Sub(ptx.LdShared[ptx.U32](e.word(e.ahead, expert.Get())))
				rowOf[i].Set(row)
				tokens[i].Set(ptx.LdGlobal[ptx.U32](e.tokenOf.Index(row, 4)).Max(e.by.from).Min(e.by.to.SubI(1)))
			})
		}
		for i, token := range tokens {
			body(rowOf[i].Get(), token.Get())
		}
	})
}

// SortedKernel is Sorted's.
var SortedKernel = &registry.Kernel[SortedArgs]{KernelName: "plan-sorted", Only: spec.Config.Rounds, Emit: func(l registry.Layer) (*jit.Kernel[SortedArgs], error) {
	return Sorted{NumExperts: l.NumExperts}.Build()
}}
