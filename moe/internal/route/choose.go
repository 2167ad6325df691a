package route

import (
	"sonicmoe/driver"
	"sonicmoe/jit"
	"sonicmoe/jit/pipeline"
	"sonicmoe/moe/internal/element"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/spec"
	"sonicmoe/ptx"
)

// This file is the choice from logits by warps: of few tokens, and of a lone one
// in another kernel.

// Choose is top-K, scores and the plan of few tokens, in one CTA: what Router
// does behind its product, a warp for each token, and then Plan.
type Choose struct {
	Router
	// Pairs is [Plan]'s.
	Pairs bool
}

// ChooseArgs are the arguments of [Choose].
type ChooseArgs struct {
	// FewLogits [T, E] f32 are the router's sums.
	FewLogits driver.DevicePtr
	// Scores [T, K] f32 and ExpertIDs [T, K] i32 are written, best first.
	Scores driver.DevicePtr
	// Logits [T, E], in the layer's format, are written unless 0.
	Logits driver.DevicePtr
	// PlanTensors are the plan's, of which ExpertIDs is written.
	PlanTensors
	// Tokens is T, at most MostAtOnce.
	Tokens int
}

// MostAtOnce is how many tokens Choose takes: four rounds of a warp for each.
const MostAtOnce = 64

// Build emits the kernel.
func (c Choose) Build() (*jit.Kernel[ChooseArgs], error) {
	k := jit.NewBuilder[ChooseArgs]("moe_choose", planThreads, 1)
	from, scores, to := k.Ptr(&k.Args.FewLogits), k.Ptr(&k.Args.Scores), k.Ptr(&k.Args.Logits)
	ids, cta := k.Ptr(&k.Args.ExpertIDs), pipeline.NewCTA(k.Kernel)
	e := Plan{NumExperts: c.NumExperts, TopK: c.TopK, Pairs: c.Pairs}.declare(k.Kernel, cta, k, &k.Args.PlanTensors)
	tokens := k.U32(&k.Args.Tokens)
	chosen := cta.Shared("chosen", 4*MostAtOnce*c.TopK, 4)
	e.alone, e.id = true, func(pair ptx.U32) ptx.U32 { return ptx.LdShared[ptx.U32](chosen.Plus(pair.ShlI(2))) }
	e.clear()
	k.GridDepWait()
	k.GridDepLaunch()
	r := router{Router: c.Router, k: k.Kernel, logits: to}
	k.For(e.warp, tokens, ptx.Uint(planWarps), func(token ptx.U32) {
		r.choose(from.Index(token, 4*c.NumExperts), token, e.lane, func(slot ptx.U32, score ptx.F32, id ptx.U32) {
			at := token.Mad(ptx.Uint(c.TopK), slot)
			ptx.StGlobal(scores.Index(at, 4), score)
			ptx.StGlobal(ids.Index(at, 4), id)
			ptx.StShared(chosen.Plus(at.ShlI(2)), id)
		})
	})
	k.BarSync(ptx.Uint(0))
	all := e.segment(ptx.Uint(0), tokens.MulI(c.TopK))
	e.countWarps(all)
	e.finish(all)
	return k.Build()
}

// Lone is the choice of a lone token's experts by one warp of another kernel: what
// Choose does, without a plan.
type Lone struct {
	Router
	// Sums [E] f32 are the router's.
	Sums ptx.Global
	// Logits [E], in the layer's format, are written unless its address is 0.
	Logits ptx.Global
}

// HasLone reports whether a layer's products choose a lone token's experts: by
// the router's sums alone, and rows of their weights must be lines.
func HasLone(c spec.Config) bool {
	return InRouter(c) && !c.RouterF32 && !c.ScoreOnInput && c.WeightOrder == spec.OutIn
}

// Choose emits the choice. In the lane that has a slot's, take gets its score and
// expert; slots go by score, the best first.
func (l Lone) Choose(k *ptx.Kernel, lane ptx.U32, take func(slot ptx.U32, score ptx.F32, id ptx.U32)) {
	r := router{Router: l.Router, k: k, logits: l.Logits}
	r.choose(l.Sums, ptx.Uint(0), lane, take)
}

