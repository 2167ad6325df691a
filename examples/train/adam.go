package main

import "math"

// adam holds the parameters of one step of Adam (arXiv 1412.6980). m and v are running means of
// the gradient and of its square. A weight moves by -rate·m/√(v + ε²).
type adam struct {
	rate float64
	step int // counts from 1
}

const (
	beta1   = 0.9
	beta2   = 0.99
	epsilon = 1e-8
)

// scales returns two factors that correct the running means, which begin at 0. With them a
// weight moves by -rate·m/√(square·v + ε²).
func (a adam) scales() (rate, square float64) {
	return a.rate / (1 - math.Pow(beta1, float64(a.step))), 1 / (1 - math.Pow(beta2, float64(a.step)))
}

// param is a weight on the host, with its gradient and its running means m and v.
type param struct {
	w, grad, m, v []float64
}

func newParam(w []float64) *param {
	n := len(w)
	return &param{w: w, grad: make([]float64, n), m: make([]float64, n), v: make([]float64, n)}
}

// update moves the weight by one step and sets the gradient to 0.
func (p *param) update(a adam) {
	rate, square := a.scales()
	inParallel(len(p.w), func(first, last int) {
		for i := first; i < last; i++ {
			g := p.grad[i]
			p.m[i] = beta1*p.m[i] + (1-beta1)*g
			p.v[i] = beta2*p.v[i] + (1-beta2)*g*g
			p.w[i] -= rate * p.m[i] / math.Sqrt(square*p.v[i]+epsilon*epsilon)
		}
	})
	clear(p.grad)
}
