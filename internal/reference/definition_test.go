package reference_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/internal/spec"
)

// definition computes a layer by the formulas in the documentation of package spec, on float64
// tensors in the layout of the configuration. It shares no code with package reference. It
// takes the chosen experts as given.
type definition struct {
	c       spec.Config
	tokens  int
	x, do   []float64
	extra   []float64
	scores  []float64
	experts []int32
	routed  bool
	// w holds the values of the weights by name.
	w map[string][]float64
}

// loss returns a loss whose gradient with respect to the output O is dO and with respect to the
// logits is extra: Σ dO·O + Σ extra·logits.
func (s *definition) loss() (sum float64) {
	o := s.output()
	if s.extra != nil {
		for t := range s.tokens {
			for e, l := range s.logits(t) {
				sum += s.extra[t*s.c.NumExperts+e] * l
			}
		}
	}
	return sum + inner(s.do, o)
}

func inner(a, b []float64) (s float64) {
	for i, v := range a {
		s += v * b[i]
	}
	return s
}

func (s *definition) token(t int) []float64 { return s.x[t*s.c.Hidden:][:s.c.Hidden] }

func (s *definition) logits(t int) []float64 {
	l := make([]float64, s.c.NumExperts)
	for e := range l {
		l[e] = inner(s.token(t), s.w["router"][e*s.c.Hidden:][:s.c.Hidden])
		if s.c.RouterBias {
			l[e] += s.w["routerBias"][e]
		}
	}
	return l
}

// tokenScores returns the scores of the experts of token t.
func (s *definition) tokenScores(t int) []float64 {
	k := s.c.TopK
	chosen, l := s.experts[t*k:][:k], s.logits(t)
	over := func(of []float64) (sum float64) {
		for _, v := range of {
			sum += math.Exp(v)
		}
		return sum
	}
	var picked []float64
	for _, e := range chosen {
		picked = append(picked, l[e])
	}
	out, sum := make([]float64, k), 0.0
	for i, v := range picked {
		switch s.c.Score {
		case spec.SoftmaxTopK:
			out[i] = math.Exp(v) / over(picked)
		case spec.SoftmaxAll:
			out[i] = math.Exp(v) / over(l)
		case spec.Sigmoid:
			out[i] = 1 / (1 + math.Exp(-v))
		case spec.SqrtSoftplus:
			out[i] = math.Sqrt(math.Log(1 + math.Exp(v)))
		}
		sum += out[i]
	}
	for i, e := range chosen {
		switch s.c.Renormalize {
		case spec.RenormSum:
			out[i] /= sum + s.c.NormEpsilon
		case spec.RenormClamp:
			out[i] /= max(sum, s.c.NormEpsilon)
		}
		if s.c.ScoreScale != 0 {
			out[i] *= s.c.ScoreScale
		}
		if s.c.ExpertScale {
			out[i] *= s.w["expertScale"][e]
		}
	}
	return out
}

// weight returns element [out, in] of an expert's matrix with the given extents.
func (s *definition) weight(name string, expert, out, in, rows, cols int) float64 {
	w := s.w[name][expert*rows*cols:]
	if s.c.InOut {
		return w[in*rows+out]
	}
	return w[out*cols+in]
}

// row returns the product of x with one row of W1, plus the row's bias. The row is the neuron's
// up if up is true, otherwise its gate or its only input.
func (s *definition) row(expert, neuron int, up bool, x []float64, score float64) (sum float64) {
	w, b, rows, at := "w1", "b1", s.c.HWidth(), neuron
	switch {
	case s.c.GateUp == spec.Apart:
		rows = s.c.Intermediate
		if up {
			w, b = "w3", "b3"
		}
	case s.c.GateUp == spec.Interleaved:
		at = 2 * neuron
		if up {
			at++
		}
	case up:
		at += s.c.Intermediate
	}
	for i, v := range x {
		sum += v * s.weight(w, expert, at, i, rows, len(x))
	}
	sum *= score
	if s.c.Bias {
		sum += s.w[b][expert*rows+at]
	}
	return sum
}

