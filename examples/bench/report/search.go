package report

import "slices"

// minimize finds a minimum of f near a starting point by the pattern search of Hooke and
// Jeeves. The search tries a step forward and backward in each dimension, and repeats the
// combined move while it helps. If no step helps, it halves the step. It needs no derivatives.
func minimize(f func([]float64) float64, start []float64, step, least float64) []float64 {
	const evaluations = 200000
	base, tried := slices.Clone(start), 0
	value := f(base)
	try := func(v []float64) float64 { tried++; return f(v) }
	explore := func(v []float64, at float64) ([]float64, float64) {
		v = slices.Clone(v)
		for i := range v {
			old := v[i]
			for _, d := range []float64{step, -step} {
				v[i] = old + d
				if x := try(v); x < at {
					at, old = x, v[i]
					break
				}
			}
			v[i] = old
		}
		return v, at
	}
	for step > least && tried < evaluations {
		next, x := explore(base, value)
		if x >= value {
			step /= 2
			continue
		}
		for x < value && tried < evaluations {
			ahead := make([]float64, len(base))
			for i := range ahead {
				ahead[i] = 2*next[i] - base[i]
			}
			base, value = next, x
			next, x = explore(ahead, try(ahead))
		}
	}
	return base
}
