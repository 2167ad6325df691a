package dh

import (
	"errors"

	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/pipeline"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/route/order"
	"sonicmoe/moe/internal/route/training"
	"sonicmoe/ptx"
)

// DScores adds the partial sums that DH writes for each row. The results are the gradients of the
// scores dS [T, K], with 0 for an expert id outside [0, E). With Router it also computes the
// gradients of the chosen logits, through the softmax over the K scores:
//
//	dlogit_k = s_k·(dS_k - Σ_j s_j·dS_j)
//
// It writes them as DLogits [T, K] and, in the order of packed rows, as DLogitByRow [R]. A thread
// handles one pair of token and slot. Sums are FP32, in the order of neurons and of slots.
type DScores struct {
	Intermediate, TopK int
	// Bias adds b2's part of the gradient. The part is [T, NumExperts].
	Bias       bool
	NumExperts int
	// Scores stores dS. Router stores DLogits and DLogitByRow. At least one of them is
	// set.
	Scores, Router bool
	// With List, each entry of a list counts as a token of the kernel, with one slot.
	List bool
}

const dscoresThreads = 256

// perCTA returns the number of tokens that a CTA handles.
func (d DScores) perCTA() int { return dscoresThreads / d.TopK }

// ScoresArgs are the arguments of [DScores].
type ScoresArgs struct {
	// DScorePartials [R, ceil(n/64)] f32 comes from [DH]. Inverse [T, K] u32 is the packed
	// row of each pair of token and slot.
	DScorePartials driver.DevicePtr
	Inverse        driver.DevicePtr
	// With Bias, BiasDots [T, E] f32 is b2's part of the gradient and ExpertIDs [T, K] i32
	// has the experts. With List too, TokenOf [entries] i32 is the token of each entry.
	BiasDots, ExpertIDs, TokenOf driver.DevicePtr
	// With the option Scores, DScores [T, K] f32 is an output.
	DScores driver.DevicePtr
	// With Router, Scores [T, K] f32 is read, and DLogits [T, K] and DLogitByRow [R] f32
	// are outputs.
	Scores      driver.DevicePtr
	DLogits     driver.DevicePtr
	DLogitByRow driver.DevicePtr
	// Tokens is T.
	Tokens int
}

// dscores is the state of a DScores while its code is emitted, for one pair of token and
// slot.
type dscores struct {
	DScores
	k *ptx.Kernel
	// The options decide which of these tensors exist. The tensors out, dlogits and dlogitByRow are
	// outputs.
	partial, inverse, dots, ids, tokenOf, scores, out, dlogits, dlogitByRow ptx.Global
	// inCTA is the number of the pair's token within the CTA. mine is false if the thread
	// has no pair.
	tid, inCTA, token, pair ptx.U32
	mine                    ptx.Pred
}

// pairGradient is the result of gradient for a pair: its packed row, its score, and the gradient of
// the score. Only the option Router reads the score.
type pairGradient struct {
	row         *ptx.Var[ptx.U32]
	score, grad *ptx.Var[ptx.F32]
}

// Build emits the kernel.
func (d DScores) Build() (*jit.Kernel[ScoresArgs], error) {
	if !d.Scores && !d.Router {
		return nil, errors.New("moe_dscores: neither Scores nor Router is wanted, one must be")
	}
	k := jit.NewBuilder[ScoresArgs](d.name(), dscoresThreads, 1)
	k.CTAs(func(a *ScoresArgs) int { return (a.Tokens + d.perCTA() - 1) / d.perCTA() })
	e := d.operands(k)
	k.GridDepWait()
	k.GridDepLaunch()
	of := e.gradient()
	if d.Router {
		e.throughChosen(of, pipeline.NewCTA(k.Kernel).Shared("products", 4*dscoresThreads, 16))
	}
	return k.Build()
}

// operands declares the tensors, and finds the thread's pair.
func (d DScores) operands(k *jit.Builder[ScoresArgs]) *dscores {
	e := &dscores{DScores: d, k: k.Kernel, partial: k.Ptr(&k.Args.DScorePartials), inverse: k.Ptr(&k.Args.Inverse)}
	if d.Bias {
		e.dots, e.ids = k.Ptr(&k.Args.BiasDots), k.Ptr(&k.Args.ExpertIDs)
		if d.List {
			e.tokenOf = k.Ptr(&k.Args.TokenOf)
		}
	}
	if d.Scores {
		e.out = k.Ptr(&k.Args.DScores)
	}
	if d.Router {
		e.scores, e.dlogits, e.dlogitByRow = k.Ptr(&k.Args.Scores), k.Ptr(&k.Args.DLogits), k.Ptr(&k.Args.DLogitByRow)
	}
	tokens := k.U32(&k.Args.Tokens)
	e.tid = k.TidX()
	e.inCTA = e.tid.DivI(d.TopK)
	e.token = k.CtaidX().MulI(d.perCTA()).Add(e.inCTA)
	e.mine = e.inCTA.LtI(d.perCTA()).And(e.token.Lt(tokens))
	slot := e.tid.Sub(e.inCTA.MulI(d.TopK))
	e.pair = e.token.MulI(d.TopK).Add(slot)
	return e
}

// name returns the name of the kernel's entry, which errors show.
func (d DScores) name() string {
	switch {
	case d.List:
		return "moe_dscores_list"
	case !d.Router:
		return "moe_dscores_given"
	}
	return "moe_dscores"
}

