package training

import (
	"math"

	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/pipeline"
	"sonicmoe/moe/internal/lanes"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/route/order"
	"sonicmoe/moe/internal/route/scores"
	"sonicmoe/ptx"
)

// DLogits computes the gradients of the logits from the gradients dS of the scores. It is for the
// kinds of scores for which the scores alone do not determine these gradients, see
// [ScoresTellLogits]. In the formulas, w_k is the raw score of slot k, z the norm, share_k = w_k/z,
// and dv_k is dS_k times the factors that multiply the share:
//
//	u_k = share_k·(dv_k - Σ_j share_j·dv_j)    without the sum if z is constant
//
//	SoftmaxTopK    dl_k = u_k - w_k·Σ_j u_j
//	SoftmaxAll     dl_e = u_e - p_e·Σ_j u_j    for every expert e: dense gradients
//	Sigmoid        dl_k = u_k·sigmoid(-l_k)
//	SqrtSoftplus   dl_k = u_k·sigmoid(l_k)/(2·softplus(l_k))
//
// One warp handles a token, and lane k has slot k.
type DLogits struct{ spec.Config }

// DLogitsArgs are the arguments of [DLogits].
type DLogitsArgs struct {
	// Logits [T, E] has the layer's format. If the forward pass does not save logits, Scores [T, K]
	// f32 is used instead. ExpertIDs [T, K] i32 are the chosen experts, and Inverse [T, K] u32 is
	// the packed row of each slot.
	Logits, Scores, ExpertIDs, Inverse driver.DevicePtr
	// DScores [T, K] f32 are the gradients of the scores.
	DScores driver.DevicePtr
	// ExpertScale [E] f32 is read if the layer has it. ScaleByRow [R] f32 is then an output: what
	// each row adds to the gradient of its expert's scale.
	ExpertScale, ScaleByRow driver.DevicePtr
	// DLogits [T, K] and DLogitByRow [R] f32 are outputs if the gradients are sparse.
	DLogits, DLogitByRow driver.DevicePtr
	// Dense [T, E] f32 is the output if the gradients are dense. If AddDense is not 0, it
	// is added to the gradients; it may be the same tensor.
	AddDense, Dense driver.DevicePtr
	// Tokens is T.
	Tokens int
}

// ScoresTellLogits reports whether the scores and their gradients determine the
// gradients of the chosen logits: the scores are a softmax over the K chosen
// logits, unscaled.
func ScoresTellLogits(c spec.Config) bool {
	return c.Score == spec.SoftmaxTopK && c.Scale() == 1 && !c.ExpertScale
}

// Dense reports whether all logits of a token have gradients, not only the chosen ones.
func Dense(c spec.Config) bool { return c.Score == spec.SoftmaxAll }

// Sparse reports whether only the chosen logits have gradients.
func Sparse(c spec.Config) bool { return !Dense(c) }

// dlogits is the state of a DLogits while the code of one warp is emitted.
type dlogits struct {
	DLogits
	k              *ptx.Kernel
	lane, token    ptx.U32
	logits, scores ptx.Global
	// scale and scaleByRow are used with ExpertScale, add and dense with dense gradients,
	// out and byRow with sparse gradients.
	scale, scaleByRow, out, byRow, add, dense ptx.Global
	// own [E] f32, for dense gradients, is the warp's array in shared memory.
	own ptx.Shared
}

// pair is the lane's pair of token and slot. mine reports whether the lane has one. index is the
// pair's index in tensors [T, K], id is its expert, row is its packed row, and ds is the gradient
// of its score. has reports whether the expert id is valid.
type pair struct {
	index, id, row ptx.U32
	mine, has      ptx.Pred
	ds             ptx.F32
}

// rawScore is the raw score of the lane's pair. If the raw score depends only on the pair's logit,
// slope is the factor after u_k in the formula of [DLogits]. For dense gradients, shares has the
// probabilities of the lane's experts, which are 32 apart.
type rawScore struct {
	weight, slope ptx.F32
	shares        []ptx.F32
}

