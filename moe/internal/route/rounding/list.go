package rounding

import (
	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/pipeline"
	"sonicmoe/moe/internal/lanes"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/route/order"
	"sonicmoe/ptx"
)

// List lists the tokens of each expert, by expert, then token: the tokens with keys above the
// expert's cutoff, and the lowest of the tokens with keys equal to the cutoff. The rest of the list
// gets no expert. One CTA lists one expert's tokens, and each of its warps handles consecutive
// tokens.
type List struct {
	NumExperts int
	spec.Rounding
}

const (
	listThreads = 1024
	listWarps   = listThreads / lanes.Count
)

// ListArgs are the arguments of [List].
type ListArgs struct {
	// Keys and Raw [E, T] come from [Keys], and Cutoffs [E, 4] u32 from [Cutoff].
	Keys, Raw, Cutoffs driver.DevicePtr
	// TokenOf and ExpertIDs [L] i32 and Scores [L] f32 are outputs: the list. Entries is L.
	TokenOf, ExpertIDs, Scores driver.DevicePtr
	Tokens, Entries            int
}

// list is the state of a List while its code is emitted.
type list struct {
	List
	k                       *ptx.Kernel
	tid, warp, lane, expert ptx.U32
	keys, cutoffs           ptx.Global
	raw                     ptx.Global // used with RawScores
	tokenOf, ids, scores    ptx.Global
	tokens, entries         ptx.U32
	rows                    ptx.Shared // number of rows of the experts before this one, and of all experts
	perWarp                 ptx.Shared // for each warp, the number of keys above the cutoff, and of keys equal to it
}

// share is the warp's part of the expert's keys.
type share struct {
	keys       ptx.Global // the expert's row of keys
	from, to   ptx.U32    // the range [from, to) of the warp's tokens
	last, ties ptx.U32    // the cutoff's key, and the number of listed tokens with exactly this key
}

// passed has two counts of the keys of the tokens before some token: the keys above the cutoff, and
// the keys equal to the cutoff.
type passed struct{ above, equal *ptx.Var[ptx.U32] }

// Build emits the kernel.
func (t List) Build() (*jit.Kernel[ListArgs], error) {
	k := jit.NewBuilder[ListArgs]("moe_rounding_list", listThreads, 1)
	k.CTAs(func(*ListArgs) int { return t.NumExperts })
	e := t.operands(k)
	order.ClearWords(k.Kernel, e.rows, 2, e.tid, listThreads)
	k.BarSync(ptx.Uint(0))
	k.GridDepWait()
	k.GridDepLaunch()

	e.countRows()
	of := e.share()
	before := e.countBefore(of)
	first, total := ptx.LdShared[ptx.U32](e.rows), ptx.LdShared[ptx.U32](e.rows.At(4))
	e.list(of, before, first)
	k.For(total.Add(e.expert.MulI(listThreads)).Add(e.tid), e.entries, ptx.Uint(listThreads*t.NumExperts), func(i ptx.U32) {
		ptx.StGlobal(e.tokenOf.Index(i, 4), ptx.Uint(order.NoRow))
		ptx.StGlobal(e.ids.Index(i, 4), ptx.Uint(order.NoRow))
		ptx.StGlobal(e.scores.Index(i, 4), ptx.Uint(0))
	})
	return k.Build()
}

// operands declares the tensors and the shared memory, and reads the numbers of the thread, its
// warp and its CTA.
func (t List) operands(k *jit.Builder[ListArgs]) *list {
	e := &list{List: t, k: k.Kernel, keys: k.Ptr(&k.Args.Keys), cutoffs: k.Ptr(&k.Args.Cutoffs)}
	if t.RawScores {
		e.raw = k.Ptr(&k.Args.Raw)
	}
	e.tokenOf, e.ids, e.scores = k.Ptr(&k.Args.TokenOf), k.Ptr(&k.Args.ExpertIDs), k.Ptr(&k.Args.Scores)
	e.tokens, e.entries = k.U32(&k.Args.Tokens), k.U32(&k.Args.Entries)
	e.tid, e.expert = k.TidX(), k.CtaidX()
	e.lane, e.warp = k.Lane(), k.Warp()
	cta := pipeline.NewCTA(k.Kernel)
	e.rows, e.perWarp = cta.Shared("rows", 8, 8), cta.Shared("perWarp", 8*listWarps, 8)
	return e
}

// share loads the expert's cutoff, and finds the warp's part of the expert's keys.
func (e *list) share() share {
	choice := ptx.LdGlobalVec[ptx.U32](e.cutoffs.Index(e.expert, CutoffBytes), 4)
	of := share{keys: rowOf(e.keys, e.expert, e.tokens), last: choice[1], ties: choice[2]}
	each := e.tokens.AddI(keysAtOnce*listThreads - 1).DivI(keysAtOnce * listThreads).MulI(keysAtOnce * lanes.Count)
	of.from = e.warp.Mul(each).Min(e.tokens)
	of.to = of.from.Add(each).Min(e.tokens)
	return of
}

