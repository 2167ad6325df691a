package reference

import "slices"

// TokenGradients are gradients with one row for each token of a list. Row i belongs to the i-th
// token of the list.
type TokenGradients struct {
	// Tokens lists the tokens, in the order in which they were asked for.
	Tokens []int32
	// DX [tokens, d] is the gradient of the input.
	DX []float64
	// DScores [tokens, K] is the gradient with respect to the scores. It is 0 in skipped slots.
	DScores []float64
	// DLogits is the gradient of the chosen logits [tokens, K], or with SoftmaxAll of all
	// logits [tokens, E]. It does not include Extra of [Backward], and it is nil unless Routed
	// is true there.
	DLogits []float64
	// DSharedGate [tokens] is the gradient of x·wg for the shared experts' gate wg. It is nil
	// without such a gate.
	DSharedGate []float64
}

// Tokens returns the gradients of a list of tokens, or of all tokens if tokens is nil.
//
// The work is 10·K·n·d operations for each token (6·K·n·d if H is given), plus the decoding of
// the weights of each expert in use. It runs on all processors.
func (g *Gradients) Tokens(tokens []int32) (TokenGradients, error) {
	tokens, err := g.tokens(g.in.X, tokens)
	if err != nil {
		return TokenGradients{}, err
	}
	out := TokenGradients{
		Tokens: slices.Clone(tokens),
		DX:     make([]float64, len(tokens)*g.config.Hidden),
	}
	x, do := g.tokenRows(g.in.X, tokens), g.tokenRows(g.in.DO, tokens)
	pairs := g.pairs(tokens, g.in.ExpertIDs)
	rows, dscores := g.routed.tokens(tokens, pairs, x, do)
	out.DScores = dscores
	if g.in.Routed {
		out.DLogits = g.dlogits(out.DScores, tokens)
	}
	g.routerTerm(rows, pairs, out.DLogits)
	slots := g.config.TopK
	at := make([][]float64, len(tokens)*slots)
	for i, p := range pairs {
		at[p.row] = rows[i]
	}
	ends := [][][]float64{g.sharedRows(&out, tokens, x, do), g.extraRows(tokens, out.DLogits)}
	each(len(tokens), func(i int) {
		sum := out.DX[i*g.config.Hidden:][:g.config.Hidden]
		add := func(row []float64) {
			for c, v := range row {
				sum[c] += v
			}
		}
		for _, row := range at[i*slots:][:slots] {
			add(row)
		}
		for _, rows := range ends {
			if rows != nil {
				add(rows[i])
			}
		}
		for c, v := range sum {
			sum[c] = g.rounding.store(v)
		}
	})
	return out, nil
}

// tokens returns, for each pair, dH·W1 and, for each slot of the tokens, the gradient of its
// score. x and do are the decoded rows of the tokens.
func (p *pass) tokens(tokens []int32, pairs []pair, x, do [][]float64) (dx [][]float64, dscores []float64) {
	dh, dscores := p.hidden(tokens, pairs, x, do, nil)
	dx = transposed(dh, groups(pairs, p.w1, p.rows*p.d), p.rows, p.d)
	if p.lora != nil {
		p.lora.addBack(dx, dh, pairs, p.lora.a1, p.lora.b1, p.rounding)
	}
	return dx, dscores
}

