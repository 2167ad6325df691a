package reference

// LoRAGradients holds the gradients of an adapter's factors for all experts.
type LoRAGradients struct {
	// A1 is [E, r, d], B1 [E, 2n, r] with gate before up, A2 [E, r, n], B2 [E, d, r].
	A1, B1, A2, B2 []float64
	bank           *bank
}

// LoRA returns the gradients of the adapter's factors.
func (g *Gradients) LoRA() (LoRAGradients, error) {
	p, c := &g.routed, g.config
	l, r := p.lora, c.LoRARank
	tokens, err := g.tokens(g.in.X, nil)
	if err != nil {
		return LoRAGradients{}, err
	}
	x, do := g.tokenRows(g.in.X, tokens), g.tokenRows(g.in.DO, tokens)
	pairs := g.pairs(tokens, g.in.ExpertIDs)
	scaled := matrix(len(pairs), p.n) // A'
	dh, _ := p.hidden(tokens, pairs, x, do, scaled)
	xs, dos := make([][]float64, len(pairs)), make([][]float64, len(pairs))
	for i, at := range pairs {
		xs[i], dos[i] = x[at.row/p.topK], do[at.row/p.topK]
	}
	u1, u2 := l.rows(product(xs, groups(pairs, l.a1, r*p.d), r, p.d), p.rounding), g.scaledU(tokens, pairs, xs)
	v1, v2 := l.rows(transposed(dh, groups(pairs, l.b1, p.rows*r), p.rows, r), p.rounding), l.rows(transposed(dos, groups(pairs, l.b2, p.d*r), p.d, r), p.rounding)
	return LoRAGradients{
		A1: p.outer(pairs, v1, xs), B1: p.outer(pairs, dh, u1), A2: p.outer(pairs, v2, scaled), B2: p.outer(pairs, dos, u2), bank: p.bank,
	}, nil
}

// scaledU returns the products of A2 with the activation of the forward pass, times the scores.
func (g *Gradients) scaledU(tokens []int32, pairs []pair, x [][]float64) [][]float64 {
	p := &g.routed
	scores, inputs := make([]float64, len(pairs)), make([]float64, len(pairs))
	for i, at := range pairs {
		scores[i], inputs[i] = p.outputScore(p.flat(at, tokens)), p.inputScore(p.flat(at, tokens))
	}
	_, a := p.activations(x, pairs, inputs, p.rounding)
	u := p.lora.rows(product(a, groups(pairs, p.lora.a2, p.lora.rank*p.n), p.lora.rank, p.n), p.rounding)
	for i := range u {
		for j, v := range u[i] {
			u[i][j] = p.rounding.store(scores[i] * v)
		}
	}
	return u
}

// outer returns Σ a[i]ᵀ·b[i] over the pairs of each expert, [experts, width of a, width of b].
func (p *pass) outer(pairs []pair, a, b [][]float64) []float64 {
	if len(pairs) == 0 {
		return nil
	}
	lines, width := len(a[0]), len(b[0])
	out := make([]float64, p.experts*lines*width)
	each(lines, func(line int) {
		for i, at := range pairs {
			sum := out[(int(at.expert)*lines+line)*width:][:width]
			for c, v := range b[i] {
				sum[c] += a[i][line] * v
			}
		}
	})
	return out
}

// Rows returns the listed rows of a gradient of the given number of rows and width. isB1 means
// that the rows are numbered as the rows of W1 in the order of GateUp.
func (g LoRAGradients) Rows(of []float64, list []ExpertRow, rows, width int, isB1 bool) []float64 {
	var out []float64
	for _, r := range list {
		at := r.Row
		if isB1 {
			at = g.bank.place(at)
		}
		out = append(out, of[(r.Expert*rows+at)*width:][:width]...)
	}
	return out
}

// lora is the adapter of a bank. a1 is [experts, r, d], b1 [experts, rows, r] with gate
// before up, a2 [experts, r, n], b2 [experts, d, r].
type lora struct {
	rank           int
	scale          float64
	a1, b1, a2, b2 tensor
}

// rows scales and rounds the sums of a factor's product.
func (l *lora) rows(sums [][]float64, r rounder) [][]float64 {
	for i := range sums {
		for j, v := range sums[i] {
			sums[i][j] = r.store(r.f32(l.scale * v))
		}
	}
	return sums
}

// add adds c·rows·aᵀ, rounded, times bᵀ to the sums. a has rows of width depth for each of
// the pairs' experts, b rows of the sums' length.
func (l *lora) add(sums, rows [][]float64, pairs []pair, a, b tensor, r rounder) {
	if len(rows) == 0 {
		return
	}
	depth, cols := len(rows[0]), len(sums[0])
	u := l.rows(product(rows, groups(pairs, a, l.rank*depth), l.rank, depth), r)
	addRows(sums, product(u, groups(pairs, b, cols*l.rank), cols, l.rank))
}

// addBack adds c·rows·b, rounded, times a to the sums: the gradient of add.
func (l *lora) addBack(sums, rows [][]float64, pairs []pair, a, b tensor, r rounder) {
	if len(rows) == 0 {
		return
	}
	depth, cols := len(rows[0]), len(sums[0])
	v := l.rows(transposed(rows, groups(pairs, b, depth*l.rank), depth, l.rank), r)
	addRows(sums, transposed(v, groups(pairs, a, l.rank*cols), l.rank, cols))
}

// addRows adds rows to sums.
func addRows(sums, rows [][]float64) {
	for i, row := range rows {
		for j, v := range row {
			sums[i][j] += v
		}
	}
}
