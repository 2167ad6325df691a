package reference

import (
	"fmt"
	"strconv"

	"sonicmoe/moe/spec"
)

// Rounding says where values are rounded on their way.
type Rounding uint8

const (
	// Unrounded keeps everything after the bf16 inputs in float64.
	Unrounded Rounding = iota
	// Rounded rounds where the kernels do: logits to the layer's format, scores
	// and their gradients to FP32, H, A, Y, O, dH, A', dX~, dX once each to bf16.
	Rounded
)

// bf16 rounds x to bf16, or not.
func (r Rounding) bf16(x float64) float64 {
	if r == Rounded {
		return roundBF16(x)
	}
	return x
}

// f32 rounds x to FP32, or not.
func (r Rounding) f32(x float64) float64 {
	if r == Rounded {
		return float64(float32(x))
	}
	return x
}

// Layer is a configuration with its weights, bf16 bits in row-major order.
// It only reads them; it is safe for concurrent use.
type Layer struct {
	config spec.Config
	router []uint16
	w1     []uint16
	w2     []uint16
}

// NewLayer checks the configuration and the lengths of the weights: router
// [E, d], w1 [E, 2n, d] in the order that c.GateUp says, w2 [E, d, n]. The
// slices are kept, not copied. An error is an [*spec.ArgError].
func NewLayer(c spec.Config, router, w1, w2 []uint16) (*Layer, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	s := c.Shapes(0)
	for _, w := range []struct {
		name string
		bits []uint16
		want spec.Shape
	}{{"router", router, s.Router}, {"w1", w1, s.W1}, {"w2", w2, s.W2}} {
		if int64(len(w.bits)) != w.want.Elements() {
			return nil, &spec.ArgError{Field: w.name, Got: elements(len(w.bits)),
				Want: fmt.Sprintf("%d (%v)", w.want.Elements(), w.want)}
		}
	}
	return &Layer{config: c, router: router, w1: w1, w2: w2}, nil
}

// Config is the layer's configuration.
func (l *Layer) Config() spec.Config { return l.config }

// Forward is Route and Experts of all tokens of x [T, d].
func (l *Layer) Forward(x []uint16, r Rounding) (Routing, Output, error) {
	routing, err := l.Route(x, nil, r)
	if err != nil {
		return Routing{}, Output{}, err
	}
	out, err := l.Experts(x, routing.Scores, routing.ExpertIDs, nil, r)
	return routing, out, err
}

// tokens checks x [T, d] and the list of its tokens; nil becomes all of them.
func (l *Layer) tokens(x []uint16, list []int32) ([]int32, error) {
	d := l.config.Hidden
	if len(x)%d != 0 {
		return nil, &spec.ArgError{Field: "x", Got: elements(len(x)), Want: fmt.Sprintf("[T, %d]", d)}
	}
	total := len(x) / d
	if list == nil {
		list = make([]int32, total)
		for t := range list {
			list[t] = int32(t)
		}
	}
	for i, t := range list {
		if t < 0 || int(t) >= total {
			return nil, &spec.ArgError{Field: "tokens[" + strconv.Itoa(i) + "]",
				Got: strconv.Itoa(int(t)), Want: fmt.Sprintf("a token of x, 0 to %d", total-1)}
		}
	}
	return list, nil
}

// tokenRows decodes tokens of x.
func (l *Layer) tokenRows(x []uint16, tokens []int32) [][]float64 {
	d := l.config.Hidden
	rows := matrix(len(tokens), d)
	for i, t := range tokens {
		decode(rows[i], x[int(t)*d:][:d])
	}
	return rows
}

func elements(n int) string { return strconv.Itoa(n) + " elements" }
