package reference

import (
	"fmt"
	"strconv"

	"sonicmoe/internal/spec"
)

// Layer is a configuration with its weights. It is safe for concurrent use.
type Layer struct {
	config spec.Config
	router tensor
	// routerBias, selectionBias and expertScale are [E]. Each is nil if the layer does not have
	// it.
	routerBias, selectionBias, expertScale []float64
	routed                                 bank
	// shared is nil without shared experts. sharedGate is nil without a gate of the shared
	// experts.
	shared     *bank
	sharedGate []float64
}

// NewLayer is [New] for a layer whose only weights are the router [E, d], w1 [E, 2n, d] and w2
// [E, d, n].
func NewLayer(c spec.Config, router, w1, w2 []uint16) (*Layer, error) {
	return New(c, Weights{Router: router, W1: w1, W2: w2})
}

// New checks the configuration and the lengths of the weights, and returns the layer. The layer
// keeps the slices. It copies only the experts' weights that are not stored as [E, 2n, d] with
// all gates before all ups. An error is an [*spec.ArgError].
func New(c spec.Config, w Weights) (*Layer, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	c.Weights = "" // callers give packed weights as their dequantised values
	if err := w.check(c); err != nil {
		return nil, err
	}
	c = c.Normal()
	l := &Layer{
		config: c, router: stored(w.Router, c.Type),
		routerBias: tensor{f32: w.RouterBias}.values(), selectionBias: tensor{f32: w.SelectionBias}.values(), expertScale: tensor{f32: w.ExpertScale}.values(),
		routed: newBank(c, c.NumExperts, c.Intermediate, c.GateUp, c.InOut, weights{w.W1, w.W3, w.W2, w.B1, w.B3, w.B2, w.LoraA1, w.LoraB1, w.LoraB3, w.LoraA2, w.LoraB2}),
	}
	if c.RouterF32 {
		l.router = tensor{f32: w.RouterF32}
	}
	if c.SharedExperts > 0 {
		shared := newBank(c, 1, c.SharedWidth(), spec.Apart, false, weights{w1: w.SharedW1, w3: w.SharedW3, w2: w.SharedW2})
		l.shared, l.sharedGate = &shared, stored(w.SharedGate, c.Type).values()
	}
	return l, nil
}

// check refuses weights whose number of elements does not fit the layer.
func (w *Weights) check(c spec.Config) error {
	s := c.Shapes(0)
	for _, id := range spec.Weights {
		bits, f32 := s.Of(id), spec.Shape{}
		if bits.Type == spec.F32 {
			bits, f32 = f32, bits
		}
		if list := w.Bits(id); list != nil {
			if err := checkLength(id.String(), len(*list), bits); err != nil {
				return err
			}
		}
		if list := w.F32(id); list != nil {
			if err := checkLength(id.String()+" as f32", len(*list), f32); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkLength(field string, got int, want spec.Shape) error {
	n := want.Elements()
	if int64(got) == n {
		return nil
	}
	text := "0, which this layer does not have"
	if n > 0 {
		text = fmt.Sprintf("%d (%v)", n, want)
	}
	return &spec.ArgError{Field: field, Got: elements(got), Want: text}
}

// Config returns the layer's configuration.
func (l *Layer) Config() spec.Config { return l.config }

// Forward runs Route and Experts for all tokens of x [T, d].
func (l *Layer) Forward(x []uint16, r Rounding) (Routing, Output, error) {
	routing, err := l.Route(x, nil, r)
	if err != nil {
		return Routing{}, Output{}, err
	}
	out, err := l.Experts(x, routing.Scores, routing.ExpertIDs, nil, r)
	return routing, out, err
}

// tokens checks the length of x [T, d] and the token numbers in list. It returns list, or all
// tokens if list is nil.
func (l *Layer) tokens(x []uint16, list []int32) ([]int32, error) {
	d := l.config.Hidden
	if len(x)%d != 0 {
		return nil, &spec.ArgError{Field: "x", Got: elements(len(x)), Want: fmt.Sprintf("[T, %d]", d)}
	}
	total := len(x) / d
	if list == nil {
		list = indices(total)
	}
	for i, t := range list {
		if t < 0 || int(t) >= total {
			return nil, &spec.ArgError{Field: "tokens[" + strconv.Itoa(i) + "]",
				Got: strconv.Itoa(int(t)), Want: fmt.Sprintf("a token of x, 0 to %d", total-1)}
		}
	}
	return list, nil
}

// indices returns the numbers 0..total-1.
func indices(total int) []int32 {
	list := make([]int32, total)
	for t := range list {
		list[t] = int32(t)
	}
	return list
}

// tokenRows decodes the rows of some tokens of x.
func (l *Layer) tokenRows(x []uint16, tokens []int32) [][]float64 {
	d := l.config.Hidden
	rows := matrix(len(tokens), d)
	for i, t := range tokens {
		stored(x[int(t)*d:][:d], l.config.Type).decode(rows[i])
	}
	return rows
}

func elements(n int) string { return strconv.Itoa(n) + " elements" }
