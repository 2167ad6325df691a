package activation

import (
	"math"

	"sonicmoe/ptx"
)

// normal returns the distribution function Φ of the normal distribution, and its density.
//
// Φ(-|x|) = exp(-x²/2) · t·Q(t) with t = 1/(1 + p·|x|/√2). Q is a polynomial of degree 7,
// fitted so that t·Q(t) is exp(z²)·erfc(z)/2 for 0 ≤ z = |x|/√2 ≤ 10, by reweighted least
// squares of the relative error. That error is at most 1.4e-7 in this range.
func normal(x ptx.F32) (phi, density ptx.F32) {
	const p = 0.3275911
	q := [...]float64{
		0.1850412394731780, 0.1808859667372985, 0.2050348229937463, 0.0279293824441843,
		0.4490241967733526, -0.4017781273683208, 0.4945098913790257, -0.1406472387325976,
	}
	zero, one := ptx.Float(0), ptx.Float(1)
	size := x.Max(x.Neg(), nan)
	e := x.Mul(x).Mul(ptx.Float(-math.Log2E / 2)).Ex2Approx(ftz)
	t := size.Fma(ptx.Float(p/math.Sqrt2), one).RcpApprox(ftz)
	sum := ptx.Float(q[len(q)-1] / 2)
	for i := len(q) - 2; i >= 0; i-- {
		if i == len(q)-2 {
			sum = t.Fma(sum, ptx.Float(q[i]/2))
			continue
		}
		sum = sum.Fma(t, ptx.Float(q[i]/2))
	}
	tail := sum.Mul(t).Mul(e)
	return ptx.Select(x.Lt(zero), tail, one.Sub(tail)), e.Mul(ptx.Float(1 / math.Sqrt(2*math.Pi)))
}
