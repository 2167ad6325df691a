package route

import (
	"sonicmoe/driver"
	"sonicmoe/jit"
	"sonicmoe/jit/pipeline"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/spec"
	"sonicmoe/ptx"
)

// Take lists the tokens that Allot gave each expert, by expert, then token.
// What is left of the list has no expert. A CTA has one expert, a warp of it a
// run of tokens.
type Take struct {
	NumExperts int
	spec.Rounding
}

const (
	takeThreads = 512
	takeWarps   = takeThreads / 32
)

// TakeArgs are the arguments of [Take].
type TakeArgs struct {
	// Keys and Raw [E, T] are Prefer's, Choices [E, 4] u32 Allot's.
	Keys, Raw, Choices driver.DevicePtr
	// TokenOf and ExpertIDs [L] i32 and Scores [L] f32 are written.
	TokenOf, ExpertIDs, Scores driver.DevicePtr
	Tokens, Entries            int
}

// take is the emission of a Take.
type take struct {
	Take
	k          *ptx.Kernel
	lane       ptx.U32
	from, to   ptx.U32 // the warp's tokens
	last, most ptx.U32 // the last key, and how many with it are taken
	keys       ptx.Global
}

// Build emits the kernel.
func (t Take) Build() (*jit.Kernel[TakeArgs], error) {
	k := jit.NewBuilder[TakeArgs]("moe_take", takeThreads, 1)
	k.CTAs(func(*TakeArgs) int { return t.NumExperts })
	keys, choices := k.Ptr(&k.Args.Keys), k.Ptr(&k.Args.Choices)
	var raw ptx.Global
	if t.RawScores {
		raw = k.Ptr(&k.Args.Raw)
	}
	tokenOf, ids, scores := k.Ptr(&k.Args.TokenOf), k.Ptr(&k.Args.ExpertIDs), k.Ptr(&k.Args.Scores)
	tokens, size := k.U32(&k.Args.Tokens), k.U32(&k.Args.Entries)
	tid, expert := k.TidX(), k.CtaidX()
	e := take{Take: t, k: k.Kernel, lane: tid.AndI(31)}
	warp := tid.ShrI(5)
	cta := pipeline.NewCTA(k.Kernel)
	rows, perWarp := cta.Shared("rows", 8, 8), cta.Shared("perWarp", 8*takeWarps, 8)
	clearWords(k.Kernel, rows, 2, tid, takeThreads)
	k.BarSync(ptx.Uint(0))
	k.GridDepWait()
	k.GridDepLaunch()

	// Rows of the experts before this one, and of all.
	k.For(tid, ptx.Uint(t.NumExperts), ptx.Uint(takeThreads), func(of ptx.U32) {
		n := ptx.LdGlobal[ptx.U32](choices.Index(of, ChoiceBytes))
		k.RedSharedAdd(rows.At(4), n)
		k.If(of.Lt(expert), func() { k.RedSharedAdd(rows, n) })
	})
	choice := ptx.LdGlobalVec[ptx.U32](choices.Index(expert, ChoiceBytes), 4)
	e.last, e.most = choice[1], choice[2]
	e.keys = rowOf(keys, expert, tokens)
	each := tokens.AddI(takeThreads - 1).DivI(takeThreads).MulI(32)
	e.from = warp.Mul(each).Min(tokens)
	e.to = e.from.Add(each).Min(tokens)

	above, equal := ptx.NewVar(k.Kernel, ptx.Uint(0)), ptx.NewVar(k.Kernel, ptx.Uint(0))
	e.eachKey(func(_, _ ptx.U32, isAbove, isEqual ptx.U32) {
		above.Set(above.Get().Add(isAbove.Popc()))
		equal.Set(equal.Get().Add(isEqual.Popc()))
	})
	k.If(e.lane.EqI(0), func() { ptx.StShared(perWarp.Plus(warp.ShlI(3)), above.Get(), equal.Get()) })
	k.BarSync(ptx.Uint(0))
	above.Set(ptx.Uint(0))
	equal.Set(ptx.Uint(0))
	k.For(ptx.Uint(0), warp, ptx.Uint(1), func(w ptx.U32) {
		n := ptx.LdSharedVec[ptx.U32](perWarp.Plus(w.ShlI(3)), 2)
		above.Set(above.Get().Add(n[0]))
		equal.Set(equal.Get().Add(n[1]))
	})
	first, total := ptx.LdShared[ptx.U32](rows), ptx.LdShared[ptx.U32](rows.At(4))
	below := k.LanemaskLt()
	e.eachKey(func(token, key, isAbove, isEqual ptx.U32) {
		// Of equal keys the lower tokens, as many as are left to take.
		equalUp := equal.Get().Add(isEqual.And(below).Popc())
		place := first.Add(above.Get()).Add(isAbove.And(below).Popc()).Add(equalUp.Min(e.most))
		taken := key.Gt(e.last).Or(key.Eq(e.last).And(equalUp.Lt(e.most)))
		k.If(token.Lt(e.to).And(taken), func() {
			ptx.StGlobal(tokenOf.Index(place, 4), token)
			ptx.StGlobal(ids.Index(place, 4), expert)
			weight := key.AndI(scoreBits)
			if t.RawScores {
				weight = ptx.LdGlobal[ptx.U32](rowOf(raw, expert, tokens).Index(token, 4))
			}
			ptx.StGlobal(scores.Index(place, 4), weight)
		})
		above.Set(above.Get().Add(isAbove.Popc()))
		equal.Set(equal.Get().Add(isEqual.Popc()))
	})
	k.For(total.Add(expert.MulI(takeThreads)).Add(tid), size, ptx.Uint(takeThreads*t.NumExperts), func(i ptx.U32) {
		ptx.StGlobal(tokenOf.Index(i, 4), ptx.Uint(NoRow))
		ptx.StGlobal(ids.Index(i, 4), ptx.Uint(NoRow))
		ptx.StGlobal(scores.Index(i, 4), ptx.Uint(0))
	})
	return k.Build()
}

// eachKey runs body for 32 tokens of the warp at a time, with the lanes whose
// keys are above the last one and equal to it.
func (e *take) eachKey(body func(token, key, isAbove, isEqual ptx.U32)) {
	k := e.k
	k.For(e.from, e.to, ptx.Uint(32*keysInFlight), func(first ptx.U32) {
		var keys [keysInFlight]*ptx.Var[ptx.U32]
		for i := range keys {
			token := first.AddI(32 * i).Add(e.lane)
			keys[i] = ptx.NewVar(k, ptx.Uint(0))
			k.If(token.Lt(e.to), func() { keys[i].Set(ptx.LdGlobal[ptx.U32](e.keys.Index(token, 4))) })
		}
		all := ptx.Uint(ptx.FullMask)
		for i, v := range keys {
			token, key := first.AddI(32*i).Add(e.lane), v.Get()
			there := token.Lt(e.to)
			body(token, key, k.VoteBallot(there.And(key.Gt(e.last)), all), k.VoteBallot(there.And(key.Eq(e.last)), all))
		}
	})
}

// TakeKernel is Take's.
var TakeKernel = &registry.Kernel[TakeArgs]{KernelName: "take", Only: spec.Config.Rounds, Emit: func(l registry.Layer) (*jit.Kernel[TakeArgs], error) {
	return Take{NumExperts: l.NumExperts, Rounding: l.Rounding}.Build()
}}