func (s *definition) activation(g, u float64) float64 {
	c := s.c
	switch c.Activation {
	case spec.SwiGLU:
		if c.Limit > 0 {
			g, u = math.Min(g, c.Limit), math.Max(-c.Limit, math.Min(u, c.Limit))
		}
		return g / (1 + math.Exp(-g)) * u
	case spec.SwiGLUOAI:
		g, u = math.Min(g, c.Limit), math.Max(-c.Limit, math.Min(u, c.Limit))
		return g / (1 + math.Exp(-c.Alpha*g)) * (u + 1)
	case spec.GeGLUTanh, spec.GELUTanh:
		v := g / 2 * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(g+0.044715*g*g*g)))
		if c.Activation == spec.GELUTanh {
			return v
		}
		return v * u
	case spec.GeGLUErf:
		return g / 2 * (1 + math.Erf(g/math.Sqrt2)) * u
	case spec.GELUErf:
		return g / 2 * (1 + math.Erf(g/math.Sqrt2))
	case spec.ReGLU:
		return math.Max(g, 0) * u
	case spec.ReLU:
		return math.Max(g, 0)
	case spec.ReLU2:
		return math.Max(g, 0) * math.Max(g, 0)
	case spec.SiLU:
		return g / (1 + math.Exp(-g))
	}
	panic("no definition of " + s.c.Activation)
}

func (s *definition) output() []float64 {
	c, d, n := s.c, s.c.Hidden, s.c.Intermediate
	o := make([]float64, s.tokens*d)
	for t := range s.tokens {
		x, to := s.token(t), o[t*d:][:d]
		scores := s.scores[t*c.TopK:][:c.TopK]
		if s.routed {
			scores = s.tokenScores(t)
		}
		for k, score := range scores {
			e := int(s.experts[t*c.TopK+k])
			if e < 0 || e >= c.NumExperts {
				continue
			}
			in := 1.0
			if c.ScoreOnInput {
				in, score = score, 1
			}
			for j := range n {
				u := 0.0
				if c.Activation.Gated() {
					u = s.row(e, j, true, x, in)
				}
				a := s.activation(s.row(e, j, false, x, in), u)
				for i := range d {
					to[i] += score * a * s.weight("w2", e, i, j, d, n)
				}
			}
			for i := 0; c.Bias && i < d; i++ {
				to[i] += score * s.w["b2"][e*d+i]
			}
		}
		s.addShared(to, x)
	}
	return o
}

func (s *definition) addShared(to, x []float64) {
	n := s.c.SharedExperts * s.c.Intermediate
	g := 1.0
	if s.c.SharedGate {
		g = 1 / (1 + math.Exp(-inner(s.w["sharedGate"], x)))
	}
	for j := range n {
		u := 0.0
		if s.c.Activation.Gated() {
			u = inner(s.w["sharedW3"][j*len(x):][:len(x)], x)
		}
		a := s.activation(inner(s.w["sharedW1"][j*len(x):][:len(x)], x), u)
		for i := range to {
			to[i] += g * a * s.w["sharedW2"][i*n+j]
		}
	}
}

// slopes compares some elements of a gradient with central differences of the loss.
func (s *definition) slopes(t *testing.T, what string, values, gradient []float64) {
	t.Helper()
	require.Len(t, gradient, len(values), what)
	var largest float64
	for _, g := range gradient {
		largest = max(largest, math.Abs(g))
	}
	require.Positive(t, largest, what)
	const h = 1e-5
	r := rand.New(rand.NewPCG(1, 2))
	for range min(12, len(values)) {
		i := r.IntN(len(values))
		v := values[i]
		values[i] = v + h
		up := s.loss()
		values[i] = v - h
		down := s.loss()
		values[i] = v
		require.InDelta(t, (up-down)/(2*h), gradient[i], 2e-6*largest, "%s[%d]", what, i)
	}
}
