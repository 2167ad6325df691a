package reference

import (
	"sonicmoe/internal/spec"
)

// Router returns dW_r [E, d], the gradient of the router's weights. dlogits holds the gradients
// of the logits of all tokens, from [Gradients.Tokens] or from a kernel: [T, K] of the chosen
// logits, or [T, E] with SoftmaxAll. Extra of [Backward] is added to them.
func (g *Gradients) Router(dlogits []float64) ([]float64, error) {
	c := g.config
	if err := g.checkDLogits(dlogits); err != nil {
		return nil, err
	}
	const width = 64
	out := make([]float64, c.NumExperts*c.Hidden)
	parallel((c.Hidden+width-1)/width, func() func(int) {
		x := make([]float64, width)
		return func(block int) {
			c0 := block * width
			x := x[:min(width, c.Hidden-c0)]
			for t := range len(g.in.X) / c.Hidden {
				stored(g.in.X[t*c.Hidden+c0:][:len(x)], c.Type).decode(x)
				g.eachDLogit(t, dlogits, func(e int, dlogit float64) {
					for i, v := range x {
						out[e*c.Hidden+c0+i] += dlogit * v
					}
				})
			}
		}
	})
	return out, nil
}

// RouterBias returns the gradient, [E], of the router's bias. dlogits has the shape that
// [Gradients.Router] describes.
func (g *Gradients) RouterBias(dlogits []float64) ([]float64, error) {
	if err := g.checkDLogits(dlogits); err != nil {
		return nil, err
	}
	out := make([]float64, g.config.NumExperts)
	for t := range len(g.in.X) / g.config.Hidden {
		g.eachDLogit(t, dlogits, func(e int, dlogit float64) { out[e] += dlogit })
	}
	return out, nil
}

func (g *Gradients) checkDLogits(dlogits []float64) error {
	want, shape := len(g.in.Scores), "[T, K]"
	if g.dense() {
		want, shape = len(g.in.X)/g.config.Hidden*g.config.NumExperts, "[T, E]"
	}
	if len(dlogits) != want {
		return lengthError("dlogits", len(dlogits), want, shape)
	}
	return nil
}

// eachDLogit calls do for every term of the gradients of a token's logits. One logit may have
// several terms, which the caller adds.
func (g *Gradients) eachDLogit(t int, dlogits []float64, do func(e int, dlogit float64)) {
	c := g.config
	if g.dense() {
		for e, v := range dlogits[t*c.NumExperts:][:c.NumExperts] {
			do(e, v)
		}
	} else {
		for f := t * c.TopK; f < (t+1)*c.TopK; f++ {
			if e := g.in.ExpertIDs[f]; g.has(e) {
				do(int(e), dlogits[f])
			}
		}
	}
	if g.in.Extra != nil {
		for e, v := range g.in.Extra[t*c.NumExperts:][:c.NumExperts] {
			do(e, v)
		}
	}
}

// ExpertScale returns the gradient, [E], of the experts' scales, given the gradients of all
// tokens' scores, [T, K].
func (g *Gradients) ExpertScale(dscores []float64) ([]float64, error) {
	c := g.config
	switch {
	case g.expertScale == nil:
		return nil, &spec.ArgError{Field: "Config.ExpertScale", Got: "false", Want: "true for its gradient"}
	case len(dscores) != len(g.in.Scores):
		return nil, lengthError("dscores", len(dscores), len(g.in.Scores), "[T, K]")
	}
	out := make([]float64, c.NumExperts)
	tokens := indices(len(g.in.X) / c.Hidden)
	logits := g.logits(tokens)
	for t := range tokens {
		chosen := g.in.ExpertIDs[t*c.TopK:][:c.TopK]
		raw := g.rawScores(logits[t*c.NumExperts:][:c.NumExperts], chosen, g.rounding)
		z, _ := g.norm(raw, g.inside(chosen))
		for k, e := range chosen {
			if g.has(e) {
				out[e] += raw[e] / z * c.Scale() * dscores[t*c.TopK+k]
			}
		}
	}
	return out, nil
}

// SharedGate returns the gradient, [d], of wg, the weights of the shared experts' gate. dgate
// holds the gradient of x·wg for each token x.
func (g *Gradients) SharedGate(dgate []float64) ([]float64, error) {
	d := g.config.Hidden
	switch tokens := len(g.in.X) / d; {
	case g.sharedGate == nil:
		return nil, &spec.ArgError{Field: "Config.SharedGate", Got: "false", Want: "true for its gradient"}
	case len(dgate) != tokens:
		return nil, lengthError("dgate", len(dgate), tokens, "[T]")
	}
	out, x := make([]float64, d), make([]float64, d)
	for t, v := range dgate {
		stored(g.in.X[t*d:][:d], g.config.Type).decode(x)
		axpy(out, []float64{v}, [][]float64{x})
	}
	return out, nil
}
