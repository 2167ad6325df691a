package trial

import (
	"fmt"
	"math"

	"sonicmoe/internal/reference"
	"sonicmoe/moe"
)

// Report holds the errors of a forward pass, compared with the reference.
type Report struct {
	// Sampled is the number of tokens compared.
	Sampled int
	// O and H are the errors compared with the unrounded reference, which is given the device's
	// scores and expert ids. H and SharedH are empty if they were not compared.
	O, H, SharedH reference.Report
	// Bounds are the bounds of O, H and SharedH.
	Bounds reference.Bounds
	// Score is the largest error of a score. ScoreBound is the bound of this error.
	Score, ScoreBound float64
	// Routing is the error of the first token with a wrong routing, or nil.
	Routing error
}

// These are absolute bounds on the error of a score. Rounding the logits to bf16 changes a
// score by up to about 2^-8 of the logit.
const (
	scoreBoundBF16 = 2e-2
	scoreBoundF16  = scoreBoundBF16 / 8
	scoreBoundF32  = 1e-4
	// scoreStep bounds the relative error of a score that is computed from given logits.
	scoreStep = 2e-5
)

func scoreBoundOf(l moe.Type) float64 {
	return map[moe.Type]float64{moe.BF16: scoreBoundBF16, moe.F16: scoreBoundF16, moe.F32: scoreBoundF32}[l]
}

// Check returns nil if all errors are within the bounds.
func (r Report) Check() error {
	if r.Routing != nil {
		return r.Routing
	}
	if !(r.Score <= r.ScoreBound) {
		return fmt.Errorf("a score is off by %.3g, at most %.3g is allowed", r.Score, r.ScoreBound)
	}
	if err := r.O.Check(r.Bounds); err != nil {
		return fmt.Errorf("output O: %w", err)
	}
	for _, h := range []struct {
		name   string
		report reference.Report
	}{{"H", r.H}, {"SharedH", r.SharedH}} {
		if h.report.Rows == 0 {
			continue
		}
		if err := h.report.Check(r.Bounds); err != nil {
			return fmt.Errorf("%s: %w", h.name, err)
		}
	}
	return nil
}

// Check compares at least want tokens with the reference (all if there are fewer), among them
// one token of every expert in use.
func (t *Trial) Check(r Results, want int) (Report, error) { return t.check(r, want, true) }

// CheckExperts is like [Trial.Check] for a pass whose scores and expert ids were given. It does
// not check the routing.
func (t *Trial) CheckExperts(r Results, want int) (Report, error) { return t.check(r, want, false) }

func (t *Trial) check(r Results, want int, routed bool) (Report, error) {
	c := t.Layer.Config()
	ref, err := reference.New(c, t.Weights)
	if err != nil {
		return Report{}, err
	}
	for i, e := range r.ExpertIDs {
		if e < 0 || int(e) >= c.NumExperts {
			return Report{Routing: fmt.Errorf("token %d slot %d went to expert %d of %d", i/c.TopK, i%c.TopK, e, c.NumExperts)}, nil
		}
	}
	tokens := reference.SampleTokens(r.ExpertIDs, t.Tokens, c.TopK, c.NumExperts, want)
	rep := Report{Sampled: len(tokens), Bounds: reference.BoundsOf(c.Type, reference.Unrounded), ScoreBound: scoreBoundOf(c.Logits)}
	if routed {
		if rep.Score, rep.Routing, err = t.checkRouting(ref, r, tokens); err != nil {
			return rep, err
		}
	}
	err = t.checkExperts(&rep, ref, r, tokens)
	return rep, err
}

// checkExperts compares O of some tokens. It also compares H if the results have H.
func (t *Trial) checkExperts(rep *Report, ref *reference.Layer, r Results, tokens []int32) error {
	c := t.Layer.Config()
	out, err := ref.Experts(t.X, reference.Widen(r.Scores), r.ExpertIDs, tokens, reference.Unrounded)
	if err != nil {
		return err
	}
	rep.O = reference.CompareOf(c.Type, reference.Gather(r.O, tokens, c.Hidden), out.O, len(tokens), c.Hidden)
	if r.H != nil {
		rows := reference.Group(r.ExpertIDs, c.NumExperts).Row
		var of []int32
		for _, token := range tokens {
			of = append(of, rows[int(token)*c.TopK:int(token+1)*c.TopK]...)
		}
		rep.H = reference.CompareOf(c.Type, reference.Gather(r.H, of, c.HWidth()), out.H, len(of), c.HWidth())
		if width := c.HParts() * c.SharedWidth(); width > 0 {
			rep.SharedH = reference.CompareOf(c.Type, reference.Gather(r.SharedH, tokens, width), out.SharedH, len(tokens), width)
		}
	}
	return nil
}

