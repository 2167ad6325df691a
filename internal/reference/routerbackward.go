package reference

import "sonicmoe/internal/spec"

// dense reports whether a token's scores depend on all of its logits, not only on those of its
// chosen experts.
func (l *Layer) dense() bool { return l.config.Score == spec.SoftmaxAll }

// logitWidth returns the number of logits of a token that have a gradient from the scores: E if
// dense, otherwise K.
func (l *Layer) logitWidth() int {
	if l.dense() {
		return l.config.NumExperts
	}
	return l.config.TopK
}

// DLogits returns the gradients of the logits of all T tokens, given the gradients of the
// scores [T, K]. The result has the chosen logits [T, K], or with SoftmaxAll all logits [T, E].
func (g *Gradients) DLogits(dscores []float64) ([]float64, error) {
	if len(dscores) != len(g.in.Scores) {
		return nil, lengthError("dscores", len(dscores), len(g.in.Scores), "[T, K]")
	}
	return g.dlogits(dscores, indices(len(g.in.X)/g.config.Hidden)), nil
}

// dlogits is [Gradients.DLogits] for a list of tokens.
func (g *Gradients) dlogits(dscores []float64, tokens []int32) []float64 {
	c, width := g.config, g.logitWidth()
	out := make([]float64, len(tokens)*width)
	logits := g.logits(tokens)
	each(len(tokens), func(i int) {
		at := int(tokens[i]) * c.TopK
		var row []float64
		if logits != nil {
			row = logits[i*c.NumExperts:][:c.NumExperts]
		}
		to := out[i*width:][:width]
		g.routerBackward(to, row, g.in.Scores[at:][:c.TopK], dscores[i*c.TopK:][:c.TopK], g.in.ExpertIDs[at:][:c.TopK])
		for j, v := range to {
			to[j] = g.rounding.f32(v)
		}
	})
	return out
}

// logits returns the logits of tokens. It returns nil for a softmax over the chosen logits,
// because the gradient of these logits follows from the scores alone.
func (g *Gradients) logits(tokens []int32) []float64 {
	c := g.config
	switch {
	case !c.SavesLogits():
		return nil
	case g.in.Logits != nil:
		return Gather(g.in.Logits, tokens, c.NumExperts)
	}
	out := make([]float64, len(tokens)*c.NumExperts)
	g.eachLogits(g.in.X, tokens, g.rounding, func(i int, row []float64) { copy(out[i*c.NumExperts:], row) })
	return out
}

// routerBackward computes a token's dlogits from its dscores. dscores must be 0 in slots whose
// expert the layer does not have.
func (g *Gradients) routerBackward(dlogits, logits, scores, dscores []float64, chosen []int32) {
	if logits == nil {
		w := make([]float64, len(scores))
		for k, s := range scores {
			w[k] = s / g.config.Scale()
		}
		for k, v := range SoftmaxBackward(w, dscores, len(w)) {
			dlogits[k] = g.config.Scale() * v
		}
		return
	}
	raw := g.rawScores(logits, chosen, g.rounding)
	w, dw := g.normBackward(raw, dscores, chosen)
	switch g.config.Score {
	case spec.SoftmaxTopK:
		copy(dlogits, SoftmaxBackward(w, dw, len(w)))
	case spec.SoftmaxAll:
		mean := dot(w, dw)
		for e, p := range raw {
			dlogits[e] = -p * mean
		}
		for k, e := range chosen {
			if g.has(e) {
				dlogits[e] += w[k] * dw[k]
			}
		}
	default:
		for k, e := range chosen {
			if g.has(e) {
				dlogits[k] = dw[k] * g.slope(logits[e], w[k])
			}
		}
	}
}

// slope returns the derivative of a raw score with respect to its own logit, for Sigmoid
// and SqrtSoftplus.
func (l *Layer) slope(logit, score float64) float64 {
	switch {
	case l.config.Score == spec.Sigmoid:
		return score * (1 - score)
	case score == 0:
		return 0
	}
	return sigmoid(logit) / (2 * score)
}

// normBackward returns the raw scores of the chosen experts and the gradients of these scores.
// Both are 0 in slots whose expert the layer does not have.
func (l *Layer) normBackward(raw, dscores []float64, chosen []int32) (w, dw []float64) {
	w, dw = make([]float64, len(chosen)), make([]float64, len(chosen))
	for k, e := range chosen {
		if l.has(e) {
			w[k], dw[k] = raw[e], l.factor(e)*dscores[k]
		}
	}
	z, moves := l.norm(raw, l.inside(chosen))
	mean := 0.0
	if moves {
		mean = dot(w, dw) / z
	}
	for k, e := range chosen {
		if l.has(e) {
			dw[k] = (dw[k] - mean) / z
		}
	}
	return w, dw
}

// SoftmaxBackward returns the gradients of the inputs of a softmax over topK = K values, given
// its results and their gradients dS, both [tokens, K]: s_k·(dS_k - Σ_j s_j·dS_j). The two
// slices must have the same length, a multiple of K.
func SoftmaxBackward(scores, dscores []float64, topK int) []float64 {
	out := make([]float64, len(scores))
	for i := 0; i+topK <= len(scores); i += topK {
		mean := dot(scores[i:i+topK], dscores[i:i+topK])
		for j := i; j < i+topK; j++ {
			out[j] = scores[j] * (dscores[j] - mean)
		}
	}
	return out
}
