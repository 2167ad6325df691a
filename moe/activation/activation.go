// Package activation emits the function that an expert computes between its two products.
// Each kind has a value and derivatives.
//
// CONTRIBUTING.md says how to add a kind. [Verify] checks the derivatives against differences
// of the values.
package activation

import (
	"math"

	"sonicmoe/internal/spec"
	"sonicmoe/ptx"
)

// Function is an activation of gate and up. Without a gate, its only argument is gate.
type Function struct {
	Gated bool
	// Value computes the activation.
	Value func(gate, up ptx.F32) ptx.F32
	// Gradient computes the activation again, and grad times its derivatives by
	// gate and by up.
	Gradient func(gate, up, grad ptx.F32) (value, dGate, dUp ptx.F32)
}

// Of returns the activation of a layer's experts.
func Of(c spec.Config) Function {
	switch c.Activation {
	case spec.SwiGLU:
		if c.Limit > 0 {
			return clampedGLU(silu(1), c.Limit, 0)
		}
		return glu(silu(1))
	case spec.SwiGLUOAI:
		return clampedGLU(silu(c.Alpha), c.Limit, 1)
	case spec.GeGLUTanh:
		return glu(geluTanh)
	case spec.GeGLUErf:
		return glu(geluErf)
	case spec.ReGLU:
		return glu(relu)
	case spec.ReLU:
		return alone(relu)
	case spec.ReLU2:
		return alone(relu2)
	case spec.SiLU:
		return alone(silu(1))
	case spec.GELUTanh:
		return alone(geluTanh)
	case spec.GELUErf:
		return alone(geluErf)
	}
	panic("activation: no functions for " + c.Activation.String())
}

// curve is a function of one number: value emits its value, slope its value and its slope.
type curve struct {
	value func(x ptx.F32) ptx.F32
	slope func(x ptx.F32) (value, slope ptx.F32)
}

// glu returns the activation f(gate)·up.
func glu(f curve) Function {
	return Function{
		Gated: true,
		Value: func(gate, up ptx.F32) ptx.F32 { return f.value(gate).Mul(up) },
		Gradient: func(gate, up, grad ptx.F32) (value, dGate, dUp ptx.F32) {
			v, slope := f.slope(gate)
			return v.Mul(up), grad.Mul(up).Mul(slope), grad.Mul(v)
		},
	}
}

// clampedGLU returns the activation f(min(gate, limit)) · (clamp(up, -limit, limit)
// + offset). The derivative of a clamp is 1 at its limits, as in PyTorch.
func clampedGLU(f curve, limit, offset float64) Function {
	most, least, zero := ptx.Float(limit), ptx.Float(-limit), ptx.Float(0)
	clamp := func(gate, up ptx.F32) (ptx.F32, ptx.F32) {
		gate, up = gate.Min(most, nan), up.Max(least, nan).Min(most, nan)
		if offset != 0 {
			up = up.Add(ptx.Float(offset))
		}
		return gate, up
	}
	return Function{
		Gated: true,
		Value: func(gate, up ptx.F32) ptx.F32 {
			gate, up = clamp(gate, up)
			return f.value(gate).Mul(up)
		},
		Gradient: func(gate, up, grad ptx.F32) (value, dGate, dUp ptx.F32) {
			g, u := clamp(gate, up)
			v, slope := f.slope(g)
			dGate, dUp = grad.Mul(u).Mul(slope), grad.Mul(v)
			return v.Mul(u), ptx.Select(gate.Gt(most), zero, dGate), ptx.Select(up.Gt(most).Or(up.Lt(least)), zero, dUp)
		},
	}
}

// nan makes the result of a minimum or maximum NaN if an operand is NaN.
const nan = ".NaN"

// alone returns the activation f(gate), for experts without a gate.
func alone(f curve) Function {
	return Function{
		Value: func(x, _ ptx.F32) ptx.F32 { return f.value(x) },
		Gradient: func(x, _, grad ptx.F32) (value, dX, none ptx.F32) {
			v, slope := f.slope(x)
			return v, grad.Mul(slope), none
		},
	}
}

// silu returns the curve x·sigmoid(alpha·x).
func silu(alpha float64) curve {
	return curve{
		value: func(x ptx.F32) ptx.F32 { return x.Mul(sigmoid(x, alpha)) },
		slope: func(x ptx.F32) (value, slope ptx.F32) {
			s := sigmoid(x, alpha)
			v := x.Mul(s)
			scaled := v
			if alpha != 1 {
				scaled = v.Mul(ptx.Float(alpha))
			}
			return v, scaled.Fma(ptx.Float(1).Sub(s), s)
		},
	}
}

// Sigmoid is 1/(1 + exp(-x)).
func Sigmoid(x ptx.F32) ptx.F32 { return sigmoid(x, 1) }

// sigmoid is 1/(1 + 2^(-alpha·x·log2 e)).
func sigmoid(x ptx.F32, alpha float64) ptx.F32 {
	t := x.Mul(ptx.Float(-alpha * math.Log2E)).Ex2Approx(ftz)
	return t.Add(ptx.Float(1)).RcpApprox(ftz)
}

const ftz = ".ftz"

// relu is max(x, 0), whose derivative at 0 is 0.
var relu = curve{
	value: func(x ptx.F32) ptx.F32 { return x.Max(ptx.Float(0), nan) },
	slope: func(x ptx.F32) (value, slope ptx.F32) {
		return x.Max(ptx.Float(0), nan), ptx.Select(x.Gt(ptx.Float(0)), ptx.Float(1), ptx.Float(0))
	},
}

// relu2 is max(x, 0)².
var relu2 = curve{
	value: func(x ptx.F32) ptx.F32 {
		v := x.Max(ptx.Float(0), nan)
		return v.Mul(v)
	},
	slope: func(x ptx.F32) (value, slope ptx.F32) {
		v := x.Max(ptx.Float(0), nan)
		return v.Mul(v), v.Add(v)
	},
}

// geluTanh is x/2·(1 + tanh(y/2)) = x·sigmoid(y), y = √(8/π)·(x + 0.044715·x³).
var geluTanh = curve{
	value: func(x ptx.F32) ptx.F32 {
		y, _ := geluTanhArgument(x)
		return x.Mul(sigmoid(y, 1))
	},
	slope: func(x ptx.F32) (value, slope ptx.F32) {
		y, dy := geluTanhArgument(x)
		s := sigmoid(y, 1)
		v := x.Mul(s)
		return v, v.Mul(ptx.Float(1).Sub(s)).Fma(dy, s)
	},
}

// geluTanhArgument returns y and its derivative.
func geluTanhArgument(x ptx.F32) (y, dy ptx.F32) {
	c := math.Sqrt(8 / math.Pi)
	const cubic = 0.044715
	square := x.Mul(x)
	return square.Fma(ptx.Float(c*cubic), ptx.Float(c)).Mul(x), square.Fma(ptx.Float(3*c*cubic), ptx.Float(c))
}

// geluErf is x·Φ(x), where Φ is the distribution function of the normal distribution.
var geluErf = curve{
	value: func(x ptx.F32) ptx.F32 {
		phi, _ := normal(x)
		return x.Mul(phi)
	},
	slope: func(x ptx.F32) (value, slope ptx.F32) {
		phi, density := normal(x)
		return x.Mul(phi), x.Fma(density, phi)
	},
}
