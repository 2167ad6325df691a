package reference_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/internal/num"
	"sonicmoe/internal/reference"
	"sonicmoe/internal/spec"
)

// This file compares layers with [definition], in value and in slope.

// tensors holds the weights of a layer in the form that a kernel gets, and their values in
// float64.
type tensors struct {
	reference.Weights
	x, do  []uint16
	values map[string][]float64
}

// newTensors returns random weights, at scales that keep every tensor of order 1.
func newTensors(c spec.Config, tokens int, seed uint64) tensors {
	d, n, sn := math.Sqrt(float64(c.Hidden)), math.Sqrt(float64(c.Intermediate)), math.Sqrt(float64(max(c.SharedWidth(), 1)))
	scales := map[string]float64{
		"x": 1, "do": 1, "router": 2 / d, "routerBias": 1, "selectionBias": 0.2, "expertScale": 1,
		"w1": 1.5 / d, "w3": 1.5 / d, "w2": 2 / n, "b1": 1, "b3": 1, "b2": 1,
		"sharedW1": 1 / d, "sharedW3": 1 / d, "sharedW2": 2 / sn, "sharedGate": 1 / d,
	}
	return fillTensors(c, tokens, func(name string, count int64) []float64 {
		seed++
		return widen(reference.NewNormal(seed, scales[name]).Values(count))
	})
}

// fillTensors returns weights whose values are given by the function values.
func fillTensors(c spec.Config, tokens int, values func(name string, count int64) []float64) tensors {
	s := c.Shapes(tokens)
	w := tensors{values: map[string][]float64{}}
	fill := func(name string, shape spec.Shape) []float64 {
		w.values[name] = values(name, shape.Elements())
		return w.values[name]
	}
	bits := func(name string, shape spec.Shape) []uint16 {
		v := fill(name, shape)
		out := typed(c, v)
		if c.Type == spec.F16 {
			num.DecodeF16(v, out)
		}
		return out
	}
	f32 := func(name string, shape spec.Shape) []float32 {
		v := fill(name, shape)
		out := make([]float32, len(v))
		for i := range v {
			out[i] = float32(v[i])
		}
		return out
	}
	w.x, w.do = bits("x", s.X), bits("do", s.O)
	if c.RouterF32 {
		w.RouterF32 = f32("router", s.Router)
	} else {
		w.Router = bits("router", s.Router)
	}
	w.RouterBias, w.SelectionBias, w.ExpertScale = f32("routerBias", s.RouterBias), f32("selectionBias", s.SelectionBias), f32("expertScale", s.ExpertScale)
	w.W1, w.W3, w.W2 = bits("w1", s.W1), bits("w3", s.W3), bits("w2", s.W2)
	w.B1, w.B3, w.B2 = bits("b1", s.B1), bits("b3", s.B3), bits("b2", s.B2)
	w.SharedW1, w.SharedW3, w.SharedW2 = bits("sharedW1", s.SharedW1), bits("sharedW3", s.SharedW3), bits("sharedW2", s.SharedW2)
	w.SharedGate = bits("sharedGate", s.SharedGate)
	return w
}

func (w tensors) definition(c spec.Config, tokens int, in reference.Backward) *definition {
	return &definition{c: c, tokens: tokens, x: w.values["x"], do: w.values["do"], extra: in.Extra,
		scores: in.Scores, experts: in.ExpertIDs, routed: in.Routed, w: w.values}
}

// TestLayersAreTheDefinition checks, for every configuration, that the forward pass equals the
// definition and that every gradient equals the slope of the definition's loss.
func TestLayersAreTheDefinition(t *testing.T) {
	const tokens = 3
	for i, c := range everyConfig() {
		if testing.Short() && i%17 != 0 {
			continue
		}
		t.Run(c.String(), func(t *testing.T) {
			w := newTensors(c, tokens, 77)
			layer, err := reference.New(c, w.Weights)
			require.NoError(t, err)
			routing, out, err := layer.Forward(w.x, reference.Unrounded)
			require.NoError(t, err)
			in := reference.Backward{X: w.x, DO: w.do, Scores: routing.Scores, ExpertIDs: routing.ExpertIDs,
				Routed: true, Extra: uniform(tokens * c.NumExperts)}
			of := w.definition(c, tokens, in)
			near(t, "O", of.output(), out.O)
			for i := range tokens {
				near(t, "scores", of.tokenScores(i), routing.Scores[i*c.TopK:][:c.TopK])
			}
			all := everyGradient(t, layer, in, reference.Unrounded)
			for name, gradient := range all {
				of.slopes(t, name, w.values[name], gradient)
			}
		})
	}
}

