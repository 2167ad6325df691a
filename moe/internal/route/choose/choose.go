package choose

import (
	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/pipeline"
	"sonicmoe/moe/internal/element"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/route/order"
	"sonicmoe/ptx"
)

// This file chooses experts from logits with one warp for each token. Small batches use it
// in kernels of one or several CTAs, and inside other kernels.

// Choose computes the top-K, the scores and the plan of up to [MaxAtOnce] tokens in one
// CTA. Each warp chooses for its tokens; then the CTA does the work of Plan.
type Choose struct {
	Router
	// Pairs is the option Pairs of [order.Plan].
	Pairs bool
}

// ChooseArgs are the arguments of [Choose].
type ChooseArgs struct {
	// SmallBatchLogits [T, E] f32 are the logits, as the kernel [SmallBatchLogits] writes them.
	SmallBatchLogits driver.DevicePtr
	// Scores [T, K] f32 and ExpertIDs [T, K] i32 are outputs, with the best expert first.
	Scores driver.DevicePtr
	// Logits [T, E], in the layer's format, is an output unless its address is 0.
	Logits driver.DevicePtr
	// PlanTensors are the tensors of the plan. ExpertIDs, an input of [order.Plan], is an output
	// here.
	order.PlanTensors
	// Tokens is T, at most MaxAtOnce.
	Tokens int
}

// MaxAtOnce is the largest batch of Choose: each warp chooses for four tokens.
const MaxAtOnce = 64

// Build emits the kernel.
func (c Choose) Build() (*jit.Kernel[ChooseArgs], error) {
	k := jit.NewBuilder[ChooseArgs]("moe_choose", order.PlanThreads, 1)
	from, scores, to := k.Ptr(&k.Args.SmallBatchLogits), k.Ptr(&k.Args.Scores), k.Ptr(&k.Args.Logits)
	ids, cta := k.Ptr(&k.Args.ExpertIDs), pipeline.NewCTA(k.Kernel)
	plan := order.Plan{NumExperts: c.NumExperts, TopK: c.TopK, Pairs: c.Pairs}.InOneCTA(k.Kernel, cta, k, &k.Args.PlanTensors)
	tokens := k.U32(&k.Args.Tokens)
	chosen := cta.Shared("chosen", 4*MaxAtOnce*c.TopK, 4)
	plan.Clear()
	k.GridDepWait()
	k.GridDepLaunch()
	r := chooser{Router: c.Router, k: k.Kernel, logits: to}
	k.For(plan.Warp, tokens, ptx.Uint(order.PlanWarps), func(token ptx.U32) {
		r.choose(from.Index(token, 4*c.NumExperts), token, plan.Lane, func([]ptx.U32) {}, ptx.True(), func(slot ptx.U32, score ptx.F32, id ptx.U32) {
			at := token.Mad(ptx.Uint(c.TopK), slot)
			ptx.StGlobal(scores.Index(at, 4), score)
			ptx.StGlobal(ids.Index(at, 4), id)
			ptx.StShared(chosen.Plus(at.ShlI(2)), id)
		})
	})
	k.BarSync(ptx.Uint(0))
	plan.Write(tokens.MulI(c.TopK), func(pair ptx.U32) ptx.U32 { return ptx.LdShared[ptx.U32](chosen.Plus(pair.ShlI(2))) })
	return k.Build()
}

// MaxByWarps is the largest number of tokens for [ChooseRanges]. For larger batches Router is as
// fast.
const MaxByWarps = 512

// ChooseRanges computes the top-K and the scores of a small batch that is too large for one CTA.
// Each CTA has a range of tokens, with one warp for each token. The CTA also counts, for Plan, how
// many of its tokens chose each expert.
type ChooseRanges struct{ Router }