// Build emits the kernel.
func (d DLogits) Build() (*jit.Kernel[DLogitsArgs], error) {
	k := jit.NewBuilder[DLogitsArgs]("moe_dlogits", dlogitsThreads, 1)
	k.CTAs(func(a *DLogitsArgs) int { return (a.Tokens + dlogitsWarps - 1) / dlogitsWarps })
	k.TidX()
	warp := k.Warp()
	e := dlogits{DLogits: d, k: k.Kernel, lane: k.Lane(), token: k.CtaidX().MulI(dlogitsWarps).Add(warp)}
	if d.SavesLogits() {
		e.logits = k.Ptr(&k.Args.Logits)
	} else {
		e.scores = k.Ptr(&k.Args.Scores)
	}
	ids, inverse, dscores := k.Ptr(&k.Args.ExpertIDs), k.Ptr(&k.Args.Inverse), k.Ptr(&k.Args.DScores)
	if d.ExpertScale {
		e.scale, e.scaleByRow = k.Ptr(&k.Args.ExpertScale), k.Ptr(&k.Args.ScaleByRow)
	}
	if Dense(d.Config) {
		e.add, e.dense = k.Ptr(&k.Args.AddDense), k.Ptr(&k.Args.Dense)
		e.own = pipeline.NewCTA(k.Kernel).Shared("own", 4*dlogitsWarps*d.NumExperts, 16).Plus(warp.MulI(4 * d.NumExperts))
	} else {
		e.out, e.byRow = k.Ptr(&k.Args.DLogits), k.Ptr(&k.Args.DLogitByRow)
	}
	tokens := k.U32(&k.Args.Tokens)
	k.GridDepWait()
	k.GridDepLaunch()
	k.If(e.token.Lt(tokens), func() {
		of := e.loadPair(ids, inverse, dscores)
		raw := e.raw(of)
		raw.weight = ptx.Select(of.has, raw.weight, ptx.Float(0))
		u := e.throughShare(of, raw.weight)
		if Dense(d.Config) {
			e.writeDense(of, raw, u)
			return
		}
		if d.Score == spec.SoftmaxTopK {
			u = u.Sub(raw.weight.Mul(lanes.Sum(u)))
		} else {
			u = ptx.Select(of.has, u.Mul(raw.slope), ptx.Float(0))
		}
		k.If(of.mine, func() { ptx.StGlobal(e.out.Index(of.index, 4), u) })
		k.If(of.row.NeI(order.NoRow), func() { ptx.StGlobal(e.byRow.Index(of.row, 4), u) })
	})
	return k.Build()
}

// loadPair loads the lane's pair.
func (e *dlogits) loadPair(ids, inverse, dscores ptx.Global) pair {
	k := e.k
	id, row, ds := ptx.NewVar(k, ptx.Uint(order.NoRow)), ptx.NewVar(k, ptx.Uint(order.NoRow)), ptx.NewVar(k, ptx.Float(0))
	of := pair{index: e.token.MulI(e.TopK).Add(e.lane), mine: e.lane.LtI(e.TopK)}
	k.If(of.mine, func() {
		id.Set(ptx.LdGlobal[ptx.U32](ids.Index(of.index, 4)))
		row.Set(ptx.LdGlobal[ptx.U32](inverse.Index(of.index, 4)))
		ds.Set(ptx.LdGlobal[ptx.F32](dscores.Index(of.index, 4)))
	})
	of.id, of.row, of.has, of.ds = id.Get(), row.Get(), id.Get().LtI(e.NumExperts), ds.Get()
	return of
}

// throughShare returns u_k, from the slot's raw score and the gradient of its score. It also
// writes the slot's part of the gradient of ExpertScale.
func (e *dlogits) throughShare(of pair, weight ptx.F32) ptx.F32 {
	k, zero := e.k, ptx.Float(0)
	share, sum := scores.Normalize(e.Config, weight, of.has)
	share = ptx.Select(of.has, share, zero)
	grad := of.ds.Mul(ptx.Float(e.Scale()))
	if e.ExpertScale {
		k.If(of.row.NeI(order.NoRow), func() { ptx.StGlobal(e.scaleByRow.Index(of.row, 4), share.Mul(grad)) })
		scale := ptx.NewVar(k, zero)
		k.If(of.has, func() { scale.Set(ptx.LdGlobal[ptx.F32](e.scale.Index(of.id, 4))) })
		grad = grad.Mul(scale.Get())
	}
	grad = ptx.Select(of.has, grad, zero)
	if e.Renormalize != spec.NoRenorm {
		mean := lanes.Sum(share.Mul(grad))
		if e.Renormalize == spec.RenormClamp {
			mean = ptx.Select(sum.Lt(ptx.Float(e.NormEpsilon)), zero, mean)
		}
		grad = grad.Sub(mean)
	}
	return share.Mul(grad)
}

