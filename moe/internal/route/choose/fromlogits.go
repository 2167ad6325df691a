package choose

import (
	"math"

	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/pipeline"
	"sonicmoe/moe/internal/element"
	"sonicmoe/moe/internal/lanes"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/route/order"
	"sonicmoe/moe/internal/route/scores"
	"sonicmoe/ptx"
)

// FromLogits chooses and scores each token's K experts from logits in memory, for all kinds of
// scores that package spec defines. One warp handles a token. One CTA handles a range of tokens,
// and counts for the plan how many of them chose each expert.
type FromLogits struct{ spec.Config }

const (
	fromLogitsThreads = 512
	fromLogitsWarps   = fromLogitsThreads / lanes.Count
)

// FromLogitsArgs are the arguments of [FromLogits].
type FromLogitsArgs struct {
	// Logits [T, E] are in the layer's format.
	Logits driver.DevicePtr
	// SelectionBias and ExpertScale, [E] f32, are read if the layer has them.
	SelectionBias, ExpertScale driver.DevicePtr
	// Scores [T, K] f32 and Experts [T, K] i32 are outputs, with the best expert first.
	Scores    driver.DevicePtr
	ExpertIDs driver.DevicePtr
	// Counts [CTAs, E] u32 is an output: for each CTA, how many of its tokens chose each expert.
	Counts driver.DevicePtr
	order.TokenRanges
}

// fromLogits is the state of a warp that chooses the experts of tokens, while its code is emitted.
type fromLogits struct {
	FromLogits
	fromLogitsTensors
	fromLogitsRoom
	k    *ptx.Kernel
	lane ptx.U32
}

// fromLogitsTensors are the parameters. bias and scale are set if the layer has them.
type fromLogitsTensors struct{ logits, bias, scale, scores, ids, allCounts ptx.Global }

func (s FromLogits) tensors(k *jit.Builder[FromLogitsArgs]) fromLogitsTensors {
	t := fromLogitsTensors{logits: k.Ptr(&k.Args.Logits)}
	if s.SelectionBias {
		t.bias = k.Ptr(&k.Args.SelectionBias)
	}
	if s.ExpertScale {
		t.scale = k.Ptr(&k.Args.ExpertScale)
	}
	t.scores, t.ids, t.allCounts = k.Ptr(&k.Args.Scores), k.Ptr(&k.Args.ExpertIDs), k.Ptr(&k.Args.Counts)
	return t
}

// fromLogitsRoom is the shared memory of a warp.
type fromLogitsRoom struct {
	counts ptx.Shared // the CTA's counts, which all warps share
	// keys [E] and kept [Groups] u32 exist if the layer has groups of experts: the key of each
	// expert, and whether each group is kept.
	keys, kept ptx.Shared
}

func (s FromLogits) room(cta *pipeline.CTA, warp ptx.U32) fromLogitsRoom {
	r := fromLogitsRoom{counts: cta.Shared("counts", 4*s.NumExperts, 16)}
	if s.Groups > 0 {
		r.keys = cta.Shared("keys", 4*s.NumExperts*fromLogitsWarps, 16).Plus(warp.MulI(4 * s.NumExperts))
		r.kept = cta.Shared("kept", 4*s.Groups*fromLogitsWarps, 16).Plus(warp.MulI(4 * s.Groups))
	}
	return r
}

