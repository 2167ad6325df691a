package reference

import (
	"math"

	"sonicmoe/internal/spec"
)

// activation is the function between an expert's two matrix products. A gated activation takes
// a gate and an up value, any other takes one value.
type activation struct {
	gated bool
	curve curve
	// If limit is above 0, gate is clamped to at most limit, and up to -limit..limit. offset is
	// added to the clamped up.
	limit, offset float64
}

// curve returns the value and the slope of a function at one point.
type curve func(x float64) (value, slope float64)

// activationOf returns the activation of a checked configuration.
func activationOf(c spec.Config) activation {
	curves := map[spec.Activation]curve{
		spec.SwiGLU:    silu(1),
		spec.SwiGLUOAI: silu(c.Alpha),
		spec.GeGLUTanh: geluTanh,
		spec.GeGLUErf:  geluErf,
		spec.ReGLU:     relu,
		spec.ReLU:      relu,
		spec.ReLU2:     relu2,
		spec.SiLU:      silu(1),
		spec.GELUTanh:  geluTanh,
		spec.GELUErf:   geluErf,
	}
	a := activation{gated: c.Activation.Gated(), curve: curves[c.Activation], limit: c.Limit}
	if c.Activation == spec.SwiGLUOAI {
		a.offset = 1
	}
	return a
}

// inputs returns the gate and the up value of neuron j from a row of H, which holds n gates
// followed by n ups.
func (a activation) inputs(row []float64, j int) (gate, up float64) {
	if !a.gated {
		return row[j], 0
	}
	return row[j], row[len(row)/2+j]
}

// value returns the activation without rounding.
func (a activation) value(gate, up float64) float64 {
	v, _, _ := a.gradient(gate, up, 0)
	return v
}

// gradient returns the activation, and grad times its derivatives with respect to gate and to
// up. The derivative of a clamp is 1 at its bounds, as in PyTorch.
func (a activation) gradient(gate, up, grad float64) (value, dgate, dup float64) {
	if !a.gated {
		v, slope := a.curve(gate)
		return v, grad * slope, 0
	}
	g, u := gate, up
	if a.limit > 0 {
		g, u = min(gate, a.limit), min(max(up, -a.limit), a.limit)
	}
	v, slope := a.curve(g)
	u += a.offset
	value, dgate, dup = v*u, grad*u*slope, grad*v
	if a.limit > 0 && gate > a.limit {
		dgate = 0
	}
	if a.limit > 0 && math.Abs(up) > a.limit {
		dup = 0
	}
	return value, dgate, dup
}

// silu returns the curve of x·sigmoid(alpha·x). Its slope is sigmoid + alpha·silu·(1 -
// sigmoid). The factor 1 - sigmoid is computed as sigmoid(-alpha·x), which avoids cancellation.
// The value and the slope are NaN for x = -Inf.
func silu(alpha float64) curve {
	return func(x float64) (value, slope float64) {
		s := sigmoid(alpha * x)
		v := x * s
		return v, s + alpha*v*sigmoid(-alpha*x)
	}
}

func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

func relu(x float64) (value, slope float64) {
	if x > 0 {
		slope = 1
	}
	return max(x, 0), slope
}

func relu2(x float64) (value, slope float64) {
	v := max(x, 0)
	return v * v, 2 * v
}

// geluTanh is x/2·(1 + tanh y) with y = √(2/π)·(x + 0.044715·x³). It is computed as
// x·sigmoid(2y), because 1 + tanh y cancels for tanh y near -1.
func geluTanh(x float64) (value, slope float64) {
	const cubic = 0.044715
	c := math.Sqrt(2 / math.Pi)
	y, dy := c*(x+cubic*x*x*x), c*(1+3*cubic*x*x)
	s := sigmoid(2 * y)
	return x * s, s + x*s*sigmoid(-2*y)*2*dy
}

// geluErf is x·Φ(x). Φ is the distribution function of the standard normal distribution.
func geluErf(x float64) (value, slope float64) {
	phi := math.Erfc(-x/math.Sqrt2) / 2
	return x * phi, phi + x*math.Exp(-x*x/2)/math.Sqrt(2*math.Pi)
}
