package route

import (
	"sonicmoe/driver"
	"sonicmoe/jit"
	"sonicmoe/jit/pipeline"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/spec"
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

// Build emits the kernel.
func (r RoundedDLogits) Build() (*jit.Kernel[RoundedDLogitsArgs], error) {
	k := jit.NewBuilder[RoundedDLogitsArgs]("moe_rounded_dlogits", dlogitsThreads, 1)
	k.CTAs(func(a *RoundedDLogitsArgs) int { return (a.Tokens + dlogitsWarps - 1) / dlogitsWarps })
	logits, scores, ids := k.Ptr(&k.Args.Logits), k.Ptr(&k.Args.Scores), k.Ptr(&k.Args.ExpertIDs)
	starts, rows, pairs := k.Ptr(&k.Args.Starts), k.Ptr(&k.Args.Rows), k.Ptr(&k.Args.Pairs)
	listIDs, dscores := k.Ptr(&k.Args.ListIDs), k.Ptr(&k.Args.DScores)
	add, dense := k.Ptr(&k.Args.AddDense), k.Ptr(&k.Args.Dense)
	tokens := k.U32(&k.Args.Tokens)
	tid := k.TidX()
	warp, lane := tid.ShrI(5), tid.AndI(31)
	token := k.CtaidX().MulI(dlogitsWarps).Add(warp)
	all := ptx.Uint(ptx.FullMask)
	own := pipeline.NewCTA(k.Kernel).Shared("gradients", 4*dlogitsWarps*r.NumExperts, 16).Plus(warp.MulI(4 * r.NumExperts))
	at := func(expert ptx.U32) ptx.Shared { return own.Plus(expert.ShlI(2)) }
	each := func(body func(expert ptx.U32)) { k.For(lane, ptx.Uint(r.NumExperts), ptx.Uint(32), body) }
	zero := ptx.Float(0)
	k.GridDepWait()
	k.GridDepLaunch()
	k.If(token.Lt(tokens), func() {
		each(func(expert ptx.U32) { ptx.StShared(at(expert), zero) })
		k.BarWarpSync(all)
		// The lane's slot.
		id, s, ds := ptx.NewVar(k.Kernel, ptx.Uint(NoRow)), ptx.NewVar(k.Kernel, zero), ptx.NewVar(k.Kernel, zero)
		k.If(lane.LtI(r.TopK), func() {
			slot := token.MulI(r.TopK).Add(lane)
			id.Set(ptx.LdGlobal[ptx.U32](ids.Index(slot, 4)))
			s.Set(ptx.LdGlobal[ptx.F32](scores.Index(slot, 4)))
		})
		k.For(ptx.LdGlobal[ptx.U32](starts.Index(token, 4)), ptx.LdGlobal[ptx.U32](starts.Index(token, 4).At(4)), ptx.Uint(1), func(place ptx.U32) {
			entry := ptx.LdGlobal[ptx.U32](pairs.Index(ptx.LdGlobal[ptx.U32](rows.Index(place, 4)), 4))
			expert, grad := ptx.LdGlobal[ptx.U32](listIDs.Index(entry, 4)), ptx.LdGlobal[ptx.F32](dscores.Index(entry, 4))
			added := lane.EqI(0)
			if !r.Raw {
				mine := id.Get().Eq(expert)
				ds.Set(ptx.Select(mine, grad, ds.Get()))
				added = added.And(k.VoteBallot(mine, all).EqI(0))
			}
			k.If(added, func() { ptx.StShared(at(expert), grad) })
			k.BarWarpSync(all)
		})
		sum := zero
		var experts []ptx.U32
		var shares []ptx.F32
		row := tokenSoftmax{k.Kernel, r.NumExperts, r.Logits, lane}
		for _, v := range row.shares(logits, token) {
			expert, grad := lane.AddI(32*len(experts)), ptx.NewVar(k.Kernel, zero)
			k.If(expert.LtI(r.NumExperts), func() { grad.Set(ptx.LdShared[ptx.F32](at(expert))) })
			sum = v.Fma(grad.Get(), sum)
			experts, shares = append(experts, expert), append(shares, v)
		}
		dot := acrossWarp(sum, plus)
		for i, expert := range experts {
			k.If(expert.LtI(r.NumExperts), func() {
				ptx.StShared(at(expert), shares[i].Mul(ptx.LdShared[ptx.F32](at(expert)).Sub(dot)))
			})
		}
		k.BarWarpSync(all)
		if !r.Raw {
			mean := acrossWarp(s.Get().Mul(ds.Get()), plus)
			k.If(lane.LtI(r.TopK), func() {
				of := at(id.Get())
				ptx.StShared(of, ptx.LdShared[ptx.F32](of).Add(s.Get().Mul(ds.Get().Sub(mean))))
			})
			k.BarWarpSync(all)
		}
		each(func(expert ptx.U32) {
			v := ptx.NewVar(k.Kernel, ptx.LdShared[ptx.F32](at(expert)))
			k.If(add.Given(), func() {
				v.Set(v.Get().Add(ptx.LdGlobal[ptx.F32](add.Index(token, 4*r.NumExperts).Index(expert, 4))))
			})
			ptx.StGlobal(dense.Index(token, 4*r.NumExperts).Index(expert, 4), v.Get())
		})
	})
	return k.Build()
}

// RoundedDLogitsKernel is RoundedDLogits'.
var RoundedDLogitsKernel = &registry.Kernel[RoundedDLogitsArgs]{KernelName: "rounded-dlogits", Backward: true, Only: spec.Config.Rounds, Emit: func(l registry.Layer) (*jit.Kernel[RoundedDLogitsArgs], error) {
	raw := l.Rounding.RawScores || l.Rounding.Rule == spec.ExpertChoice
	return RoundedDLogits{NumExperts: l.NumExperts, TopK: l.TopK, Logits: l.Logits, Raw: raw}.Build()
}}