// Build emits the kernel.
func (s FromLogits) Build() (*jit.Kernel[FromLogitsArgs], error) {
	k := jit.NewBuilder[FromLogitsArgs]("moe_topk", fromLogitsThreads, 1)
	k.CTAs(func(a *FromLogitsArgs) int { return a.Count() })
	tid, warp, lane := k.TidX(), k.Warp(), k.Lane()

	// Operands.
	in := s.tensors(k)
	tokens, perCTA := k.U32(&k.Args.Tokens), k.U32(&k.Args.PerCTA)

	// Shared memory has the CTA's counts and, with groups of experts, keys for each warp.
	e := fromLogits{FromLogits: s, fromLogitsTensors: in, fromLogitsRoom: s.room(pipeline.NewCTA(k.Kernel), warp), k: k.Kernel, lane: lane}
	order.ClearWords(k.Kernel, e.counts, s.NumExperts, tid, fromLogitsThreads)
	k.BarSync(ptx.Uint(0))
	k.GridDepWait()
	k.GridDepLaunch()

	// All warps have one role: a warp chooses and scores the experts of a token.
	from := k.CtaidX().Mul(perCTA)
	k.For(from.Add(warp), from.Add(perCTA).Min(tokens), ptx.Uint(fromLogitsWarps), func(token ptx.U32) {
		if s.Logits != spec.F32 && !s.SelectionBias {
			chooseFrom(&e, shortKeys(k.Kernel, element.OfLogits(s.Logits)), token)
		} else {
			chooseFrom(&e, longKeys(k.Kernel), token)
		}
	})
	k.BarSync(ptx.Uint(0))
	order.StoreCounts(k.Kernel, in.allCounts, e.counts, s.NumExperts, tid, fromLogitsThreads)
	return k.Build()
}

// chooseFrom chooses and scores the experts of a token.
func chooseFrom[K ptx.Value](e *fromLogits, key keyMath[K], token ptx.U32) {
	k := e.k
	pairs := e.load(token)
	raw := e.rawScore(pairs)
	keys := e.keysOf(pairs, raw)
	if e.Groups > 0 {
		e.keepGroups(keys, raw)
	}
	slot := bestKeys(k, key, e, keys)
	id := expertOf(key, slot)
	has := e.lane.LtI(e.TopK)
	logit := ptx.NewVar(k, key.value(slot))
	if e.SelectionBias { // the key has the biased score, so the lane loads the slot's logit again
		k.If(has, func() { logit.Set(e.logit(token, id)) })
	}
	weight, _ := scores.Normalize(e.Config, e.weight(logit.Get(), raw), has)
	if e.Scale() != 1 {
		weight = weight.Mul(ptx.Float(e.Scale()))
	}
	k.If(has, func() {
		if e.ExpertScale {
			weight = weight.Mul(ptx.LdGlobal[ptx.F32](e.scale.Index(id, 4), ".nc"))
		}
		at := token.MulI(e.TopK).Add(e.lane)
		ptx.StGlobal(e.scores.Index(at, 4), weight)
		ptx.StGlobal(e.ids.Index(at, 4), id)
		k.RedSharedAdd(e.counts.Plus(id.ShlI(2)), ptx.Uint(1))
	})
}

// first is the lane's first expert. A lane has two neighbouring experts of each 64.
func (e *fromLogits) first() ptx.U32 { return e.lane.MulI(2) }

// each runs body for the lane's experts. j is the number of a pair of neighbouring experts, and i
// is 0 or 1 in the pair. valid is false past the last expert.
func (e *fromLogits) each(body func(j, i int, expert ptx.U32, valid ptx.Pred)) {
	for j := range (e.NumExperts + 63) / 64 {
		for i := range 2 {
			expert, valid := e.first().AddI(64*j+i), ptx.True()
			if !e.whole(j) {
				valid = expert.LtI(e.NumExperts)
			}
			body(j, i, expert, valid)
		}
	}
}

// whole reports whether every lane has pair j.
func (e *fromLogits) whole(j int) bool { return 64*(j+1) <= e.NumExperts }

// load loads the logits of the lane's experts. They are -Inf past the last expert.
func (e *fromLogits) load(token ptx.U32) [][2]ptx.F32 {
	pairs := make([][2]ptx.F32, (e.NumExperts+63)/64)
	e.each(func(j, i int, expert ptx.U32, valid ptx.Pred) {
		if e.whole(j) {
			pairs[j][i] = e.logit(token, expert)
			return
		}
		v := ptx.NewVar(e.k, ptx.Float(math.Inf(-1)))
		e.k.If(valid, func() { v.Set(e.logit(token, expert)) })
		pairs[j][i] = v.Get()
	})
	return pairs
}

