package reference

import (
	"slices"
)

// TokenGradients are the gradients that belong to tokens. Row i is for the
// i-th token asked for.
type TokenGradients struct {
	// Tokens are the tokens, in the order asked for.
	Tokens []int32
	// DX [tokens, d] is the gradient of the input.
	DX []float64
	// DScores [tokens, K] is the gradient of the scores taken as inputs of
	// their own: 0 in skipped slots.
	DScores []float64
	// DLogits [tokens, K] is that of the chosen logits, without Extra. Nil
	// unless Routed.
	DLogits []float64
}

// Tokens gives the gradients of the listed tokens (nil: all of them).
//
// The work is 10·K·n·d operations a token (6 where H is given) and the decoding
// of the weights of each expert met; it is spread over all processors.
func (g *Gradients) Tokens(tokens []int32) (TokenGradients, error) {
	tokens, err := g.tokens(g.in.X, tokens)
	if err != nil {
		return TokenGradients{}, err
	}
	c, k := g.config, g.config.TopK
	out := TokenGradients{
		Tokens:  slices.Clone(tokens),
		DX:      make([]float64, len(tokens)*c.Hidden),
		DScores: make([]float64, len(tokens)*k),
	}
	pairs := g.pairs(tokens, g.in.ExpertIDs)
	h := g.preactivations(pairs, tokens, g.tokenRows(g.in.X, tokens))
	do := g.tokenRows(g.in.DO, tokens)
	rows := make([][]float64, len(pairs))
	for i, p := range pairs {
		rows[i] = do[p.row/k]
	}
	da := transposed(rows, g.groups(pairs, g.w2, c.Hidden*c.Intermediate), c.Hidden, c.Intermediate)
	dh := g.activations(out.DScores, h, da, pairs, tokens)
	if g.in.Routed {
		out.DLogits = g.dlogits(out.DScores, tokens)
	}
	dx := transposed(dh, g.groups(pairs, g.w1, 2*c.Intermediate*c.Hidden), 2*c.Intermediate, c.Hidden)
	g.routerTerm(dx, pairs, out.DLogits)
	g.sum(out.DX, dx, pairs, g.extraRows(tokens))
	return out, nil
}

// activations gives dH of the pairs in the order of W1's rows, and stores the
// scores' gradients.
func (g *Gradients) activations(dscores []float64, h, da [][]float64, pairs []pair, tokens []int32) [][]float64 {
	n, k := g.config.Intermediate, g.config.TopK
	layout := g.config.GateUp
	dh := matrix(len(pairs), 2*n)
	parallel(len(pairs), func() func(int) {
		return func(i int) {
			p := pairs[i]
			score := g.in.Scores[int(tokens[p.row/k])*k+p.row%k]
			var sum float64
			for j := range n {
				a, dgate, dup := neuron(h[i][j], h[i][n+j], score, da[i][j])
				sum += da[i][j] * a
				dh[i][layout.GateRow(j, n)] = g.rounding.bf16(dgate)
				dh[i][layout.UpRow(j, n)] = g.rounding.bf16(dup)
			}
			dscores[p.row] = g.rounding.f32(sum)
		}
	})
	return dh
}

// dlogits are the gradients of the tokens' chosen logits.
func (g *Gradients) dlogits(dscores []float64, tokens []int32) []float64 {
	out := SoftmaxBackward(Gather(g.in.Scores, tokens, g.config.TopK), dscores, g.config.TopK)
	for i, v := range out {
		out[i] = g.rounding.f32(v)
	}
	return out
}

// SoftmaxBackward gives the gradients of a softmax's inputs from those of its
// results, both [tokens, K]: s_k·(dS_k - Σ_j s_j·dS_j). The slices must be of
// one length, a multiple of K.
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

// routerTerm adds dlogit·W_r[e] to the rows of dX~, where the layer routes,
// and rounds them.
func (g *Gradients) routerTerm(dx [][]float64, pairs []pair, dlogits []float64) {
	d := g.config.Hidden
	parallel(len(pairs), func() func(int) {
		w := make([]float64, d)
		return func(i int) {
			if dlogits != nil {
				p := pairs[i]
				decode(w, g.router[int(p.expert)*d:][:d])
				for c, v := range w {
					dx[i][c] += dlogits[p.row] * v
				}
			}
			for c, v := range dx[i] {
				dx[i][c] = g.rounding.bf16(v)
			}
		}
	})
}

// extraRows gives Extra·W_r of the tokens, nil where there is none.
func (g *Gradients) extraRows(tokens []int32) [][]float64 {
	if g.in.Extra == nil {
		return nil
	}
	e := g.config.NumExperts
	rows := make([][]float64, len(tokens))
	var groups []group
	for i, t := range tokens {
		rows[i] = g.in.Extra[int(t)*e:][:e]
		if i%routeGroup == 0 {
			groups = append(groups, group{first: i, weights: g.router})
		}
		groups[len(groups)-1].count++
	}
	out := transposed(rows, groups, e, g.config.Hidden)
	for _, row := range out {
		for c, v := range row {
			row[c] = g.rounding.bf16(v)
		}
	}
	return out
}

// sum gives dX: each token's rows of dX~ in slot order, then its extra row.
func (g *Gradients) sum(dx []float64, rows [][]float64, pairs []pair, extra [][]float64) {
	d, k := g.config.Hidden, g.config.TopK
	tokens := len(dx) / d
	at := make([]int, tokens*k) // 1 + index of the slot's pair, 0: skipped
	for i, p := range pairs {
		at[p.row] = i + 1
	}
	parallel(tokens, func() func(int) {
		return func(i int) {
			sum := dx[i*d:][:d]
			add := func(row []float64) {
				for c, v := range row {
					sum[c] += v
				}
			}
			for _, p := range at[i*k : (i+1)*k] {
				if p > 0 {
					add(rows[p-1])
				}
			}
			if extra != nil {
				add(extra[i])
			}
			for c, v := range sum {
				sum[c] = g.rounding.bf16(v)
			}
		}
	})
}