// TestLayersRound checks that rounding changes every tensor, within the bounds for kernels.
// Saved H and logits give the same gradients as computed H and logits.
func TestLayersRound(t *testing.T) {
	const tokens = 24
	for i, c := range everyConfig() {
		if i%6 != 0 && c.Type == spec.BF16 || testing.Short() && i%18 != 0 {
			continue
		}
		t.Run(c.String(), func(t *testing.T) {
			w := newTensors(c, tokens, 177)
			layer, err := reference.New(c, w.Weights)
			require.NoError(t, err)
			routing, rounded, err := layer.Forward(w.x, reference.Rounded)
			require.NoError(t, err)
			exact, err := layer.Experts(w.x, routing.Scores, routing.ExpertIDs, nil, reference.Unrounded)
			require.NoError(t, err)
			within(t, c, "O", rounded.O, exact.O)
			within(t, c, "H", rounded.H, exact.H)
			if c.SharedExperts > 0 {
				within(t, c, "shared H", rounded.SharedH, exact.SharedH)
			}

			in := reference.Backward{X: w.x, DO: w.do, Scores: routing.Scores, ExpertIDs: routing.ExpertIDs, Routed: true}
			anew := everyGradient(t, layer, in, reference.Rounded)
			for name, want := range everyGradient(t, layer, in, reference.Unrounded) {
				within(t, c, name, anew[name], want)
			}
			in.H = typed(c, reference.Gather(rounded.H, reference.Group(routing.ExpertIDs, c.NumExperts).Flat, c.HWidth()))
			in.Logits = routing.Logits
			if c.SharedExperts > 0 {
				in.SharedH = typed(c, rounded.SharedH)
			}
			require.Equal(t, anew, everyGradient(t, layer, in, reference.Rounded))
		})
	}
}

// within checks that rounded values are near the exact values.
func within(t *testing.T, c spec.Config, what string, rounded, exact []float64) {
	t.Helper()
	require.Len(t, rounded, len(exact), what)
	var diff, norm float64
	for i, v := range exact {
		diff, norm = diff+(rounded[i]-v)*(rounded[i]-v), norm+v*v
	}
	// Rounding to 8 significant bits (bf16) has an error of at most 2⁻⁹, to 11 bits (fp16) of
	// 2⁻¹². A pass rounds several times. If rounding moves H across a clamp's bound, a slope
	// changes between 0 and 1.
	bound := map[spec.Type]float64{spec.BF16: 1e-2, spec.F16: 1e-3}[c.Type]
	if c.Limit > 0 {
		bound *= 5
	}
	require.LessOrEqual(t, math.Sqrt(diff), bound*math.Sqrt(norm), what)
	if what != "b2" && norm > 0 { // db2 sums dO times scores, so it may need no rounding
		require.Positive(t, diff, "%s: nothing was rounded", what)
	}
}

// typed returns values as bits of the layer's type.
func typed(c spec.Config, values []float64) []uint16 {
	bits := make([]uint16, len(values))
	if c.Type == spec.F16 {
		num.EncodeF16(bits, values)
	} else {
		num.EncodeBF16(bits, values)
	}
	return bits
}

// near requires that values agree within 1e-12 of the largest value.
func near(t *testing.T, what string, want, got []float64) {
	t.Helper()
	largest := 0.0
	for _, v := range want {
		largest = max(largest, math.Abs(v))
	}
	require.InDeltaSlice(t, want, got, 1e-12*largest, what)
}

// everyGradient returns the gradients of all tensors that have one, by name, in the layout of
// the configuration.
func everyGradient(t *testing.T, layer *reference.Layer, in reference.Backward, r reference.Rounding) map[string][]float64 {
	t.Helper()
	c := layer.Config()
	g, err := layer.Gradients(in, r)
	require.NoError(t, err)
	of, err := g.Tokens(nil)
	require.NoError(t, err)
	all := map[string][]float64{"x": of.DX}
	set := func(name string, v []float64, err error) {
		require.NoError(t, err, name)
		all[name] = v
	}
	if in.Routed {
		v, err := g.Router(of.DLogits)
		set("router", v, err)
		if c.RouterBias {
			v, err = g.RouterBias(of.DLogits)
			set("routerBias", v, err)
		}
		if c.ExpertScale {
			v, err = g.ExpertScale(of.DScores)
			set("expertScale", v, err)
		}
	} else {
		all["scores"] = of.DScores
	}
	set1 := func(of func([]reference.ExpertRow) ([]float64, error), cols int, inOut bool, first, third string, rows, experts int, apart bool) {
		v, err := of(reference.AllRows(experts, rows))
		require.NoError(t, err, first)
		if !apart {
			all[first] = inOrder(v, experts, rows, cols, inOut)
			return
		}
		var a, b []float64
		for e := range experts {
			half := rows * cols / 2
			a, b = append(a, v[2*e*half:][:half]...), append(b, v[(2*e+1)*half:][:half]...)
		}
		all[first], all[third] = inOrder(a, experts, rows/2, cols, inOut), inOrder(b, experts, rows/2, cols, inOut)
	}
	e, apart := c.NumExperts, c.GateUp == spec.Apart
	set1(g.W1, c.Hidden, c.InOut, "w1", "w3", c.HWidth(), e, apart)
	set1(g.W2, c.Intermediate, c.InOut, "w2", "", c.Hidden, e, false)
	if c.Bias {
		set1(g.B1, 1, false, "b1", "b3", c.HWidth(), e, apart)
		set1(g.B2, 1, false, "b2", "", c.Hidden, e, false)
	}
	if c.SharedExperts > 0 {
		set1(g.SharedW1, c.Hidden, false, "sharedW1", "sharedW3", c.HWidth()*c.SharedExperts, 1, c.Activation.Gated())
		set1(g.SharedW2, c.SharedWidth(), false, "sharedW2", "", c.Hidden, 1, false)
	}
	if c.SharedGate {
		v, err := g.SharedGate(of.DSharedGate)
		set("sharedGate", v, err)
	}
	return all
}