// checkRouting compares the experts and scores of the tokens with those that follow from
// float64 logits. If rounding may swap two logits, it accepts them in both orders.
func (t *Trial) checkRouting(ref *reference.Layer, r Results, tokens []int32) (score float64, wrong, err error) {
	c := t.Layer.Config()
	routing, err := ref.Route(t.X, tokens, reference.Unrounded)
	if err != nil {
		return 0, nil, err
	}
	if judgedByLogits(c) {
		return t.checkLogits(ref, r, tokens, routing.Logits)
	}
	for i, token := range tokens {
		logits := routing.Logits[i*c.NumExperts : (i+1)*c.NumExperts]
		chosen := r.ExpertIDs[int(token)*c.TopK : int(token+1)*c.TopK]
		scores := r.Scores[int(token)*c.TopK : int(token+1)*c.TopK]
		if err := plausible(token, logits, chosen, step(c.Logits)); err != nil && wrong == nil {
			wrong = err
		}
		var sum float64
		for _, e := range chosen {
			sum += math.Exp(logits[e])
		}
		for k, e := range chosen {
			off := math.Abs(float64(scores[k]) - math.Exp(logits[e])/sum)
			if !(off <= score) {
				score = off
			}
		}
	}
	return score, wrong, nil
}

// judgedByLogits reports whether the routing must be checked with the device's logits. This is
// so unless the routing is a softmax over the largest logits.
func judgedByLogits(c moe.Config) bool { return c.SavesLogits() || c.Scale() != 1 || c.Groups != 0 }

// checkLogits compares the device's logits of the tokens with float64 logits. It compares the
// device's experts and scores with the reference's routing of the device's logits.
func (t *Trial) checkLogits(ref *reference.Layer, r Results, tokens []int32, exact []float64) (score float64, wrong, err error) {
	c := t.Layer.Config()
	logits, err := t.logits(tokens)
	if err != nil {
		return 0, nil, err
	}
	for i, got := range logits {
		if want := exact[i]; math.Abs(got-want) > math.Abs(want)*step(c.Logits)+1e-5 {
			return 0, fmt.Errorf("token %d: the logit of expert %d is %g, must be %g", tokens[i/c.NumExperts], i%c.NumExperts, got, want), nil
		}
	}
	want, err := ref.RouteLogits(logits, reference.Rounded)
	if err != nil {
		return 0, nil, err
	}
	for i, token := range tokens {
		keys := ref.Keys(logits[i*c.NumExperts:][:c.NumExperts], reference.Rounded)
		seen := map[int32]bool{}
		for k := range c.TopK {
			got, of := r.ExpertIDs[int(token)*c.TopK+k], want.ExpertIDs[i*c.TopK+k]
			if seen[got] {
				return 0, fmt.Errorf("token %d chose expert %d twice", token, got), nil
			}
			seen[got] = true
			if got == of {
				got, want := float64(r.Scores[int(token)*c.TopK+k]), want.Scores[i*c.TopK+k]
				if off := math.Abs(got - want); !(off <= scoreStep*want) {
					return off, fmt.Errorf("token %d: the score of slot %d is %g, must be %g", token, k, got, want), nil
				}
				score = max(score, math.Abs(got-want))
			} else if off := math.Abs(keys[got] - keys[of]); !c.SelectionBias || !(off <= 1e-6*(1+math.Abs(keys[of]))) {
				return 0, fmt.Errorf("token %d: slot %d has expert %d with key %g, must have %d with %g", token, k, got, keys[got], of, keys[of]), nil
			}
		}
	}
	return score, nil, nil
}

// logits returns the device's logits of the tokens, or of all tokens if tokens is nil.
func (t *Trial) logits(tokens []int32) ([]float64, error) {
	experts := t.Layer.Config().NumExperts
	if t.Args.Logits.IsZero() {
		return nil, &moe.ArgError{Field: "Trial.Args.Logits", Got: "missing", Want: "a tensor, to judge this layer's choice by"}
	}
	all := make([]float64, t.Args.Logits.Shape.Elements())
	if err := moe.Read(t.stream, t.Args.Logits, all); err != nil {
		return nil, err
	}
	if tokens == nil {
		return all, nil
	}
	return reference.Gather(all, tokens, experts), nil
}

// step returns the smallest relative difference of two logits that rounding cannot swap. It is
// one step of the logits' format. For F32 it is the error of an FP32 sum.
func step(l moe.Type) float64 {
	return map[moe.Type]float64{moe.BF16: 1.0 / 128, moe.F16: 1.0 / 1024, moe.F32: 1e-5}[l]
}

// plausible checks a token's experts by its float64 logits. No other expert may be clearly
// better than a chosen one, the chosen experts must be in descending order, and none may be
// chosen twice. Logits that differ by less than step are in any order.
func plausible(token int32, logits []float64, chosen []int32, step float64) error {
	slack := func(x float64) float64 { return math.Abs(x)*step + 1e-5 }
	seen := map[int32]bool{}
	least := math.Inf(1)
	for k, e := range chosen {
		if seen[e] {
			return fmt.Errorf("token %d chose expert %d twice", token, e)
		}
		seen[e] = true
		if k > 0 && logits[e] > least+slack(least) {
			return fmt.Errorf("token %d: expert %d with logit %g stands after %g", token, e, logits[e], least)
		}
		least = min(least, logits[e])
	}
	for e, x := range logits {
		if !seen[int32(e)] && x > least+slack(least) {
			return fmt.Errorf("token %d left out expert %d with logit %g, though one with %g was chosen", token, e, x, least)
		}
	}
	return nil
}
