package reference

import (
	"fmt"
	"slices"

	"sonicmoe/internal/spec"
)

// Output holds the output of the experts for a list of tokens.
type Output struct {
	// Tokens lists the tokens, in the order in which they were asked for.
	Tokens []int32
	// O [len(Tokens), d] is the layer's output.
	O []float64
	// H is the pre-activation, with gate before up. Its shape is [len(Tokens)·K, 2n], or n
	// columns without a gate. Row i·K + k belongs to slot k of token Tokens[i]. Rows of skipped
	// experts are zero. (A kernel orders its rows by expert instead.)
	H []float64
	// SharedH is the pre-activation of the shared experts, with one row for each token.
	// SharedScores [len(Tokens)] are the factors of the shared experts' output. Both are nil
	// without shared experts.
	SharedH, SharedScores []float64
}

// Experts returns O and H for a list of tokens of x [T, d], or for all tokens if tokens is nil.
// scores and experts are [T, K], for all T tokens. A slot with an expert outside 0..E-1 adds
// nothing. A token may have an expert more than once.
//
// The work is 6·K·n·d operations for each token, plus the decoding of the weights of each
// expert in use. It runs on all processors.
func (l *Layer) Experts(x []uint16, scores []float64, experts, tokens []int32, r Rounding) (Output, error) {
	c, round := l.config, rounder{r, l.config}
	tokens, err := l.tokens(x, tokens)
	if err != nil {
		return Output{}, err
	}
	if err := checkRouting(len(x)/c.Hidden*c.TopK, len(scores), len(experts)); err != nil {
		return Output{}, err
	}
	rows, pairs := l.tokenRows(x, tokens), l.pairs(tokens, experts)
	in, weights := make([][]float64, len(pairs)), make([]float64, len(pairs))
	for i, p := range pairs {
		in[i] = rows[p.row/c.TopK]
		weights[i] = scores[int(tokens[p.row/c.TopK])*c.TopK+p.row%c.TopK]
	}
	inputs := []float64(nil)
	if c.ScoreOnInput {
		inputs, weights = weights, ones(len(pairs))
	}
	h, y := l.routed.forward(in, pairs, inputs, round)

	out := Output{
		Tokens: slices.Clone(tokens),
		O:      make([]float64, len(tokens)*c.Hidden),
		H:      make([]float64, len(tokens)*c.TopK*l.routed.rows),
	}
	for i, p := range pairs {
		copy(out.H[p.row*l.routed.rows:], h[i])
	}
	at := make([]int, len(tokens)*c.TopK) // for each pair, 1 + the index of its row, or 0 if the pair is skipped
	for i, p := range pairs {
		at[p.row] = i + 1
	}
	shared := l.sharedForward(&out, rows, round)
	each(len(tokens), func(i int) {
		sum := out.O[i*c.Hidden:][:c.Hidden]
		add := func(weight float64, row []float64) {
			for c, v := range row {
				sum[c] += weight * round.store(v)
			}
		}
		for _, p := range at[i*c.TopK:][:c.TopK] {
			if p > 0 {
				add(weights[p-1], y[p-1])
			}
		}
		if shared != nil {
			add(out.SharedScores[i], shared[i])
		}
		for c, v := range sum {
			sum[c] = round.store(v)
		}
	})
	return out, nil
}

// sharedForward returns Y of the shared experts, and sets SharedH and SharedScores of out.
// Without shared experts it returns nil.
func (l *Layer) sharedForward(out *Output, rows [][]float64, r rounder) [][]float64 {
	if l.shared == nil {
		return nil
	}
	h, y := l.shared.forward(rows, everyToken(len(rows)), nil, r)
	out.SharedH = slices.Concat(h...)
	out.SharedScores = l.sharedScores(rows, r)
	return y
}

// everyToken returns one pair for each token, with expert 0: a bank holds all shared experts as
// one expert.
func everyToken(tokens int) []pair {
	list := make([]pair, tokens)
	for i := range list {
		list[i].row = i
	}
	return list
}

// sharedScores returns, for each token, the factor of the shared experts' output.
func (l *Layer) sharedScores(rows [][]float64, r rounder) []float64 {
	scores := ones(len(rows))
	if l.sharedGate != nil {
		for i, x := range rows {
			scores[i] = r.f32(sigmoid(dot(l.sharedGate, x)))
		}
	}
	return scores
}

func ones(n int) []float64 { return slices.Repeat([]float64{1}, n) }

func checkRouting(want, scores, experts int) error {
	if scores != want {
		return &spec.ArgError{Field: "scores", Got: elements(scores), Want: fmt.Sprintf("%d ([T, K])", want)}
	}
	if experts != want {
		return &spec.ArgError{Field: "experts", Got: elements(experts), Want: fmt.Sprintf("%d ([T, K])", want)}
	}
	return nil
}

// pairs returns the (token, expert) pairs of the listed tokens, sorted by expert, without
// skipped experts.
func (l *Layer) pairs(tokens, experts []int32) []pair {
	k := l.config.TopK
	var list []pair
	for i, t := range tokens {
		for j, e := range experts[int(t)*k:][:k] {
			if l.has(e) {
				list = append(list, pair{row: i*k + j, expert: e})
			}
		}
	}
	slices.SortStableFunc(list, func(a, b pair) int { return int(a.expert - b.expert) })
	return list
}