// ChooseRangesArgs are the arguments of [ChooseRanges].
type ChooseRangesArgs struct {
	// SmallBatchLogits [T, E] f32 are the logits, as the kernel [SmallBatchLogits] writes them.
	SmallBatchLogits driver.DevicePtr
	// Scores [T, K] f32 and ExpertIDs [T, K] i32 are outputs, with the best expert first.
	Scores    driver.DevicePtr
	ExpertIDs driver.DevicePtr
	// Logits [T, E], in the layer's format, is an output unless its address is 0.
	Logits driver.DevicePtr
	// Counts [CTAs, E] u32 is an output: for each CTA, how many of its tokens chose each expert.
	Counts driver.DevicePtr
	// TokenRanges comes from [ChosenRanges].
	order.TokenRanges
}

// ChosenRanges returns the ranges of tokens for ChooseRanges and for the plan after it. If
// there are enough SMs, each warp has one token.
func ChosenRanges(tokens, sms int) order.TokenRanges {
	return order.RangesBy(order.PlanWarps, tokens, sms)
}

// Build emits the kernel.
func (c ChooseRanges) Build() (*jit.Kernel[ChooseRangesArgs], error) {
	k := jit.NewBuilder[ChooseRangesArgs]("moe_choose_ranges", order.PlanThreads, 1)
	k.CTAs(func(a *ChooseRangesArgs) int { return a.Count() })
	from, scores, ids := k.Ptr(&k.Args.SmallBatchLogits), k.Ptr(&k.Args.Scores), k.Ptr(&k.Args.ExpertIDs)
	to, counts := k.Ptr(&k.Args.Logits), k.Ptr(&k.Args.Counts)
	tokens, perCTA := k.U32(&k.Args.Tokens), k.U32(&k.Args.PerCTA)
	tid := k.TidX()
	own := pipeline.NewCTA(k.Kernel).Shared("counts", 4*c.NumExperts, 16)
	order.ClearWords(k.Kernel, own, c.NumExperts, tid, order.PlanThreads)
	k.BarSync(ptx.Uint(0))
	k.GridDepWait()
	k.GridDepLaunch()
	r := chooser{Router: c.Router, k: k.Kernel, logits: to}
	first := k.CtaidX().Mul(perCTA)
	k.For(first.Add(k.Warp()), first.Add(perCTA).Min(tokens), ptx.Uint(order.PlanWarps), func(token ptx.U32) {
		r.choose(from.Index(token, 4*c.NumExperts), token, k.Lane(), func([]ptx.U32) {}, ptx.True(), func(slot ptx.U32, score ptx.F32, id ptx.U32) {
			at := token.Mad(ptx.Uint(c.TopK), slot)
			ptx.StGlobal(scores.Index(at, 4), score)
			ptx.StGlobal(ids.Index(at, 4), id)
			k.RedSharedAdd(own.Plus(id.ShlI(2)), ptx.Uint(1))
		})
	})
	k.BarSync(ptx.Uint(0))
	order.StoreCounts(k.Kernel, counts, own, c.NumExperts, tid, order.PlanThreads)
	return k.Build()
}

// ByChains emits the choice of one token's experts into another kernel, for one warp. It does what
// Choose does, without a plan. Its inputs are the partial sums of the logits: the router's product
// divides a sum into chains, see mostChains.
type ByChains struct {
	Router
	// Sums [chains, T, E] f32 are the partial sums of each chain, before biases.
	Sums ptx.Global
	// Bias [E] f32 is read if the router has a bias.
	Bias ptx.Global
	// Logits [T, E], in the layer's format, is an output unless its address is 0.
	Logits ptx.Global
	// Tokens is T.
	Tokens ptx.U32
}

// ChoosesInProducts reports whether the layer's up-projections can choose the experts of up to
// MaxApart tokens themselves. For this, the choice must need only the router's sums, and the scores
// must not multiply the experts' inputs.
func ChoosesInProducts(c spec.Config) bool { return InRouter(c) && !c.RouterF32 && !c.ScoreOnInput }