// inOrder returns matrices [experts, rows, cols]. If inOut is true, each matrix is transposed.
func inOrder(v []float64, experts, rows, cols int, inOut bool) []float64 {
	if !inOut {
		return v
	}
	out := make([]float64, len(v))
	for e := range experts {
		for r := range rows {
			for i := range cols {
				out[(e*cols+i)*rows+r] = v[(e*rows+r)*cols+i]
			}
		}
	}
	return out
}

// everyConfig returns configurations with every value of every field, and with combinations of
// fields that interact.
func everyConfig() []spec.Config {
	base := spec.Config{Hidden: 32, Intermediate: 16, NumExperts: 6, TopK: 2, Logits: spec.F32}
	var list []spec.Config
	add := func(change func(*spec.Config)) {
		c := base
		change(&c)
		list = append(list, c.Normal())
	}
	for _, a := range spec.Activations {
		for _, bias := range []bool{false, true} {
			for _, order := range []bool{false, true} {
				layouts := []spec.GateUp{spec.Concatenated, spec.Interleaved, spec.Apart}
				if !a.Gated() {
					layouts = layouts[:1]
				}
				for _, layout := range layouts {
					add(func(c *spec.Config) {
						c.Activation, c.Bias, c.InOut, c.GateUp = a, bias, order, layout
						if a == spec.SwiGLUOAI {
							c.Alpha, c.Limit = 1.702, 0.9
						}
						if a.String() == "swiglu" && bias {
							c.Limit = 1.1
						}
					})
				}
			}
		}
	}
	for _, c := range []spec.Config{
		{SharedExperts: 1}, {SharedExperts: 2, SharedGate: true, GateUp: spec.Interleaved},
		{SharedExperts: 3, Activation: spec.ReLU2, SharedGate: true}, {SharedExperts: 1, Activation: spec.SwiGLUOAI, Alpha: 1.702, Limit: 2, Bias: true},
		{ScoreOnInput: true}, {ScoreOnInput: true, Score: spec.Sigmoid, InOut: true, SharedExperts: 1}, {ScoreOnInput: true, Activation: spec.ReLU2},
		{Type: spec.F16, Bias: true, InOut: true, GateUp: spec.Apart}, {Type: spec.F16, SharedExperts: 1, SharedGate: true},
		{RouterBias: true}, {RouterF32: true}, {ExpertScale: true}, {ScoreScale: 2.5}, {ExpertScale: true, ScoreScale: 2.5, RouterBias: true},
		{Groups: 3, TopGroups: 1}, {TopK: 1}, {TopK: 6}, {NumExperts: 1, TopK: 1},
		// These are the combinations of DeepSeek-V2, DeepSeek-V3 and Gemma-4.
		{Score: spec.SoftmaxAll, Groups: 3, TopGroups: 2, ScoreScale: 16},
		{Score: spec.Sigmoid, SelectionBias: true, Groups: 3, TopGroups: 2, GroupSumOfTwo: true, Renormalize: spec.RenormSum, NormEpsilon: 1e-20, ScoreScale: 2.5},
		{Score: spec.SoftmaxAll, Renormalize: spec.RenormSum, ExpertScale: true},
	} {
		add(func(to *spec.Config) {
			c.Hidden, c.Intermediate, c.Logits = to.Hidden, to.Intermediate, to.Logits
			if c.NumExperts == 0 {
				c.NumExperts = to.NumExperts
			}
			if c.TopK == 0 {
				c.TopK = to.TopK
			}
			*to = c
		})
	}
	for _, s := range spec.Scores[1:] {
		for _, renorm := range []spec.Renorm{spec.NoRenorm, spec.RenormSum, spec.RenormClamp} {
			for _, epsilon := range []float64{0, 0.3, 5} { // 5 is above every sum of the raw scores
				if renorm == spec.NoRenorm && epsilon > 0 || renorm == spec.RenormClamp && epsilon == 0 {
					continue
				}
				for _, bias := range []bool{false, true} {
					add(func(c *spec.Config) {
						c.Score, c.Renormalize, c.NormEpsilon, c.SelectionBias = s, renorm, epsilon, bias
						c.TopK, c.RouterBias = 3, bias
					})
				}
			}
		}
	}
	return list
}