// choose has one warp choose a token's experts: lane l has the logits of
// experts 2l and 2l+1 of each 64.
func (e *router) choose(from ptx.Global, token, lane ptx.U32, take func(slot ptx.U32, score ptx.F32, id ptx.U32)) {
	if e.Logits == spec.LogitsF32 {
		chooseBy(e, longKeys(e.k), from, token, lane, take)
	} else {
		chooseBy(e, shortKeys(e.k, element.OfLogits(e.Logits)), from, token, lane, take)
	}
}

func chooseBy[K ptx.Value](e *router, key keyMath[K], from ptx.Global, token, lane ptx.U32, take func(slot ptx.U32, score ptx.F32, id ptx.U32)) {
	k := e.k
	first := lane.MulI(2)
	keys := warpKeys(e, key, from, token, first)
	sel := newSelection(k, key, e.Router, lane)
	if e.All {
		sel.sumWarp(keys)
	}
	// The best of the warp leaves its lane, K times.
	var top []K
	for range e.TopK {
		best := keys[0].Get()
		for _, v := range keys[1:] {
			best = key.max(best, v.Get())
		}
		best = key.warpMax(best)
		top = append(top, best)
		for _, v := range keys {
			v.Set(ptx.Select(key.equal(v.Get(), best), key.none, v.Get()))
		}
	}
	sel.keep(0, top)
	score, id := sel.finish(0)
	k.If(lane.LtI(4), func() {
		for s := range score {
			slot := lane.AddI(4 * s)
			k.If(slot.LtI(e.TopK), func() { take(slot, score[s], id[s]) })
		}
	})
}

// warpKeys are the keys of a lane's experts, whose logits it writes out too.
func warpKeys[K ptx.Value](e *router, key keyMath[K], from ptx.Global, token, first ptx.U32) (keys []*ptx.Var[K]) {
	k := e.k
	var logits [][2]ptx.F32
	at := from.Index(first, 4)
	for column := 0; column < e.NumExperts; column += 64 {
		var pair [2]ptx.F32
		for i := range pair {
			v := ptx.NewVar(k, ptx.Float(0))
			load := func() { v.Set(ptx.LdGlobal[ptx.F32](at.At(4 * (column + i)))) }
			if column+64 <= e.NumExperts {
				load()
			} else {
				k.If(first.AddI(column+i).LtI(e.NumExperts), load)
			}
			pair[i] = v.Get()
		}
		logits = append(logits, pair)
	}
	bytes := int(e.Logits.Type().Bytes())
	k.If(e.logits.Given(), func() {
		to := e.logits.Index(token, bytes*e.NumExperts).Index(first, bytes)
		for j, pair := range logits {
			for i, x := range pair {
				k.If(first.AddI(64*j+i).LtI(e.NumExperts), func() { writeLogit(k, e.Logits, to.At(bytes*(64*j+i)), x) })
			}
		}
	})
	for j, pair := range logits {
		codes := [2]int{expertMask - 64*j, expertMask - 64*j - 1}
		for i, v := range key.of(pair, codes) {
			v = key.beyond(v, first)
			if 64*(j+1) > e.NumExperts {
				v = ptx.Select(first.AddI(64*j+i).LtI(e.NumExperts), v, key.none)
			}
			keys = append(keys, ptx.NewVar(k, v))
		}
	}
	return keys
}

// ChooseKernel is the choice of few tokens.
var ChooseKernel = &registry.Kernel[ChooseArgs]{KernelName: "choose", Only: InRouter, Emit: func(l registry.Layer) (*jit.Kernel[ChooseArgs], error) {
	return Choose{Router{Hidden: l.Hidden, NumExperts: l.NumExperts, TopK: l.TopK, Logits: l.Logits, All: l.Score == spec.SoftmaxAll}, l.ScoreOnInput}.Build()
}}