// HasSingle reports whether the layer has kernels for a single token. Their weights must be
// contiguous along the sum.
func HasSingle(c spec.Config) bool { return ChoosesInProducts(c) && !c.InOut }

// Choose emits the choice. The function `found` gets the experts by slot, the best first, in every
// lane. If the predicate `scored` is true at run time, the function `take` then gets a slot's score
// and expert, in the lane that has the slot.
func (l ByChains) Choose(k *ptx.Kernel, token, lane ptx.U32, found func(experts []ptx.U32), scored ptx.Pred, take func(slot ptx.U32, score ptx.F32, id ptx.U32)) {
	r := chooser{Router: l.Router, k: k, logits: l.Logits, bias: l.Bias, apart: true, tokens: l.Tokens}
	r.choose(l.Sums.Index(token, 4*l.NumExperts), token, lane, found, scored, take)
}

// chooser is the choice of a token's experts by a warp.
type chooser struct {
	Router
	k *ptx.Kernel
	// logits is the output of the logits, unless its address is 0. bias has the router's biases.
	logits, bias ptx.Global
	// apart reports whether the sums of the chains are separate, as SmallBatchLogits with Apart
	// writes them. tokens is then the number of rows of each chain.
	apart  bool
	tokens ptx.U32
}

// choose emits the choice of a token's experts by a warp. Lane l has the logits of experts 64j+2l
// and 64j+2l+1, for each j.
func (e chooser) choose(from ptx.Global, token, lane ptx.U32, found func(experts []ptx.U32), scored ptx.Pred, take func(slot ptx.U32, score ptx.F32, id ptx.U32)) {
	if e.Logits == spec.F32 {
		chooseBy(e, longKeys(e.k), from, token, lane, found, scored, take)
	} else {
		chooseBy(e, shortKeys(e.k, element.OfLogits(e.Logits)), from, token, lane, found, scored, take)
	}
}

func chooseBy[K ptx.Value](e chooser, key keyMath[K], from ptx.Global, token, lane ptx.U32, found func(experts []ptx.U32), scored ptx.Pred, take func(slot ptx.U32, score ptx.F32, id ptx.U32)) {
	k := e.k
	first := lane.MulI(2)
	keys := warpKeys(e, key, from, token, first)
	sel := newSelection(k, key, e.Router, lane)
	var total ptx.F32
	if e.All {
		total = sel.sumWarp(keys)
	}
	top := warpTop(key, keys, e.TopK)
	experts := make([]ptx.U32, e.TopK)
	for slot, best := range top {
		experts[slot] = expertOf(key, best)
	}
	found(experts)
	k.If(scored, func() {
		sel.keep(0, top)
		score, id := sel.finish(0, total)
		k.If(lane.LtI(4), func() {
			for s := range score {
				slot := lane.AddI(4 * s)
				k.If(slot.LtI(e.TopK), func() { take(slot, score[s], id[s]) })
			}
		})
	})
}

// warpTop returns the n largest keys of a warp, in all lanes. Each lane sorts its own
// keys, so the largest key of the warp is the first key of some lane. warpTop takes it
// from that lane, n times.
func warpTop[K ptx.Value](key keyMath[K], own []K, n int) (top []K) {
	queue := topOf(key, own, n)
	for len(top) < n {
		best := key.warpMax(queue[0])
		top = append(top, best)
		leaves := key.equal(queue[0], best)
		next := make([]K, min(len(queue), n-len(top)))
		for i := range next {
			behind := key.none
			if i+1 < len(queue) {
				behind = queue[i+1]
			}
			next[i] = ptx.Select(leaves, behind, queue[i])
		}
		queue = next
	}
	return top
}