// countRows sums the rows of the experts before this one, and of all experts.
func (e *list) countRows() {
	e.k.For(e.tid, ptx.Uint(e.NumExperts), ptx.Uint(listThreads), func(of ptx.U32) {
		n := ptx.LdGlobal[ptx.U32](e.cutoffs.Index(of, CutoffBytes))
		e.k.RedSharedAdd(e.rows.At(4), n)
		e.k.If(of.Lt(e.expert), func() { e.k.RedSharedAdd(e.rows, n) })
	})
}

// countBefore counts the keys above the cutoff, and the keys equal to it, of the warps before this
// one.
func (e *list) countBefore(of share) passed {
	k := e.k
	n := passed{ptx.NewVar(k, ptx.Uint(0)), ptx.NewVar(k, ptx.Uint(0))}
	e.eachKeys(of, func(_ ptx.U32, _ []ptx.U32, isAbove, isEqual ballots) { n.add(isAbove, isEqual) })
	k.If(e.lane.EqI(0), func() { ptx.StShared(e.perWarp.Plus(e.warp.ShlI(3)), n.above.Get(), n.equal.Get()) })
	k.BarSync(ptx.Uint(0))
	n.above.Set(ptx.Uint(0))
	n.equal.Set(ptx.Uint(0))
	k.For(ptx.Uint(0), e.warp, ptx.Uint(1), func(w ptx.U32) {
		other := ptx.LdSharedVec[ptx.U32](e.perWarp.Plus(w.ShlI(3)), 2)
		n.above.Set(n.above.Get().Add(other[0]))
		n.equal.Set(n.equal.Get().Add(other[1]))
	})
	return n
}

// add counts the keys of a group.
func (n passed) add(isAbove, isEqual ballots) {
	all := ptx.Uint(ptx.FullMask)
	n.above.Set(n.above.Get().Add(isAbove.among(all)))
	n.equal.Set(n.equal.Get().Add(isEqual.among(all)))
}

// list writes the warp's tokens that the expert gets. The parameter n counts the keys before the
// warp's first token, and first is the expert's first row.
func (e *list) list(of share, n passed, first ptx.U32) {
	k := e.k
	below := k.LanemaskLt()
	e.eachKeys(of, func(token ptx.U32, keys []ptx.U32, isAbove, isEqual ballots) {
		aboveUp, equalUp := n.above.Get().Add(isAbove.among(below)), n.equal.Get().Add(isEqual.among(below))
		for i, key := range keys {
			// The expert gets the first of the tokens with keys equal to the cutoff.
			place := first.Add(aboveUp).Add(equalUp.Min(of.ties))
			k.If(isAbove.own[i].Or(isEqual.own[i].And(equalUp.Lt(of.ties))), func() {
				ptx.StGlobal(e.tokenOf.Index(place, 4), token.AddI(i))
				ptx.StGlobal(e.ids.Index(place, 4), e.expert)
				weight := key.AndI(scoreBits)
				if e.RawScores {
					weight = ptx.LdGlobal[ptx.U32](rowOf(e.raw, e.expert, e.tokens).Index(token.AddI(i), 4))
				}
				ptx.StGlobal(e.scores.Index(place, 4), weight)
			})
			aboveUp = aboveUp.Add(ptx.Select(isAbove.own[i], ptx.Uint(1), ptx.Uint(0)))
			equalUp = equalUp.Add(ptx.Select(isEqual.own[i], ptx.Uint(1), ptx.Uint(0)))
		}
		n.add(isAbove, isEqual)
	})
}

// ballots tells which of the warp's keys fulfil a condition. perKey[i] has a bit for the i-th key
// of each lane. own[i] reports whether the lane's own i-th key fulfils the condition.
type ballots struct {
	perKey []ptx.U32
	own    []ptx.Pred
}

// among counts the keys in the lanes of mask that fulfil the condition.
func (l ballots) among(mask ptx.U32) ptx.U32 {
	n := ptx.Uint(0)
	for _, b := range l.perKey {
		n = n.Add(b.And(mask).Popc())
	}
	return n
}

// eachKeys runs body for each group of neighbouring keys of the warp, and tells which keys are
// above the cutoff and which are equal to it.
func (e *list) eachKeys(of share, body func(token ptx.U32, keys []ptx.U32, isAbove, isEqual ballots)) {
	eachKeys(e.k, of.keys, of.from, of.to, e.lane, lanes.Count, func(token ptx.U32, keys []ptx.U32) {
		var isAbove, isEqual ballots
		add := func(l *ballots, p ptx.Pred) {
			l.perKey, l.own = append(l.perKey, e.k.VoteBallot(p, ptx.Uint(ptx.FullMask))), append(l.own, p)
		}
		for i, key := range keys {
			there := token.AddI(i).Lt(of.to)
			add(&isAbove, there.And(key.Gt(of.last)))
			add(&isEqual, there.And(key.Eq(of.last)))
		}
		body(token, keys, isAbove, isEqual)
	})
}

// ListKernel lists the tokens of layers that round.
var ListKernel = &registry.Kernel[ListArgs]{KernelName: "rounding-list", Only: spec.Config.Rounds, Emit: func(l registry.Layer) (*jit.Kernel[ListArgs], error) {
	return List{NumExperts: l.NumExperts, Rounding: l.Rounding}.Build()
}}
