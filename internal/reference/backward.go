package reference

import (
	"fmt"

	"sonicmoe/internal/spec"
)

// Backward is the input of a backward pass: the inputs of the forward pass, the tensors that it
// saved, and the gradient of its output. T is the number of tokens, K = TopK, d = Hidden, n =
// Intermediate, E = NumExperts, and R = T·K rows. 16-bit values are bits of the layer's Type.
type Backward struct {
	// X [T, d] is the input and DO [T, d] the gradient of the output.
	X, DO []uint16
	// Scores and ExpertIDs [T, K] are the routing. A slot with an id outside 0..E-1 is skipped.
	// A token may have an expert more than once.
	Scores    []float64
	ExpertIDs []int32
	// H [R, 2n], or [R, n] without a gate, is the pre-activation that forward saved. Its rows
	// are in the order of [Group], and the gates of a row come before its ups. If H is nil, it
	// is computed again from X. SharedH is the pre-activation of the shared experts, with one
	// row for each token.
	H, SharedH []uint16
	// Routed reports whether this layer's router made the scores. The logits then have
	// gradients, which contribute to the gradient of X.
	Routed bool
	// Logits [T, E] are the logits from which the scores were computed. They are only read if
	// the gradient depends on them. If Logits is nil, they are computed again from X.
	Logits []float64
	// Extra [T, E] is added to the gradients of the logits, for losses on the logits. It may be
	// nil, and it needs Routed.
	Extra []float64
}

// Gradients computes the gradients of a backward pass. Its methods take a list of the tokens or
// weight rows to compute. It is safe for concurrent use.
type Gradients struct {
	*Layer
	in       Backward
	rounding rounder
	routed   pass
	shared   *pass
}

// Gradients checks the lengths of in and returns the computation of its gradients. An error is
// an [*spec.ArgError]. The slices are kept, not copied.
func (l *Layer) Gradients(in Backward, r Rounding) (*Gradients, error) {
	c := l.config
	if _, err := l.tokens(in.X, []int32{}); err != nil {
		return nil, err
	}
	tokens := len(in.X) / c.Hidden
	if err := checkRouting(tokens*c.TopK, len(in.Scores), len(in.ExpertIDs)); err != nil {
		return nil, err
	}
	g := &Gradients{Layer: l, in: in, rounding: rounder{r, c}}
	g.routed = pass{bank: &l.routed, layer: l, rounding: g.rounding, x: in.X, do: in.DO, h: in.H,
		scores: in.Scores, topK: c.TopK, onInput: c.ScoreOnInput, grouping: Group(in.ExpertIDs, c.NumExperts)}
	if err := in.check(l, tokens, len(g.routed.grouping.Flat)); err != nil {
		return nil, err
	}
	if l.shared != nil {
		g.shared = &pass{bank: l.shared, layer: l, rounding: g.rounding, x: in.X, do: in.DO, h: in.SharedH,
			scores: l.sharedScores(l.tokenRows(in.X, indices(tokens)), g.rounding), topK: 1, grouping: Group(make([]int32, tokens), 1)}
	}
	return g, nil
}

// check checks the lengths of DO, H, SharedH, Logits and Extra. rows is the number of (token,
// slot) pairs whose expert is not skipped.
func (in Backward) check(l *Layer, tokens, rows int) error {
	c := l.config
	switch {
	case len(in.DO) != len(in.X):
		return lengthError("do", len(in.DO), len(in.X), "[T, d], as x")
	case in.H != nil && len(in.H) < rows*l.routed.rows:
		return lengthError("h", len(in.H), rows*l.routed.rows, "[R, 2n] of the rows in use")
	case in.SharedH != nil && l.shared == nil:
		return &spec.ArgError{Field: "sharedH", Got: elements(len(in.SharedH)), Want: "nil without shared experts"}
	case in.SharedH != nil && len(in.SharedH) != tokens*l.shared.rows:
		return lengthError("sharedH", len(in.SharedH), tokens*l.shared.rows, "[T, 2sn]")
	case in.Logits != nil && len(in.Logits) != tokens*c.NumExperts:
		return lengthError("logits", len(in.Logits), tokens*c.NumExperts, "[T, E]")
	case in.Extra != nil && !in.Routed:
		return &spec.ArgError{Field: "extra", Got: elements(len(in.Extra)), Want: "nil where the layer does not route"}
	case in.Extra != nil && len(in.Extra) != tokens*c.NumExperts:
		return lengthError("extra", len(in.Extra), tokens*c.NumExperts, "[T, E]")
	}
	return nil
}

func lengthError(name string, got, want int, shape string) error {
	return &spec.ArgError{Field: name, Got: elements(got), Want: fmt.Sprintf("%d (%s)", want, shape)}
}

// pass is a backward pass through one bank of experts: the routed or the shared ones.
type pass struct {
	*bank
	layer    *Layer
	rounding rounder
	// x and do are [T, d]. h is the pre-activation that forward saved, or nil. scores [T, topK]
	// multiply the outputs of the experts. If onInput is true, they multiply H, the input of
	// the activation, instead.
	x, do, h []uint16
	scores   []float64
	topK     int
	onInput  bool
	grouping Grouping
}

// preactivations returns H of each pair of a token and an expert, with gate before up. x holds
// the decoded rows of the tokens.
func (p *pass) preactivations(pairs []pair, tokens []int32, x [][]float64) (h [][]float64) {
	if p.h != nil {
		h = matrix(len(pairs), p.rows)
		for i, at := range pairs {
			stored(p.h[int(p.grouping.Row[p.flat(at, tokens)])*p.rows:][:p.rows], p.rounding.config.Type).decode(h[i])
		}
		return h
	}
	in := make([][]float64, len(pairs))
	for i, at := range pairs {
		in[i] = x[at.row/p.topK]
	}
	h = p.up(in, pairs, p.rounding)
	for i, at := range pairs {
		add(h[i], p.b1, at.expert)
		for j, v := range h[i] {
			h[i][j] = p.rounding.store(v)
		}
	}
	return h
}

// flat returns the index t·K + k of a pair in the tensors [T, K], given the list of tokens.
func (p *pass) flat(at pair, tokens []int32) int {
	return int(tokens[at.row/p.topK])*p.topK + at.row%p.topK
}

// inputScore returns the factor of H of the pair with index flat = t·K + k: the score if it
// multiplies the activation's input, otherwise 1. outputScore returns the factor of the pair's
// output.
func (p *pass) inputScore(flat int) float64 {
	if p.onInput {
		return p.scores[flat]
	}
	return 1
}

func (p *pass) outputScore(flat int) float64 {
	if p.onInput {
		return 1
	}
	return p.scores[flat]
}