// logit loads a logit as FP32.
func (e *fromLogits) logit(token, expert ptx.U32) ptx.F32 {
	return scores.LoadLogit(e.Logits, e.logits.Index(token, int(e.Logits.Bytes())*e.NumExperts), expert)
}

// rawScore returns the function from a logit to its raw score, given all logits of the
// token. With SoftmaxTopK it returns the logit, see weight.
func (e *fromLogits) rawScore(pairs [][2]ptx.F32) func(logit ptx.F32) ptx.F32 {
	if e.Score != spec.SoftmaxAll {
		return func(logit ptx.F32) ptx.F32 { return scores.OfLogit(e.Score, logit) }
	}
	var most, sum ptx.F32
	for j, p := range pairs {
		of := p[0].Max(p[1], ".NaN")
		if j > 0 {
			of = of.Max(most, ".NaN")
		}
		most = of
	}
	most = lanes.Max(most)
	for j, p := range pairs {
		of := scores.Exp(p[0].Sub(most)).Add(scores.Exp(p[1].Sub(most)))
		if j > 0 {
			of = of.Add(sum)
		}
		sum = of
	}
	inverse := lanes.Sum(sum).RcpApprox(".ftz")
	return func(logit ptx.F32) ptx.F32 { return scores.Exp(logit.Sub(most)).Mul(inverse) }
}

// keysOf returns the values by which experts are compared: logits, or raw scores plus the selection
// bias.
func (e *fromLogits) keysOf(pairs [][2]ptx.F32, raw func(ptx.F32) ptx.F32) [][2]ptx.F32 {
	if !e.SelectionBias {
		return pairs
	}
	keys := make([][2]ptx.F32, len(pairs))
	e.each(func(j, i int, expert ptx.U32, _ ptx.Pred) {
		keys[j][i] = raw(pairs[j][i]).Add(biasOf(e.bias, expert, e.NumExperts))
	})
	return keys
}

// keepGroups finds the token's best groups of experts, and marks them in shared memory.
func (e *fromLogits) keepGroups(keys [][2]ptx.F32, raw func(ptx.F32) ptx.F32) {
	k, all := e.k, ptx.Uint(ptx.FullMask)
	e.each(func(j, i int, expert ptx.U32, valid ptx.Pred) {
		k.If(valid, func() { ptx.StShared(e.keys.Plus(expert.ShlI(2)), ordered(keys[j][i])) })
	})
	k.BarWarpSync(all)
	group := longKeys(k)
	var list []*ptx.Var[ptx.U64]
	for from := 0; from < e.Groups; from += 32 {
		of, v := e.lane.AddI(from), ptx.NewVar(k, group.none)
		k.If(of.LtI(e.Groups), func() {
			ptx.StShared(e.kept.Plus(of.ShlI(2)), ptx.Uint(0))
			v.Set(k.Pack64(ptx.Uint(expertMask).Sub(of), e.groupScore(of, raw)))
		})
		list = append(list, v)
	}
	k.For(ptx.Uint(0), ptx.Uint(e.TopGroups), ptx.Uint(1), func(ptx.U32) {
		best := largestOf(group, list)
		for i, v := range list {
			mine := group.equal(v.Get(), best)
			k.If(mine, func() {
				ptx.StShared(e.kept.Plus(e.lane.AddI(32*i).ShlI(2)), ptx.Uint(1))
				v.Set(group.none)
			})
		}
	})
	k.BarWarpSync(all)
}