// warpKeys returns the keys of a lane's experts. It also stores their logits if Logits has
// an address.
func warpKeys[K ptx.Value](e chooser, key keyMath[K], from ptx.Global, token, first ptx.U32) (keys []K) {
	k := e.k
	var logits [][2]ptx.F32
	at := from.Index(first, 4)
	// With an even number of experts, pairs are aligned, and no pair is half past the end.
	together := 2 - e.NumExperts%2
	for column := 0; column < e.NumExperts; column += 64 {
		pair := ptx.NewVars(k, 2, ptx.Float(0))
		for i := 0; i < 2; i += together {
			load := func() { ptx.SetAll(pair[i:i+together], e.sumsOf(at, first, column+i, together)) }
			if column+64 <= e.NumExperts {
				load()
			} else {
				k.If(first.AddI(column+i).LtI(e.NumExperts), load)
			}
		}
		logits = append(logits, [2]ptx.F32{pair[0].Get(), pair[1].Get()})
	}
	bytes := int(e.Logits.Bytes())
	k.If(e.logits.Given(), func() {
		to := e.logits.Index(token, bytes*e.NumExperts).Index(first, bytes)
		for j, pair := range logits {
			for i, x := range pair {
				k.If(first.AddI(64*j+i).LtI(e.NumExperts), func() { storeLogit(k, e.Logits, to.At(bytes*(64*j+i)), x) })
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
			keys = append(keys, v)
		}
	}
	return keys
}

// sumsOf returns the logits of several neighbouring experts. The parameter `at` is the address of
// the sum of the expert with number `first`. The returned logits start at expert first + behind. If
// each chain's sums are stored separately, sumsOf adds the chains and the biases.
func (e chooser) sumsOf(at ptx.Global, first ptx.U32, behind, together int) []ptx.F32 {
	at = at.At(4 * behind)
	sums := ptx.LdGlobalVec[ptx.F32](at, together)
	if !e.apart {
		return sums
	}
	add := func(i int, x ptx.F32) { sums[i] = sums[i].Add(x) }
	chains, _ := e.chains()
	for i := 0; i < together && chains > 1; i++ {
		sums[i] = ptx.Float(0).Add(sums[i]) // the sum starts from 0, as in Router
	}
	for chain := 1; chain < chains; chain++ {
		for i, sum := range ptx.LdGlobalVec[ptx.F32](e.ofChain(at, chain), together) {
			add(i, sum)
		}
	}
	for i := 0; i < together && e.Bias; i++ {
		add(i, biasOf(e.bias, first.AddI(behind+i), e.NumExperts))
	}
	return sums
}

// ofChain returns the address of a chain's sum. The parameter `at` is the address of this sum in
// the first chain.
func (e chooser) ofChain(at ptx.Global, chain int) ptx.Global {
	if tokens, ok := e.tokens.Const(); ok { // a constant becomes the offset of the load instruction
		return at.At(4 * e.NumExperts * int(tokens) * chain)
	}
	return at.Index(e.tokens.MulI(chain), 4*e.NumExperts)
}

// ChooseKernel chooses for up to MaxAtOnce tokens. ChooseRangesKernel is for larger batches, up to
// MaxByWarps.
var (
	ChooseKernel = &registry.Kernel[ChooseArgs]{KernelName: "choose", Only: InRouter, Emit: func(l registry.Layer) (*jit.Kernel[ChooseArgs], error) {
		return Choose{chooserOf(l.Config), l.ScoreOnInput}.Build()
	}}
	ChooseRangesKernel = &registry.Kernel[ChooseRangesArgs]{KernelName: "choose-ranges", Only: InRouter, Emit: func(l registry.Layer) (*jit.Kernel[ChooseRangesArgs], error) {
		return ChooseRanges{chooserOf(l.Config)}.Build()
	}}
)

// chooserOf returns a Router with the properties of a layer's router that the choice needs.
func chooserOf(c spec.Config) Router {
	return Router{Hidden: c.Hidden, NumExperts: c.NumExperts, TopK: c.TopK, Logits: c.Logits, All: c.Score == spec.SoftmaxAll}
}
