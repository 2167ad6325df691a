package reference

import "sonicmoe/internal/spec"

// bank is a set of experts of the same width: the routed experts of a layer, or its shared
// experts as one expert. Weights are stored in one order for every configuration.
type bank struct {
	activation
	// d and n are the widths of the experts. rows is the number of rows of W1: 2n, or n
	// without a gate.
	d, n, rows int
	experts    int
	// gateUp is the order in which callers number W1's rows.
	gateUp spec.GateUp
	// w1 is [experts, rows, d], with gate before up. w2 is [experts, d, n].
	w1, w2 tensor
	// b1 is [experts, rows], with gate before up. b2 is [experts, d]. Both are nil without
	// biases.
	b1, b2 []float64
	// lora is nil without an adapter.
	lora *lora
}

// weights holds the tensors of a bank in the layout of the configuration. w3 and b3 are nil
// unless gate and up are separate tensors. The factors of the adapter are nil if there is no
// adapter.
type weights struct {
	w1, w3, w2, b1, b3, b2                 []uint16
	loraA1, loraB1, loraB3, loraA2, loraB2 []uint16
}

// newBank returns a bank of weights in the order of type bank. It keeps weights that are
// already in this order and copies the others. inOut reports whether the matrices of w are
// stored as [in, out].
func newBank(c spec.Config, experts, n int, gateUp spec.GateUp, inOut bool, w weights) bank {
	b := bank{activation: activationOf(c), d: c.Hidden, n: n, rows: n, experts: experts, gateUp: gateUp}
	if b.gated {
		b.rows = 2 * n
	}
	// rowsOf returns, for every expert, the rows of w1 followed by those of w3, with gate
	// before up. width is the length of a row.
	rowsOf := func(w1, w3 []uint16, width int, inOut bool) []uint16 {
		parts := [][]uint16{w1}
		if len(w3) > 0 {
			parts = append(parts, w3)
		}
		if len(parts) == 1 && !inOut && gateUp != spec.Interleaved {
			return w1
		}
		out := make([]uint16, experts*b.rows*width)
		rows := b.rows / len(parts)
		each(experts*len(parts), func(task int) {
			e, part := task/len(parts), task%len(parts)
			from := parts[part][e*rows*width:][:rows*width]
			to := out[(e*b.rows+part*rows)*width:][:rows*width]
			for r := range rows {
				at := r
				if gateUp == spec.Interleaved {
					at = b.place(r)
				}
				copyRow(to[at*width:][:width], from, r, rows, inOut)
			}
		})
		return out
	}
	b.w1 = stored(rowsOf(w.w1, w.w3, b.d, inOut), c.Type)
	b.w2 = stored(outIn(w.w2, experts, b.d, n, inOut), c.Type)
	if len(w.b1) > 0 {
		b.b1 = stored(rowsOf(w.b1, w.b3, 1, false), c.Type).values()
		b.b2 = stored(w.b2, c.Type).values()
	}
	if len(w.loraA1) > 0 {
		rank := c.LoRARank
		b.lora = &lora{rank: rank, scale: float64(spec.LoRAScale(c)),
			a1: stored(outIn(w.loraA1, experts, rank, b.d, inOut), c.Type), b1: stored(rowsOf(w.loraB1, w.loraB3, rank, inOut), c.Type),
			a2: stored(outIn(w.loraA2, experts, rank, n, inOut), c.Type), b2: stored(outIn(w.loraB2, experts, b.d, rank, inOut), c.Type)}
	}
	return b
}

// outIn returns the matrices of w as [experts, out, in]. If inOut is true, w holds [experts,
// in, out].
func outIn(w []uint16, experts, out, in int, inOut bool) []uint16 {
	if !inOut {
		return w
	}
	to := make([]uint16, len(w))
	each(experts, func(e int) {
		for r := range out {
			copyRow(to[(e*out+r)*in:][:in], w[e*out*in:][:out*in], r, out, inOut)
		}
	})
	return to
}

// copyRow copies row r of a matrix with the given number of rows. If inOut is true, the matrix
// is stored transposed, so that r is a column.
func copyRow(to, from []uint16, r, rows int, inOut bool) {
	if !inOut {
		copy(to, from[r*len(to):])
		return
	}
	for i := range to {
		to[i] = from[i*rows+r]
	}
}

// place returns the index in w1 of the row that the caller's layout numbers r.
func (b *bank) place(r int) int {
	if b.gated && b.gateUp == spec.Interleaved {
		return r%2*b.n + r/2
	}
	return r
}

// pair is a (token, slot) pair together with the slot's expert.
type pair struct {
	row    int // i·K + k, for slot k of the i-th token of the list of tokens
	expert int32
}

// groups returns the runs of consecutive pairs with the same expert. Each expert has size
// elements of weights.
func groups(pairs []pair, weights tensor, size int) []group {
	var list []group
	for i, p := range pairs {
		if i == 0 || p.expert != pairs[i-1].expert {
			list = append(list, group{first: i, weights: weights.part(int(p.expert)*size, size)})
		}
		list[len(list)-1].count++
	}
	return list
}

// up returns x·W1ᵀ for the pairs, with the adapter and without bias. x has one row for each
// pair.
func (b *bank) up(x [][]float64, pairs []pair, r rounder) [][]float64 {
	h := product(x, groups(pairs, b.w1, b.rows*b.d), b.rows, b.d)
	if b.lora != nil {
		b.lora.add(h, x, pairs, b.lora.a1, b.lora.b1, r)
	}
	return h
}

// add adds the bias of an expert to a row. It does nothing if there are no biases.
func add(row, biases []float64, expert int32) {
	if biases == nil {
		return
	}
	for i, v := range biases[int(expert)*len(row):][:len(row)] {
		row[i] += v
	}
}

// forward returns, for each pair, H after rounding and Y before rounding. If scores is not nil,
// the input of the activation is H times the pair's score.
func (b *bank) forward(x [][]float64, pairs []pair, scores []float64, r rounder) (h, y [][]float64) {
	var a [][]float64
	h, a = b.activations(x, pairs, scores, r)
	for i := range h {
		for j, v := range h[i] {
			h[i][j] = r.store(v)
		}
	}
	y = product(a, groups(pairs, b.w2, b.d*b.n), b.d, b.n)
	if b.lora != nil {
		b.lora.add(y, a, pairs, b.lora.a2, b.lora.b2, r)
	}
	for i, p := range pairs {
		add(y[i], b.b2, p.expert)
	}
	return h, y
}

// activations returns, for each pair, H before rounding and A. Parameter scores is the same as in forward.
func (b *bank) activations(x [][]float64, pairs []pair, scores []float64, r rounder) (h, a [][]float64) {
	h = b.up(x, pairs, r)
	a = matrix(len(pairs), b.n)
	each(len(pairs), func(i int) {
		score := 1.0
		if scores != nil {
			score = scores[i]
		}
		add(h[i], b.b1, pairs[i].expert)
		// A is computed from the FP32 sums, not from the rounded H, as in the kernels.
		for j := range b.n {
			gate, up := b.inputs(h[i], j)
			a[i][j] = r.store(b.value(score*gate, score*up))
		}
	})
	return h, a
}