// groupScore returns the score of a group, as bits of [ordered]. Each lane starts at a different
// expert of its group, so that the lanes read different banks of shared memory.
func (e *fromLogits) groupScore(group ptx.U32, raw func(ptx.F32) ptx.F32) ptx.U32 {
	size := e.NumExperts / e.Groups
	at := e.keys.Plus(group.MulI(4 * size))
	best, second := ptx.NewVar(e.k, ptx.Uint(0)), ptx.NewVar(e.k, ptx.Uint(0))
	of := ptx.NewVar(e.k, group.RemI(size))
	e.k.For(ptx.Uint(0), ptx.Uint(size), ptx.Uint(1), func(ptx.U32) {
		key := ptx.LdShared[ptx.U32](at.Plus(of.Get().ShlI(2)))
		second.Set(second.Get().Max(key.Min(best.Get())))
		best.Set(best.Get().Max(key))
		next := of.Get().AddI(1)
		of.Set(ptx.Select(next.EqI(size), ptx.Uint(0), next))
	})
	if !e.GroupSumOfTwo {
		return best.Get()
	}
	r := [2]ptx.F32{unordered(best.Get()), unordered(second.Get())}
	if !e.SelectionBias {
		r = [2]ptx.F32{raw(r[0]), raw(r[1])}
	}
	return ordered(r[0].Add(r[1]))
}

// bestKeys returns, in lane k, the k-th largest key of the warp. K times it finds the
// largest key and removes it from its lane.
func bestKeys[K ptx.Value](k *ptx.Kernel, key keyMath[K], e *fromLogits, values [][2]ptx.F32) K {
	var keys []*ptx.Var[K]
	for j, pair := range values {
		for _, v := range key.of(pair, [2]int{expertMask - 64*j, expertMask - 64*j - 1}) {
			keys = append(keys, ptx.NewVar(k, key.beyond(v, e.first())))
		}
	}
	e.each(func(j, i int, expert ptx.U32, valid ptx.Pred) {
		v := keys[2*j+i]
		if !e.whole(j) {
			v.Set(ptx.Select(valid, v.Get(), key.none))
		}
		if e.Groups > 0 {
			of := expert.Min(ptx.Uint(e.NumExperts - 1)).DivI(e.NumExperts / e.Groups)
			kept := ptx.LdShared[ptx.U32](e.kept.Plus(of.ShlI(2)))
			v.Set(ptx.Select(kept.NeI(0), v.Get(), key.none))
		}
	})
	if e.Groups > 0 {
		k.BarWarpSync(ptx.Uint(ptx.FullMask)) // waits until all lanes have read kept, which the next token overwrites
	}
	slot := ptx.NewVar(k, key.none)
	k.For(ptx.Uint(0), ptx.Uint(e.TopK), ptx.Uint(1), func(i ptx.U32) {
		best := largestOf(key, keys)
		slot.Set(ptx.Select(e.lane.Eq(i), best, slot.Get()))
		for _, v := range keys {
			v.Set(ptx.Select(key.equal(v.Get(), best), key.none, v.Get()))
		}
	})
	return slot.Get()
}

// largestOf returns the largest key of the warp.
func largestOf[K ptx.Value](key keyMath[K], keys []*ptx.Var[K]) K {
	best := keys[0].Get()
	for _, v := range keys[1:] {
		best = key.max(best, v.Get())
	}
	return key.warpMax(best)
}

// weight returns the raw score of the lane's slot. With SoftmaxTopK it takes the softmax over
// the logits of all slots; slot 0 has the largest.
func (e *fromLogits) weight(logit ptx.F32, raw func(ptx.F32) ptx.F32) ptx.F32 {
	if e.Score != spec.SoftmaxTopK {
		return raw(logit)
	}
	p := scores.Exp(logit.Sub(logit.Bits().ShflIdx(ptx.Uint(0)).AsF32()))
	return p.Mul(lanes.Sum(ptx.Select(e.lane.LtI(e.TopK), p, ptx.Float(0))).RcpApprox(".ftz"))
}

// FromLogitsKernel is for layers whose router's epilogue does not choose.
var FromLogitsKernel = &registry.Kernel[FromLogitsArgs]{KernelName: "topk", Roofline: registry.Works{spec.TopKWork}, Only: outsideRouter, Emit: func(l registry.Layer) (*jit.Kernel[FromLogitsArgs], error) {
	return FromLogits{l.Config}.Build()
}}
