package dh

import (
	"errors"

	"sonicmoe/driver"
	"sonicmoe/jit"
	"sonicmoe/jit/pipeline"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/route"
	"sonicmoe/moe/spec"
	"sonicmoe/ptx"
)

// DScores turns the partial sums that DH leaves for each row into the scores'
// gradients dS [T, K], 0 where an expert id is outside [0, E), and with Router
// into those of the chosen logits behind a softmax over the K:
//
//	dlogit_k = s_k·(dS_k - Σ_j s_j·dS_j)
//
// as DLogits [T, K] and, by packed row, as DLogitByRow [R]. A thread owns one
// (token, slot) pair. Sums run in the order of neurons and of slots, in FP32.
type DScores struct {
	Intermediate, TopK int
	// Bias adds b2's part.
	Bias bool
	// Scores stores dS; Router stores DLogits and DLogitByRow. One at least is set.
	Scores, Router bool
	// List: the tokens are entries of a list, with one slot each.
	List bool
}

const dscoresThreads = 256

// perCTA is the tokens of a CTA.
func (d DScores) perCTA() int { return dscoresThreads / d.TopK }

// ScoresArgs are the arguments of [DScores].
type ScoresArgs struct {
	// DScorePartials [R, n/64] f32 are what [DH] wrote, Inverse [T, K] u32 the
	// packed row of each (token, slot).
	DScorePartials driver.DevicePtr
	Inverse        driver.DevicePtr
	// BiasDots [T, K] f32 is b2's part, with Bias.
	BiasDots driver.DevicePtr
	// DScores [T, K] f32 is written, with Scores.
	DScores driver.DevicePtr
	// With Router: Scores [T, K] f32; DLogits [T, K] and DLogitByRow [R] f32 are
	// written.
	Scores      driver.DevicePtr
	DLogits     driver.DevicePtr
	DLogitByRow driver.DevicePtr
	// Tokens is T.
	Tokens int
}

// Build emits the kernel.
func (d DScores) Build() (*jit.Kernel[ScoresArgs], error) {
	name := "moe_dscores"
	switch {
	case d.List:
		name = "moe_dscores_list"
	case !d.Router:
		name = "moe_dscores_given"
	}
	if !d.Scores && !d.Router {
		return nil, errors.New("moe_dscores: neither Scores nor Router is wanted, one must be")
	}
	k := jit.NewBuilder[ScoresArgs](name, dscoresThreads, 1)
	k.CTAs(func(a *ScoresArgs) int { return (a.Tokens + d.perCTA() - 1) / d.perCTA() })
	partial, inverse := k.Ptr(&k.Args.DScorePartials), k.Ptr(&k.Args.Inverse)
	var dots, dscores, scores, dlogits, dlogitByRow ptx.Global
	if d.Bias {
		dots = k.Ptr(&k.Args.BiasDots)
	}
	if d.Scores {
		dscores = k.Ptr(&k.Args.DScores)
	}
	if d.Router {
		scores, dlogits, dlogitByRow = k.Ptr(&k.Args.Scores), k.Ptr(&k.Args.DLogits), k.Ptr(&k.Args.DLogitByRow)
	}
	tokens := k.U32(&k.Args.Tokens)
	tid := k.TidX()
	inCTA := tid.DivI(d.TopK)
	token := k.CtaidX().MulI(d.perCTA()).Add(inCTA)
	mine := inCTA.LtI(d.perCTA()).And(token.Lt(tokens))
	slot := tid.Sub(inCTA.MulI(d.TopK))
	pair := token.MulI(d.TopK).Add(slot)
	k.GridDepWait()
	k.GridDepLaunch()

	row, score, grad := ptx.NewVar(k.Kernel, ptx.Uint(route.NoRow)), ptx.NewVar(k.Kernel, ptx.Float(0)), ptx.NewVar(k.Kernel, ptx.Float(0))
	k.If(mine, func() {
		row.Set(ptx.LdGlobal[ptx.U32](inverse.Index(pair, 4)))
		if d.Router {
			score.Set(ptx.LdGlobal[ptx.F32](scores.Index(pair, 4)))
		}
		k.If(row.Get().NeI(route.NoRow), func() {
			d.sum(k.Kernel, partial.Index(row.Get(), d.Intermediate/ScoreGroup*4), grad)
			if d.Bias {
				grad.Set(grad.Get().Add(ptx.LdGlobal[ptx.F32](dots.Index(pair, 4))))
			}
		})
		if d.Scores {
			ptx.StGlobal(dscores.Index(pair, 4), grad.Get())
		}
	})
	if !d.Router {
		return k.Build()
	}

	shared := pipeline.NewCTA(k.Kernel).Shared("products", 4*dscoresThreads, 16)
	has := row.Get().NeI(route.NoRow)
	// A slot without a row adds nothing, whatever its score.
	ptx.StShared(shared.Plus(tid.ShlI(2)), ptx.Select(has, score.Get().Mul(grad.Get()), ptx.Float(0)))
	k.BarSync(ptx.Uint(0))
	k.If(mine, func() {
		dot := ptx.Float(0)
		of := shared.Plus(inCTA.MulI(4 * d.TopK))
		for j := range d.TopK {
			dot = dot.Add(ptx.LdShared[ptx.F32](of.At(4 * j)))
		}
		dlogit := score.Get().Mul(grad.Get().Sub(dot))
		ptx.StGlobal(dlogits.Index(pair, 4), dlogit)
		k.If(has, func() { ptx.StGlobal(dlogitByRow.Index(row.Get(), 4), dlogit) })
	})
	return k.Build()
}

// sum adds a row's partial sums, several loads in flight.
func (d DScores) sum(k *ptx.Kernel, at ptx.Global, total *ptx.Var[ptx.F32]) {
	n, width, inFlight := d.Intermediate/ScoreGroup, 4, 8
	for n%width != 0 {
		width /= 2 // rows are as far apart as they are long: they limit alignment
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

// ScoresKernel is for layers that route by a softmax over the chosen,
// ScoresGivenKernel for scores from elsewhere or of another kind,
// ScoresListKernel for those of a list, whose entries are tokens with one slot
// to it.
var (
	ScoresKernel = &registry.Kernel[ScoresArgs]{KernelName: "dscores", Backward: true, Only: route.ScoresTellLogits, Emit: func(l registry.Layer) (*jit.Kernel[ScoresArgs], error) {
		return DScores{Intermediate: l.Intermediate, TopK: l.TopK, Bias: l.Bias, Scores: true, Router: true}.Build()
	}}
	ScoresGivenKernel = &registry.Kernel[ScoresArgs]{KernelName: "dscores-given", Backward: true, Emit: func(l registry.Layer) (*jit.Kernel[ScoresArgs], error) {
		return DScores{Intermediate: l.Intermediate, TopK: l.TopK, Bias: l.Bias, Scores: true}.Build()
	}}
	ScoresListKernel = &registry.Kernel[ScoresArgs]{KernelName: "dscores-list", Backward: true, Only: spec.Config.HasLists, Emit: func(l registry.Layer) (*jit.Kernel[ScoresArgs], error) {
		return DScores{Intermediate: l.Intermediate, TopK: 1, Bias: l.Bias, Scores: true, List: true}.Build()
	}}
)
