package reference

import (
	"math"

	"sonicmoe/internal/spec"
)

// rawScores are p of all experts of a token. SoftmaxTopK has them of the chosen
// alone, and gives nil without these; others stay 0.
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

// has reports whether the layer has expert e.
func (l *Layer) has(e int32) bool { return e >= 0 && int(e) < l.config.NumExperts }

// inside lists those of a token's experts that the layer has.
func (l *Layer) inside(chosen []int32) []int32 {
	var list []int32
	for _, e := range chosen {
		if l.has(e) {
			list = append(list, e)
		}
	}
	return list
}

// softmax turns logits into their softmax.
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

// scores are those of a token's chosen experts, from the raw scores of all.
func (l *Layer) scores(scores, raw []float64, chosen []int32, r rounder) {
	z, _ := l.norm(raw, chosen)
	for k, e := range chosen {
		scores[k] = r.f32(raw[e] / z * l.factor(e))
	}
}

// norm is z, what the raw scores of a token's experts are divided by, and
// whether it moves with them.
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

// factor is what an expert's normed scores are multiplied by.
func (l *Layer) factor(e int32) float64 {
	f := l.config.Scale()
	if l.expertScale != nil {
		f *= l.expertScale[e]
	}
	return f
}
