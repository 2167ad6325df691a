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

// RoundedDLogits makes the gradients of all logits behind rounding, from those
// of the scores of the tokens that experts took:
//
//	dl_e = Σ_slots of e s_k·(ds_k - Σ_j s_j·ds_j) + p_e·(dp_e - Σ_j p_j·dp_j)
//
// where ds are the gradients of scores of the top-K, 0 of those that were
// dropped, and dp those of raw scores. A warp has a token.
type RoundedDLogits struct {
	NumExperts, TopK int
	Logits           spec.Logits
	// Raw: all scores are raw.
	Raw bool
}

const (
	dlogitsThreads = 256
	dlogitsWarps   = dlogitsThreads / 32
)

// RoundedDLogitsArgs are the arguments of [RoundedDLogits].
type RoundedDLogitsArgs struct {
	// Logits [T, E], Scores and ExpertIDs [T, K] are Router's.
	Logits, Scores, ExpertIDs driver.DevicePtr
	// Starts [T+1] and Rows [R] u32 are ByToken's, Pairs [R] u32 is Plan's,
	// ListIDs [L] i32 and DScores [L] f32 are of the list's entries.
	Starts, Rows, Pairs, ListIDs, DScores driver.DevicePtr
	// AddDense [T, E] f32 are added, unless 0; Dense [T, E] f32 is written and may
	// be the same.
	AddDense, Dense driver.DevicePtr
	// Tokens is T.
	Tokens int
}

// roundedDLogits is the emission of a RoundedDLogits, for one warp.
type roundedDLogits struct {
	RoundedDLogits
	k           *ptx.Kernel
	lane, token ptx.U32
	// own [E] f32 is the warp's: what there is of each gradient.
	own ptx.Shared
	// id, s and ds are the expert, score and its gradient of the lane's slot.
	id    *ptx.Var[ptx.U32]
	s, ds *ptx.Var[ptx.F32]
}

