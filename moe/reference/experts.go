package reference

import (
	"fmt"
	"math"
	"slices"

	"sonicmoe/moe/spec"
)

// Output is what the experts make of the tokens asked for.
type Output struct {
	// Tokens are the tokens, in the order asked for.
	Tokens []int32
	// O is the layer's output of those tokens, [len(Tokens), d].
	O []float64
	// H is the pre-activation, gate then up, of token i in slot k at row
	// i·K + k: [len(Tokens)·K, 2n]. Rows of skipped experts are zero. (A kernel
	// orders its rows by expert.)
	H []float64
}

// pair is a token with one of its experts.
type pair struct {
	row    int // index of the token asked for · K + slot
	expert int32
}

// Experts gives O and H of the listed tokens of x [T, d] (nil: all of them).
// scores and experts are [T, K], of all tokens. An expert outside 0..E-1 is
// skipped: it adds nothing. The same expert may stand more than once.
//
// The work is 6·K·n·d operations a token and the decoding of the weights of
// each expert met; it is spread over all processors.
func (l *Layer) Experts(x []uint16, scores []float64, experts, tokens []int32, r Rounding) (Output, error) {
	c := l.config
	tokens, err := l.tokens(x, tokens)
	if err != nil {
		return Output{}, err
	}
	if err := checkRouting(len(x)/c.Hidden*c.TopK, len(scores), len(experts)); err != nil {
		return Output{}, err
	}
	rows, pairs := l.tokenRows(x, tokens), l.pairs(tokens, experts)
	in := make([][]float64, len(pairs))
	for i, p := range pairs {
		in[i] = rows[p.row/c.TopK]
	}
	h := product(in, l.groups(pairs, l.w1, 2*c.Intermediate*c.Hidden), 2*c.Intermediate, c.Hidden)

	out := Output{
		Tokens: slices.Clone(tokens),
		O:      make([]float64, len(tokens)*c.Hidden),
		H:      make([]float64, len(tokens)*c.TopK*2*c.Intermediate),
	}
	a := l.activate(out.H, h, pairs, r)
	y := product(a, l.groups(pairs, l.w2, c.Hidden*c.Intermediate), c.Hidden, c.Intermediate)
	l.aggregate(out.O, y, pairs, tokens, scores, r)
	return out, nil
}

func checkRouting(want, scores, experts int) error {
	if scores != want {
		return &spec.ArgError{Field: "scores", Got: elements(scores), Want: fmt.Sprintf("%d ([T, K])", want)}
	}
	if experts != want {
		return &spec.ArgError{Field: "experts", Got: elements(experts), Want: fmt.Sprintf("%d ([T, K])", want)}
	}
	return nil
}

// pairs lists the tokens' experts that are to be computed, by expert.
func (l *Layer) pairs(tokens, experts []int32) []pair {
	k := l.config.TopK
	var list []pair
	for i, t := range tokens {
		for j, e := range experts[int(t)*k:][:k] {
			if e >= 0 && int(e) < l.config.NumExperts {
				list = append(list, pair{row: i*k + j, expert: e})
			}
		}
	}
	slices.SortStableFunc(list, func(a, b pair) int { return int(a.expert - b.expert) })
	return list
}

// groups gives the runs of pairs with one expert; size is the number of one
// expert's weights.
func (l *Layer) groups(pairs []pair, weights []uint16, size int) []group {
	var list []group
	for i, p := range pairs {
		if i == 0 || p.expert != pairs[i-1].expert {
			list = append(list, group{first: i, weights: weights[int(p.expert)*size:][:size]})
		}
		list[len(list)-1].count++
	}
	return list
}

// activate stores H, gate then up, and gives A = silu(gate)·up: of the sums
// as they are, not of the rounded H.
func (l *Layer) activate(stored []float64, h [][]float64, pairs []pair, r Rounding) [][]float64 {
	n := l.config.Intermediate
	a := matrix(len(pairs), n)
	for i, p := range pairs {
		to := stored[p.row*2*n:][:2*n]
		for j := range n {
			gate, up := h[i][l.config.GateUp.GateRow(j, n)], h[i][l.config.GateUp.UpRow(j, n)]
			a[i][j] = r.bf16(silu(gate) * up)
			to[j], to[n+j] = r.bf16(gate), r.bf16(up)
		}
	}
	return a
}

func silu(x float64) float64 { return x / (1 + math.Exp(-x)) }

// aggregate gives O, each token's sum of score·Y in slot order.
func (l *Layer) aggregate(o []float64, y [][]float64, pairs []pair, tokens []int32, scores []float64, r Rounding) {
	d, k := l.config.Hidden, l.config.TopK
	at := make([]int, len(tokens)*k) // 1 + index of the row's pair, 0: skipped
	for i, p := range pairs {
		at[p.row] = i + 1
	}
	parallel(len(tokens), func() func(int) {
		return func(i int) {
			sum := o[i*d:][:d]
			for j := range k {
				if at[i*k+j] == 0 {
					continue
				}
				score := scores[int(tokens[i])*k+j]
				for c, v := range y[at[i*k+j]-1] {
					sum[c] += score * r.bf16(v)
				}
			}
			for c, v := range sum {
				sum[c] = r.bf16(v)
			}
		}
	})
}
