package training

import (
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

// RoundedDLogits computes the gradients of all logits after token rounding. Its input is the
// gradients of the scores in the list that rounding made:
//
//	dl_e = Σ_slots of e s_k·(ds_k - Σ_j s_j·ds_j) + p_e·(dp_e - Σ_j p_j·dp_j)
//
// s_k is the score of slot k of the top-K, and ds_k is its gradient, which is 0 if rounding dropped
// the token. p_e is the raw score of expert e, and dp_e is its gradient. One warp handles a token.
type RoundedDLogits struct {
	NumExperts, TopK int
	Logits           spec.Type
	// Raw reports whether all scores of the list are raw scores.
	Raw bool
}

const (
	dlogitsThreads = 256
	dlogitsWarps   = dlogitsThreads / lanes.Count
)

// RoundedDLogitsArgs are the arguments of [RoundedDLogits].
type RoundedDLogitsArgs struct {
	// Logits [T, E], Scores and ExpertIDs [T, K] come from the router.
	Logits, Scores, ExpertIDs driver.DevicePtr
	// Starts [T+1], TokenRows [R] and Pairs [R] u32 come from the plan of the list. ListIDs [L] i32
	// has the expert of each of the list's L entries, and DScores [L] f32 the gradient of each
	// entry's score.
	Starts, TokenRows, Pairs, ListIDs, DScores driver.DevicePtr
	// Dense [T, E] f32 is the output. AddDense [T, E] f32, unless 0, is added to it; it may
	// be the same tensor.
	AddDense, Dense driver.DevicePtr
	// Tokens is T.
	Tokens int
}

// roundedDLogits is the state of a RoundedDLogits while the code of one warp is emitted.
type roundedDLogits struct {
	RoundedDLogits
	k           *ptx.Kernel
	lane, token ptx.U32
	// own [E] f32 is the warp's array in shared memory: first the gradients of the raw
	// scores, then the gradients of the logits.
	own ptx.Shared
}

// slot is the lane's slot: its expert, its score, and the gradient of the score.
type slot struct {
	id    *ptx.Var[ptx.U32]
	s, ds *ptx.Var[ptx.F32]
}

// Build emits the kernel.
func (r RoundedDLogits) Build() (*jit.Kernel[RoundedDLogitsArgs], error) {
	k := jit.NewBuilder[RoundedDLogitsArgs]("moe_rounded_dlogits", dlogitsThreads, 1)
	k.CTAs(func(a *RoundedDLogitsArgs) int { return (a.Tokens + dlogitsWarps - 1) / dlogitsWarps })
	logits, scores, ids := k.Ptr(&k.Args.Logits), k.Ptr(&k.Args.Scores), k.Ptr(&k.Args.ExpertIDs)
	list := listGradients{
		starts: k.Ptr(&k.Args.Starts), rows: k.Ptr(&k.Args.TokenRows), pairs: k.Ptr(&k.Args.Pairs),
		ids: k.Ptr(&k.Args.ListIDs), dscores: k.Ptr(&k.Args.DScores),
	}
	add, dense := k.Ptr(&k.Args.AddDense), k.Ptr(&k.Args.Dense)
	tokens := k.U32(&k.Args.Tokens)
	k.TidX()
	warp, lane := k.Warp(), k.Lane()
	e := roundedDLogits{RoundedDLogits: r, k: k.Kernel, lane: lane, token: k.CtaidX().MulI(dlogitsWarps).Add(warp)}
	e.own = pipeline.NewCTA(k.Kernel).Shared("gradients", 4*dlogitsWarps*r.NumExperts, 16).Plus(warp.MulI(4 * r.NumExperts))
	k.GridDepWait()
	k.GridDepLaunch()
	k.If(e.token.Lt(tokens), func() {
		e.each(func(expert ptx.U32) { ptx.StShared(e.at(expert), ptx.Float(0)) })
		k.BarWarpSync(ptx.Uint(ptx.FullMask))
		of := e.loadSlot(ids, scores)
		e.gather(of, list)
		e.throughAll(logits)
		if !r.Raw {
			e.throughChosen(of)
		}
		e.each(func(expert ptx.U32) {
			v := ptx.NewVar(k.Kernel, ptx.LdShared[ptx.F32](e.at(expert)))
			k.If(add.Given(), func() {
				v.Set(v.Get().Add(ptx.LdGlobal[ptx.F32](add.Index(e.token, 4*r.NumExperts).Index(expert, 4))))
			})
			ptx.StGlobal(dense.Index(e.token, 4*r.NumExperts).Index(expert, 4), v.Get())
		})
	})
	return k.Build()
}

// at returns the address of an expert's gradient in the array own.
func (e *roundedDLogits) at(expert ptx.U32) ptx.Shared { return e.own.Plus(expert.ShlI(2)) }

// each runs body for the lane's experts.
func (e *roundedDLogits) each(body func(expert ptx.U32)) {
	e.k.For(e.lane, ptx.Uint(e.NumExperts), ptx.Uint(lanes.Count), body)
}

// loadSlot loads the lane's slot and sets its gradient to 0.
func (e *roundedDLogits) loadSlot(ids, scores ptx.Global) slot {
	zero := ptx.Float(0)
	of := slot{ptx.NewVar(e.k, ptx.Uint(order.NoRow)), ptx.NewVar(e.k, zero), ptx.NewVar(e.k, zero)}
	e.k.If(e.lane.LtI(e.TopK), func() {
		at := e.token.MulI(e.TopK).Add(e.lane)
		of.id.Set(ptx.LdGlobal[ptx.U32](ids.Index(at, 4)))
		of.s.Set(ptx.LdGlobal[ptx.F32](scores.Index(at, 4)))
	})
	return of
}

// listGradients has the gradients of a list's scores, and the tensors that lead from a token to its
// entries.
type listGradients struct{ starts, rows, pairs, ids, dscores ptx.Global }

// gather loads the gradients of the token's scores. The gradient of a slot's score goes to the lane
// of the slot. The gradient of a raw score goes to the expert's word in shared memory.
func (e *roundedDLogits) gather(of slot, l listGradients) {
	k, all := e.k, ptx.Uint(ptx.FullMask)
	k.For(ptx.LdGlobal[ptx.U32](l.starts.Index(e.token, 4)), ptx.LdGlobal[ptx.U32](l.starts.Index(e.token, 4).At(4)), ptx.Uint(1), func(place ptx.U32) {
		entry := ptx.LdGlobal[ptx.U32](l.pairs.Index(ptx.LdGlobal[ptx.U32](l.rows.Index(place, 4)), 4))
		expert, grad := ptx.LdGlobal[ptx.U32](l.ids.Index(entry, 4)), ptx.LdGlobal[ptx.F32](l.dscores.Index(entry, 4))
		raw := e.lane.EqI(0)
		if !e.Raw {
			mine := of.id.Get().Eq(expert)
			of.ds.Set(ptx.Select(mine, grad, of.ds.Get()))
			raw = raw.And(k.VoteBallot(mine, all).EqI(0))
		}
		k.If(raw, func() { ptx.StShared(e.at(expert), grad) })
		k.BarWarpSync(all)
	})
}

// throughAll computes the second term of the formula: the gradients of raw scores pass through the
// softmax over all logits.
func (e *roundedDLogits) throughAll(logits ptx.Global) {
	k, sum := e.k, ptx.Float(0)
	var experts []ptx.U32
	var shares []ptx.F32
	row := scores.Softmax{K: k, Experts: e.NumExperts, Format: e.Logits, Lane: e.lane}
	for _, v := range row.Probabilities(logits, e.token) {
		expert, grad := e.lane.AddI(lanes.Count*len(experts)), ptx.NewVar(k, ptx.Float(0))
		k.If(expert.LtI(e.NumExperts), func() { grad.Set(ptx.LdShared[ptx.F32](e.at(expert))) })
		sum = v.Fma(grad.Get(), sum)
		experts, shares = append(experts, expert), append(shares, v)
	}
	dot := lanes.Sum(sum)
	for i, expert := range experts {
		k.If(expert.LtI(e.NumExperts), func() {
			ptx.StShared(e.at(expert), shares[i].Mul(ptx.LdShared[ptx.F32](e.at(expert)).Sub(dot)))
		})
	}
	k.BarWarpSync(ptx.Uint(ptx.FullMask))
}

// throughChosen adds the first term of the formula: the gradients of the slots' scores pass through
// the softmax over the chosen logits.
func (e *roundedDLogits) throughChosen(of slot) {
	s, ds := of.s.Get(), of.ds.Get()
	mean := lanes.Sum(s.Mul(ds))
	e.k.If(e.lane.LtI(e.TopK), func() {
		at := e.at(of.id.Get())
		ptx.StShared(at, ptx.LdShared[ptx.F32](at).Add(s.Mul(ds.Sub(mean))))
	})
	e.k.BarWarpSync(ptx.Uint(ptx.FullMask))
}

// RoundedDLogitsKernel is for layers that round.
var RoundedDLogitsKernel = &registry.Kernel[RoundedDLogitsArgs]{KernelName: "rounded-dlogits", Backward: true, Only: spec.Config.Rounds, Emit: func(l registry.Layer) (*jit.Kernel[RoundedDLogitsArgs], error) {
	raw := l.Rounding.RawScores || l.Rounding.Rule == spec.ExpertChoice
	return RoundedDLogits{NumExperts: l.NumExperts, TopK: l.TopK, Logits: l.Logits, Raw: raw}.Build()
}}
