package main

import "math"

// embedding turns the symbols before a position into the position's token. A token is the sum
// of one vector for each symbol. There is a table of vectors for each distance from the
// position. The model has no attention.
type embedding struct {
	table            *param // [context, symbols, d]
	context, symbols int
	d                int
	batch            batch
}

// row returns the index in table.w of the vector for the i-th symbol of a token.
func (e *embedding) row(token, i int) int {
	return (i*e.symbols + int(e.batch.before[token*e.context+i])) * e.d
}

// forward returns the tokens x [T, d] of a batch.
func (e *embedding) forward(b batch) []float64 {
	e.batch = b
	tokens := len(b.before) / e.context
	x := make([]float64, tokens*e.d)
	inParallel(tokens, func(first, last int) {
		for t := first; t < last; t++ {
			for i := range e.context {
				addScaled(x[t*e.d:][:e.d], 1, e.table.w[e.row(t, i):][:e.d])
			}
		}
	})
	return x
}

// backward adds to the gradient of the table.
func (e *embedding) backward(dx []float64) {
	inParallel(e.context, func(first, last int) { // each distance has its own table, so the ranges share no memory
		for i := first; i < last; i++ {
			for t := range e.batch.next {
				addScaled(e.table.grad[e.row(t, i):][:e.d], 1, dx[t*e.d:][:e.d])
			}
		}
	})
}

// norm is an RMS norm: y = gain·x/√(mean of x²).
type norm struct {
	gain    *param    // [d]
	x       []float64 // input of the latest pass
	inverse []float64 // 1/√(mean x²) of each row of x
}

// leastSquare is added to the mean of x², so that the norm of a row of zeros is finite.
const leastSquare = 1e-6

func (n *norm) forward(x []float64) []float64 {
	d, y := len(n.gain.w), make([]float64, len(x))
	n.x, n.inverse = x, make([]float64, len(x)/d)
	inParallel(len(n.inverse), func(first, last int) {
		for t := first; t < last; t++ {
			row := x[t*d:][:d]
			r := 1 / math.Sqrt(dot(row, row)/float64(d)+leastSquare)
			n.inverse[t] = r
			for i, v := range row {
				y[t*d+i] = n.gain.w[i] * v * r
			}
		}
	})
	return y
}

// backward returns the gradient of x and adds to the gradient of the gain.
func (n *norm) backward(dy []float64) []float64 {
	d, dx := len(n.gain.w), make([]float64, len(dy))
	inParallel(len(n.inverse), func(first, last int) {
		for t := first; t < last; t++ {
			x, dy, dx := n.x[t*d:][:d], dy[t*d:][:d], dx[t*d:][:d]
			r, along := n.inverse[t], 0.0
			for i, v := range x {
				along += dy[i] * n.gain.w[i] * v
			}
			for i, v := range x {
				dx[i] = r*n.gain.w[i]*dy[i] - r*r*r*along/float64(d)*v
			}
		}
	})
	inParallel(d, func(first, last int) {
		for t, r := range n.inverse {
			for i := first; i < last; i++ {
				n.gain.grad[i] += dy[t*d+i] * n.x[t*d+i] * r
			}
		}
	})
	return dx
}

// head predicts the next symbol with a matrix product and a softmax. Its loss is the cross
// entropy.
type head struct {
	weight *param // [symbols, d]
	d      int
	x      []float64
	dlogit []float64 // gradient of the mean loss with respect to the logits
}

// forward returns the mean cross entropy in nats, for inputs x [T, d] and the symbols that
// follow.
func (h *head) forward(x []float64, next []uint8) float64 {
	h.x = x
	symbols, tokens := len(h.weight.w)/h.d, len(next)
	h.dlogit = h.logits(x)
	softmaxRows(h.dlogit, symbols)
	var loss float64
	for t, want := range next {
		p := h.dlogit[t*symbols:][:symbols]
		loss -= math.Log(p[want])
		p[want]--
		for i := range p {
			p[i] /= float64(tokens)
		}
	}
	return loss / float64(tokens)
}

// logits returns the logits, [T, symbols].
func (h *head) logits(x []float64) []float64 {
	return timesTransposed(x, h.weight.w, len(x)/h.d, len(h.weight.w)/h.d, h.d)
}

// backward returns the gradient of x and adds to the gradient of the weight. Both are
// multiplied by scale.
func (h *head) backward(scale float64) []float64 {
	for i := range h.dlogit {
		h.dlogit[i] *= scale
	}
	symbols := len(h.weight.w) / h.d
	tokens := len(h.x) / h.d
	addTransposedTimes(h.weight.grad, h.dlogit, h.x, tokens, symbols, h.d)
	return times(h.dlogit, h.weight.w, tokens, symbols, h.d)
}

// softmaxRows replaces each row of n logits by its softmax.
func softmaxRows(logits []float64, n int) {
	inParallel(len(logits)/n, func(first, last int) {
		for i := first; i < last; i++ {
			softmax(logits[i*n:][:n])
		}
	})
}

// softmax replaces logits by their softmax.
func softmax(p []float64) {
	most := math.Inf(-1)
	for _, v := range p {
		most = max(most, v)
	}
	var sum float64
	for i, v := range p {
		p[i] = math.Exp(v - most)
		sum += p[i]
	}
	for i := range p {
		p[i] /= sum
	}
}