// raw returns the raw score of the lane's pair.
func (e *dlogits) raw(of pair) (raw rawScore) {
	k := e.k
	if Dense(e.Config) {
		row := scores.Softmax{K: k, Experts: e.NumExperts, Format: e.Logits, Lane: e.lane}
		raw.shares = row.Probabilities(e.logits, e.token)
		e.eachShare(raw.shares, func(at ptx.Shared, _ ptx.U32, share ptx.F32) { ptx.StShared(at, share) })
		k.BarWarpSync(ptx.Uint(ptx.FullMask))
		w := ptx.NewVar(k, ptx.Float(0))
		k.If(of.has, func() { w.Set(ptx.LdShared[ptx.F32](e.own.Plus(of.id.ShlI(2)))) })
		k.BarWarpSync(ptx.Uint(ptx.FullMask))
		raw.weight = w.Get()
		return raw
	}
	if !e.SavesLogits() {
		w := ptx.NewVar(k, ptx.Float(0))
		k.If(of.has, func() { w.Set(ptx.LdGlobal[ptx.F32](e.scores.Index(e.token.MulI(e.TopK).Add(e.lane), 4))) })
		raw.weight = w.Get().Mul(ptx.Float(1 / e.Scale()))
		return raw
	}
	v := ptx.NewVar(k, ptx.Float(math.Inf(-1)))
	k.If(of.has, func() {
		v.Set(scores.LoadLogit(e.Logits, e.logits.Index(e.token, int(e.Logits.Bytes())*e.NumExperts), of.id))
	})
	logit := v.Get()
	switch e.Score {
	case spec.Sigmoid:
		raw.weight, raw.slope = scores.Sigmoid(logit), scores.Sigmoid(logit.Neg())
		return raw
	case spec.SqrtSoftplus:
		softplus := scores.Softplus(logit)
		slope := scores.Sigmoid(logit).Mul(softplus.RcpApprox()).Mul(ptx.Float(0.5))
		raw.weight, raw.slope = scores.OfLogit(e.Score, logit), ptx.Select(softplus.Eq(ptx.Float(0)), ptx.Float(0), slope)
		return raw
	}
	largest := lanes.Max(logit)
	p := scores.Exp(logit.Sub(largest))
	raw.weight = p.Mul(lanes.Sum(p).RcpApprox(".ftz"))
	return raw
}

// eachShare runs body for each of the lane's experts, with the address of the expert's element in
// the array own.
func (e *dlogits) eachShare(shares []ptx.F32, body func(at ptx.Shared, expert ptx.U32, share ptx.F32)) {
	for i, share := range shares {
		expert := e.lane.AddI(lanes.Count * i)
		e.k.If(expert.LtI(e.NumExperts), func() { body(e.own.Plus(expert.ShlI(2)), expert, share) })
	}
}

// writeDense writes a token's row of dense gradients.
func (e *dlogits) writeDense(of pair, raw rawScore, u ptx.F32) {
	k, all := e.k, ptx.Uint(ptx.FullMask)
	sum := lanes.Sum(u)
	e.eachShare(raw.shares, func(at ptx.Shared, _ ptx.U32, share ptx.F32) { ptx.StShared(at, share.Mul(sum).Neg()) })
	k.BarWarpSync(all)
	k.If(of.has, func() { ptx.StShared(e.own.Plus(of.id.ShlI(2)), u.Sub(raw.weight.Mul(sum))) })
	k.BarWarpSync(all)
	row := func(tensor ptx.Global, expert ptx.U32) ptx.Global {
		return tensor.Index(e.token, 4*e.NumExperts).Index(expert, 4)
	}
	e.eachShare(raw.shares, func(at ptx.Shared, expert ptx.U32, _ ptx.F32) {
		v := ptx.NewVar(k, ptx.LdShared[ptx.F32](at))
		k.If(e.add.Given(), func() { v.Set(v.Get().Add(ptx.LdGlobal[ptx.F32](row(e.add, expert)))) })
		ptx.StGlobal(row(e.dense, expert), v.Get())
	})
}

// DLogitsKernel is for layers whose scores and their gradients do not determine the gradients of
// the logits.
var DLogitsKernel = &registry.Kernel[DLogitsArgs]{KernelName: "dlogits", Backward: true, Only: func(c spec.Config) bool { return !ScoresTellLogits(c) },
	Emit: func(l registry.Layer) (*jit.Kernel[DLogitsArgs], error) { return DLogits{l.Config}.Build() }}