// hidden returns dH of each pair and the gradients of the scores, as tokens does. Unless scaled
// is nil, it sets scaled to A' of each pair.
func (p *pass) hidden(tokens []int32, pairs []pair, x, do, scaled [][]float64) (dh [][]float64, dscores []float64) {
	h := p.preactivations(pairs, tokens, x)
	rows := make([][]float64, len(pairs))
	for i, at := range pairs {
		rows[i] = do[at.row/p.topK]
	}
	da := transposed(rows, groups(pairs, p.w2, p.d*p.n), p.d, p.n)
	if p.lora != nil {
		p.lora.addBack(da, rows, pairs, p.lora.a2, p.lora.b2, p.rounding)
	}
	dscores = make([]float64, len(tokens)*p.topK)
	each(len(pairs), func(i int) {
		at := pairs[i]
		flat := p.flat(at, tokens)
		score, in := p.scores[flat], p.inputScore(flat)
		var sum float64
		for j := range p.n {
			gate, up := p.inputs(h[i], j)
			a, dgate, dup := p.gradient(in*gate, in*up, score*da[i][j])
			if scaled != nil {
				scaled[i][j] = p.rounding.store(p.outputScore(flat) * a)
			}
			if p.onInput {
				// These derivatives leave out the score. Dividing dgate by the score would fail
				// for a score of 0.
				_, g, u := p.gradient(in*gate, in*up, da[i][j])
				sum += g*gate + u*up
			} else {
				sum += da[i][j] * a
			}
			h[i][j] = p.rounding.store(dgate)
			if p.gated {
				h[i][p.n+j] = p.rounding.store(dup)
			}
		}
		if p.b2 != nil {
			sum += dot(p.b2[int(at.expert)*p.d:][:p.d], rows[i])
		}
		dscores[at.row] = p.rounding.f32(sum)
	})
	return h, dscores
}

// routerTerm rounds the rows of dX~, the gradient of X for each pair. If only the chosen logits
// have gradients, it first adds dlogit·W_r[e], where W_r[e] is the router's row of the pair's
// expert e.
func (g *Gradients) routerTerm(dx [][]float64, pairs []pair, dlogits []float64) {
	d := g.config.Hidden
	parallel(len(pairs), func() func(int) {
		w := make([]float64, d)
		return func(i int) {
			if dlogits != nil && !g.dense() {
				p := pairs[i]
				g.router.part(int(p.expert)*d, d).decode(w)
				for c, v := range w {
					dx[i][c] += dlogits[p.row] * v
				}
			}
			g.storeRow(dx[i])
		}
	})
}

// sharedRows returns the rows of dX that come from the shared experts and their gate. It
// returns nil without shared experts.
func (g *Gradients) sharedRows(out *TokenGradients, tokens []int32, x, do [][]float64) [][]float64 {
	if g.shared == nil {
		return nil
	}
	rows, dg := g.shared.tokens(tokens, everyToken(len(tokens)), x, do)
	if g.sharedGate != nil {
		out.DSharedGate = dg
	}
	for i, row := range rows {
		if g.sharedGate != nil {
			s := g.shared.scores[tokens[i]]
			dg[i] = g.rounding.f32(s * (1 - s) * dg[i])
			for c, v := range g.sharedGate {
				row[c] += dg[i] * v
			}
		}
		g.storeRow(row)
	}
	return rows
}

// extraRows returns, for each token, the product of its logit gradients with the router's
// weights W_r. The logit gradients are Extra, plus dlogits if all logits have gradients. The
// result is nil if there is neither. (Gradients of only the chosen logits are added by
// routerTerm.)
func (g *Gradients) extraRows(tokens []int32, dlogits []float64) [][]float64 {
	if g.in.Extra == nil && (dlogits == nil || !g.dense()) {
		return nil
	}
	e := g.config.NumExperts
	rows := matrix(len(tokens), e)
	var groups []group
	for i, t := range tokens {
		for j := range e {
			rows[i][j] = g.extra(int(t), j)
			if g.dense() {
				rows[i][j] += dlogits[i*e+j]
			}
		}
		if i%routeGroup == 0 {
			groups = append(groups, group{first: i, weights: g.router})
		}
		groups[len(groups)-1].count++
	}
	out := transposed(rows, groups, e, g.config.Hidden)
	for _, row := range out {
		g.storeRow(row)
	}
	return out
}

// extra returns Extra of a token and an expert: the gradient of the logit from other losses. It
// is 0 if Extra is nil.
func (g *Gradients) extra(token, expert int) float64 {
	if g.in.Extra == nil {
		return 0
	}
	return g.in.Extra[token*g.config.NumExperts+expert]
}

// storeRow rounds the elements of a row to the layer's type.
func (g *Gradients) storeRow(row []float64) {
	for c, v := range row {
		row[c] = g.rounding.store(v)
	}
}
