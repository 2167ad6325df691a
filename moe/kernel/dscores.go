package kernel

import (
	"errors"

	"sonicmoe/ptx"
)

// DScores turns the partial sums that DH leaves for each row into the scores'
// gradients dS [T, K], 0 where an expert id is outside [0, E), and with Router
// into those of the chosen logits behind a softmax over the K:
//
//	dlogit_k = s_k·(dS_k - Σ_j s_j·dS_j)
//
// as dlogits [T, K] and, by packed row, as dlrow [R]. A thread owns one
// (token, slot) pair. Sums run in the order of neurons and of slots, in FP32.
type DScores struct {
	Intermediate, TopK int
	// Scores stores dS; Router stores dlogits and dlrow. One at least is set.
	Scores, Router bool
}

const dscoresThreads = 256

// perCTA is the tokens of a CTA.
func (d DScores) perCTA() int { return dscoresThreads / d.TopK }

// CTAs is the grid for so many tokens.
func (d DScores) CTAs(tokens int) int { return (tokens + d.perCTA() - 1) / d.perCTA() }

// Build emits the kernel.
func (d DScores) Build() (Kernel, error) {
	const name = "moe_dscores"
	if !d.Scores && !d.Router {
		return Kernel{}, errors.New("moe_dscores: neither Scores nor Router is wanted, one must be")
	}
	k := ptx.NewKernel(name)
	k.SetLaunchBounds(dscoresThreads, 1)
	partial, inverse := k.ParamPtr("dspart"), k.ParamPtr("inverse")
	var dscores, scores, dlogits, dlrow ptx.Global
	if d.Scores {
		dscores = k.ParamPtr("dscores")
	}
	if d.Router {
		scores, dlogits, dlrow = k.ParamPtr("scores"), k.ParamPtr("dlogits"), k.ParamPtr("dlrow")
	}
	tokens := k.ParamU32("tokens")
	tid := k.Special("%tid.x")
	inCTA := tid.DivI(d.TopK)
	token := k.Special("%ctaid.x").MulI(d.perCTA()).Add(inCTA)
	mine := inCTA.LtI(d.perCTA()).And(token.Lt(tokens))
	slot := tid.Sub(inCTA.MulI(d.TopK))
	pair := token.MulI(d.TopK).Add(slot)
	k.GridDepWait()
	k.GridDepLaunch()

	row, score, grad := ptx.NewVar(k, ptx.Uint(NoRow)), ptx.NewVar(k, ptx.Float(0)), ptx.NewVar(k, ptx.Float(0))
	k.If(mine, func() {
		row.Set(ptx.LdGlobal[ptx.U32](inverse.Index(pair, 4)))
		if d.Router {
			score.Set(ptx.LdGlobal[ptx.F32](scores.Index(pair, 4)))
		}
		k.If(row.Get().NeI(NoRow), func() { d.sum(k, partial.Index(row.Get(), d.Intermediate/dhGroup*4), grad) })
		if d.Scores {
			ptx.StGlobal(dscores.Index(pair, 4), grad.Get())
		}
	})
	if !d.Router {
		return build(k, name, dscoresThreads, 0)
	}

	shared := k.SharedBase()
	has := row.Get().NeI(NoRow)
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
		k.If(has, func() { ptx.StGlobal(dlrow.Index(row.Get(), 4), dlogit) })
	})
	return build(k, name, dscoresThreads, 4*dscoresThreads)
}

// sum adds a row's partial sums, several loads in flight.
func (d DScores) sum(k *ptx.Kernel, at ptx.Global, total *ptx.Var[ptx.F32]) {
	n, width, inFlight := d.Intermediate/dhGroup, 4, 8
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