// gradient computes the gradient of the pair's score, and stores it with the option
// Scores.
func (e *dscores) gradient() pairGradient {
	k := e.k
	of := pairGradient{ptx.NewVar(k, ptx.Uint(order.NoRow)), ptx.NewVar(k, ptx.Float(0)), ptx.NewVar(k, ptx.Float(0))}
	k.If(e.mine, func() {
		of.row.Set(ptx.LdGlobal[ptx.U32](e.inverse.Index(e.pair, 4)))
		if e.Router {
			of.score.Set(ptx.LdGlobal[ptx.F32](e.scores.Index(e.pair, 4)))
		}
		k.If(of.row.Get().NeI(order.NoRow), func() {
			e.sum(k, e.partial.Index(of.row.Get(), groups(e.Intermediate)*4), of.grad)
			if e.Bias {
				of.grad.Set(of.grad.Get().Add(e.biasDot()))
			}
		})
		if e.Scores {
			ptx.StGlobal(e.out.Index(e.pair, 4), of.grad.Get())
		}
	})
	return of
}

// biasDot loads b2's part of the gradient, for a pair that has a row.
func (e *dscores) biasDot() ptx.F32 {
	token := e.token
	if e.List {
		token = ptx.LdGlobal[ptx.U32](e.tokenOf.Index(e.pair, 4))
	}
	expert := ptx.LdGlobal[ptx.U32](e.ids.Index(e.pair, 4))
	return ptx.LdGlobal[ptx.F32](e.dots.Index(token, 4*e.NumExperts).Index(expert, 4))
}

// throughChosen computes the gradient of the pair's logit from the gradients of all scores
// of its token. The threads share the products of score and gradient in shared memory.
func (e *dscores) throughChosen(of pairGradient, products ptx.Shared) {
	k, score, grad := e.k, of.score.Get(), of.grad.Get()
	has := of.row.Get().NeI(order.NoRow)
	// A slot without a row must add nothing, even if its score is NaN.
	ptx.StShared(products.Plus(e.tid.ShlI(2)), ptx.Select(has, score.Mul(grad), ptx.Float(0)))
	k.BarSync(ptx.Uint(0))
	k.If(e.mine, func() {
		dot := ptx.Float(0)
		ofToken := products.Plus(e.inCTA.MulI(4 * e.TopK))
		for j := range e.TopK {
			dot = dot.Add(ptx.LdShared[ptx.F32](ofToken.At(4 * j)))
		}
		dlogit := score.Mul(grad.Sub(dot))
		ptx.StGlobal(e.dlogits.Index(e.pair, 4), dlogit)
		k.If(has, func() { ptx.StGlobal(e.dlogitByRow.Index(of.row.Get(), 4), dlogit) })
	})
}

// sum adds the partial sums of one row, with several loads in flight.
func (d DScores) sum(k *ptx.Kernel, at ptx.Global, total *ptx.Var[ptx.F32]) {
	n, width, inFlight := groups(d.Intermediate), 4, 8
	for n%width != 0 {
		width /= 2 // a wide load needs rows whose length is a multiple of its width
	}
	add := func(from ptx.Global, loads int) {
		var values []ptx.F32
		for i := range loads {
			if width == 1 {
				values = append(values, ptx.LdGlobal[ptx.F32](from.At(4*i)))
				continue
			}
			values = append(values, ptx.LdGlobalVec[ptx.F32](from.At(4*width*i), width)...)
		}
		for _, v := range values {
			total.Set(total.Get().Add(v))
		}
	}
	whole := n / width / inFlight
	if whole > 0 {
		k.For(ptx.Uint(0), ptx.Uint(whole), ptx.Uint(1), func(i ptx.U32) {
			add(at.Index(i, 4*width*inFlight), inFlight)
		})
	}
	add(at.At(4*width*inFlight*whole), n/width-whole*inFlight)
}

// ScoresKernel is for layers whose scores are a softmax over the chosen logits.
// ScoresGivenKernel is for scores that come from elsewhere or from another function,
// ScoresListKernel for the scores of a list.
var (
	ScoresKernel = &registry.Kernel[ScoresArgs]{KernelName: "dscores", Backward: true, Only: training.ScoresTellLogits, Emit: func(l registry.Layer) (*jit.Kernel[ScoresArgs], error) {
		return DScores{Intermediate: l.Intermediate, TopK: l.TopK, Bias: l.Bias, NumExperts: l.NumExperts, Scores: true, Router: true}.Build()
	}}
	ScoresGivenKernel = &registry.Kernel[ScoresArgs]{KernelName: "dscores-given", Backward: true, Emit: func(l registry.Layer) (*jit.Kernel[ScoresArgs], error) {
		return DScores{Intermediate: l.Intermediate, TopK: l.TopK, Bias: l.Bias, NumExperts: l.NumExperts, Scores: true}.Build()
	}}
	ScoresListKernel = &registry.Kernel[ScoresArgs]{KernelName: "dscores-list", Backward: true, Only: spec.Config.HasLists, Emit: func(l registry.Layer) (*jit.Kernel[ScoresArgs], error) {
		return DScores{Intermediate: l.Intermediate, TopK: 1, Bias: l.Bias, NumExperts: l.NumExperts, Scores: true, List: true}.Build()
	}}
)
