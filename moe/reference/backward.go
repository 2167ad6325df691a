package reference

import (
	"fmt"
	"math"

	"sonicmoe/moe/spec"
)

// Backward is what a backward pass starts from: what forward was given and
// saved, and the gradient of its output.
type Backward struct {
	// X is the input and DO the gradient of the output, [T, d] bf16 bits.
	X, DO []uint16
	// Scores and Experts are the routing, [T, K]. Ids outside 0..E-1 are
	// skipped, and the same expert may stand more than once.
	Scores    []float64
	ExpertIDs []int32
	// H is the pre-activation that forward saved, bf16 bits [R, 2n], rows in
	// the order of [Group], gate then up. Nil: it is computed anew from X.
	H []uint16
	// Routed says that the scores are the softmax of the chosen logits of this
	// layer's router: logits then have gradients, and X a part of its gradient
	// from them.
	Routed bool
	// Extra is added to the gradients of the logits, [T, E]; it comes from
	// losses on the logits themselves. Nil: nothing. It needs Routed.
	Extra []float64
}

// Gradients computes the gradients of one backward pass, of all tokens and
// weights or of some. It is safe for concurrent use.
type Gradients struct {
	*Layer
	in       Backward
	rounding Rounding
	grouping Grouping
}

// Gradients checks the lengths of in; an error is an [*spec.ArgError]. The
// slices are kept, not copied.
func (l *Layer) Gradients(in Backward, r Rounding) (*Gradients, error) {
	c := l.config
	if _, err := l.tokens(in.X, []int32{}); err != nil {
		return nil, err
	}
	tokens := len(in.X) / c.Hidden
	if err := checkRouting(tokens*c.TopK, len(in.Scores), len(in.ExpertIDs)); err != nil {
		return nil, err
	}
	g := &Gradients{Layer: l, in: in, rounding: r, grouping: Group(in.ExpertIDs, c.NumExperts)}
	check := func(name string, got, want int, shape string) error {
		if got == want {
			return nil
		}
		return &spec.ArgError{Field: name, Got: elements(got), Want: fmt.Sprintf("%d (%s)", want, shape)}
	}
	if err := check("do", len(in.DO), len(in.X), "[T, d], as x"); err != nil {
		return nil, err
	}
	if in.H != nil {
		rows := len(g.grouping.Flat)
		if len(in.H) < rows*2*c.Intermediate {
			return nil, check("h", len(in.H), rows*2*c.Intermediate, "[R, 2n] of the rows in use")
		}
	}
	if in.Extra != nil {
		if !in.Routed {
			return nil, &spec.ArgError{Field: "extra", Got: elements(len(in.Extra)), Want: "nil where the layer does not route"}
		}
		return g, check("extra", len(in.Extra), tokens*c.NumExperts, "[T, E]")
	}
	return g, nil
}

// preactivations gives H of the pairs, gate then up, of tokens whose decoded
// rows are x.
func (g *Gradients) preactivations(pairs []pair, tokens []int32, x [][]float64) [][]float64 {
	c, n, k := g.config, g.config.Intermediate, g.config.TopK
	out := matrix(len(pairs), 2*n)
	if g.in.H != nil {
		for i, p := range pairs {
			row := int(g.grouping.Row[int(tokens[p.row/k])*k+p.row%k])
			decode(out[i], g.in.H[row*2*n:][:2*n])
		}
		return out
	}
	in := make([][]float64, len(pairs))
	for i, p := range pairs {
		in[i] = x[p.row/k]
	}
	for i, h := range product(in, g.groups(pairs, g.w1, 2*n*c.Hidden), 2*n, c.Hidden) {
		for j := range n {
			out[i][j] = g.rounding.bf16(h[c.GateUp.GateRow(j, n)])
			out[i][n+j] = g.rounding.bf16(h[c.GateUp.UpRow(j, n)])
		}
	}
	return out
}

// neuron is the backward step of one a = silu(gate)·up with dA' = da: a, and
// the gradients of gate and up for a row of the given score. Nothing is rounded.
func neuron(gate, up, score, da float64) (a, dgate, dup float64) {
	sigmoid := 1 / (1 + math.Exp(-gate))
	s := gate * sigmoid
	// silu' = sigmoid + silu·(1 - sigmoid); 1 - sigmoid as the sigmoid of
	// -gate keeps its digits. For gate = -Inf, Inf·0 is left as NaN.
	slope := sigmoid + s/(1+math.Exp(gate))
	return s * up, score * da * up * slope, score * da * s
}