// Build emits the kernel.
func (r RoundedDLogits) Build() (*jit.Kernel[RoundedDLogitsArgs], error) {
	k := jit.NewBuilder[RoundedDLogitsArgs]("moe_rounded_dlogits", dlogitsThreads, 1)
	k.CTAs(func(a *RoundedDLogitsArgs) int { return (a.Tokens + dlogitsWarps - 1) / dlogitsWarps })
	logits, scores, ids := k.Ptr(&k.Args.Logits), k.Ptr(&k.Args.Scores), k.Ptr(&k.Args.ExpertIDs)
	list := listGradients{
		starts: k.Ptr(&k.Args.Starts), rows: k.Ptr(&k.Args.Rows), pairs: k.Ptr(&k.Args.Pairs),
		ids: k.Ptr(&k.Args.ListIDs), dscores: k.Ptr(&k.Args.DScores),
	}
	add, dense := k.Ptr(&k.Args.AddDense), k.Ptr(&k.Args.Dense)
	tokens := k.U32(&k.Args.Tokens)
	tid := k.TidX()
	warp, lane := tid.ShrI(5), tid.AndI(31)
	e := roundedDLogits{RoundedDLogits: r, k: k.Kernel, lane: lane, token: k.CtaidX().MulI(dlogitsWarps).Add(warp)}
	e.own = pipeline.NewCTA(k.Kernel).Shared("gradients", 4*dlogitsWarps*r.NumExperts, 16).Plus(warp.MulI(4 * r.NumExperts))
	k.GridDepWait()
	k.GridDepLaunch()
	k.If(e.token.Lt(tokens), func() {
		e.each(func(expert ptx.U32) { ptx.StShared(e.at(expert), ptx.Float(0)) })
		k.BarWarpSync(ptx.Uint(ptx.FullMask))
		e.loadSlot(ids, scores)
		e.gather(list)
		e.throughAll(logits)
		if !r.Raw {
			e.throughChosen()
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

// at is where an expert's gradient is made.
func (e *roundedDLogits) at(expert ptx.U32) ptx.Shared { return e.own.Plus(expert.ShlI(2)) }

// each runs body for the lane's experts.
func (e *roundedDLogits) each(body func(expert ptx.U32)) {
	e.k.For(e.lane, ptx.Uint(e.NumExperts), ptx.Uint(32), body)
}

// loadSlot loads the lane's slot, whose gradient is yet 0.
func (e *roundedDLogits) loadSlot(ids, scores ptx.Global) {
	zero := ptx.Float(0)
	e.id, e.s, e.ds = ptx.NewVar(e.k, ptx.Uint(order.NoRow)), ptx.NewVar(e.k, zero), ptx.NewVar(e.k, zero)
	e.k.If(e.lane.LtI(e.TopK), func() {
		slot := e.token.MulI(e.TopK).Add(e.lane)
		e.id.Set(ptx.LdGlobal[ptx.U32](ids.Index(slot, 4)))
		e.s.Set(ptx.LdGlobal[ptx.F32](scores.Index(slot, 4)))
	})
}

// listGradients are the gradients of a list's scores, and where a token's are.
type listGradients struct{ starts, rows, pairs, ids, dscores ptx.Global }

// gather gives the gradients of the token's scores to their slots, and those of
// raw scores to their experts.
func (e *roundedDLogits) gather(l listGradients) {
	k, all := e.k, ptx.Uint(ptx.FullMask)
	k.For(ptx.LdGlobal[ptx.U32](l.starts.Index(e.token, 4)), ptx.LdGlobal[ptx.U32](l.starts.Index(e.token, 4).At(4)), ptx.Uint(1), func(place ptx.U32) {
		entry := ptx.LdGlobal[ptx.U32](l.pairs.Index(ptx.LdGlobal[ptx.U32](l.rows.Index(place, 4)), 4))
		expert, grad := ptx.LdGlobal[ptx.U32](l.ids.Index(entry, 4)), ptx.LdGlobal[ptx.F32](l.dscores.Index(entry, 4))
		raw := e.lane.EqI(0)
		if !e.Raw {
			mine := e.id.Get().Eq(expert)
			e.ds.Set(ptx.Select(mine, grad, e.ds.Get()))
			raw = raw.And(k.VoteBallot(mine, all).EqI(0))
		}
		k.If(raw, func() { ptx.StShared(e.at(expert), grad) })
		k.BarWarpSync(all)
	})
}

// throughAll takes the gradients of raw scores through the softmax over all.
func (e *roundedDLogits) throughAll(logits ptx.Global) {
	k, sum := e.k, ptx.Float(0)
	var experts []ptx.U32
	var shares []ptx.F32
	row := scores.Softmax{K: k, Experts: e.NumExperts, Format: e.Logits, Lane: e.lane}
	for _, v := range row.Probabilities(logits, e.token) {
		expert, grad := e.lane.AddI(32*len(experts)), ptx.NewVar(k, ptx.Float(0))
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

// throughChosen adds those of the slots, through the softmax over the chosen.
func (e *roundedDLogits) throughChosen() {
	s, ds := e.s.Get(), e.ds.Get()
	mean := lanes.Sum(s.Mul(ds))
	e.k.If(e.lane.LtI(e.TopK), func() {
		of := e.at(e.id.Get())
		ptx.StShared(of, ptx.LdShared[ptx.F32](of).Add(s.Mul(ds.Sub(mean))))
	})
	e.k.BarWarpSync(ptx.Uint(ptx.FullMask))
}

// RoundedDLogitsKernel is RoundedDLogits'.
var RoundedDLogitsKernel = &registry.Kernel[RoundedDLogitsArgs]{KernelName: "rounded-dlogits", Backward: true, Only: spec.Config.Rounds, Emit: func(l registry.Layer) (*jit.Kernel[RoundedDLogitsArgs], error) {
	raw := l.Rounding.RawScores || l.Rounding.Rule == spec.ExpertChoice
	return RoundedDLogits{NumExperts: l.NumExperts, TopK: l.TopK, Logits: l.Logits, Raw: raw}.Build()
}}
