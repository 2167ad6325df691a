package reference

import (
	"math"

	"sonicmoe/internal/spec"
)

// rawScores returns a token's raw scores p of all experts, before renormalisation and scaling.
// With SoftmaxTopK, p is 0 for experts that the token did not choose, and the result is nil if
// chosen is nil.
func (l *Layer) rawScores(logits []float64, chosen []int32, r rounder) []float64 {
	p := make([]float64, len(logits))
	switch l.config.Score {
	case spec.SoftmaxTopK:
		if chosen == nil {
			return nil
		}
		var of []float64
		chosen = l.inside(chosen)
		for _, e := range chosen {
			of = append(of, logits[e])
		}
		softmax(of)
		for i, e := range chosen {
			p[e] = of[i]
		}
	case spec.SoftmaxAll:
		copy(p, logits)
		softmax(p)
	case spec.Sigmoid:
		for e, v := range logits {
			p[e] = sigmoid(v)
		}
	case spec.SqrtSoftplus:
		for e, v := range logits {
			// log(1 + exp(v)), without an overflow.
			p[e] = math.Sqrt(max(v, 0) + math.Log1p(math.Exp(-math.Abs(v))))
		}
	}
	for e, v := range p {
		p[e] = r.f32(v)
	}
	return p
}

// has reports whether e is one of the layer's experts.
func (l *Layer) has(e int32) bool { return e >= 0 && int(e) < l.config.NumExperts }

// inside returns the chosen experts that the layer has.
func (l *Layer) inside(chosen []int32) []int32 {
	var list []int32
	for _, e := range chosen {
		if l.has(e) {
			list = append(list, e)
		}
	}
	return list
}

// softmax replaces the logits v by their softmax.
func softmax(v []float64) {
	most := math.Inf(-1)
	for _, x := range v {
		if x > most {
			most = x
		}
	}
	var sum float64
	for i, x := range v {
		v[i] = math.Exp(x - most)
		sum += v[i]
	}
	for i := range v {
		v[i] /= sum
	}
}

// scores writes the scores of a token's chosen experts, given the raw scores of all experts.
func (l *Layer) scores(scores, raw []float64, chosen []int32, r rounder) {
	z, _ := l.norm(raw, chosen)
	for k, e := range chosen {
		scores[k] = r.f32(raw[e] / z * l.factor(e))
	}
}

// norm returns z, by which the raw scores of a token's experts are divided. moves reports
// whether z depends on the raw scores.
func (l *Layer) norm(raw []float64, chosen []int32) (z float64, moves bool) {
	var sum float64
	for _, e := range chosen {
		sum += raw[e]
	}
	switch c := l.config; {
	case c.Renormalize == spec.RenormSum:
		return sum + c.NormEpsilon, true
	case c.Renormalize == spec.RenormClamp && sum < c.NormEpsilon:
		return c.NormEpsilon, false
	case c.Renormalize == spec.RenormClamp:
		return sum, true
	}
	return 1, false
}

// factor returns the number by which an expert's score is multiplied after the division by z of
// norm.
func (l *Layer) factor(e int32) float64 {
	f := l.config.Scale()
	if l.expertScale != nil {
		f *= l.expertScale[e]
	}
	return f
}
