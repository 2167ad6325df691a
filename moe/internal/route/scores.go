package route

import (
	"math"

	"sonicmoe/internal/spec"
	"sonicmoe/moe/internal/element"
	"sonicmoe/ptx"
)

// What logits become, and the little that all kernels which look at them share.

// loadLogit is one logit of a token's row, in FP32.
func loadLogit(format spec.Logits, row ptx.Global, expert ptx.U32) ptx.F32 {
	if format == spec.LogitsF32 {
		return ptx.LdGlobal[ptx.F32](row.Index(expert, 4))
	}
	return element.OfLogits(format).Wide(ptx.LdGlobal[ptx.B16](row.Index(expert, 2)))
}

// exp is eˣ, 0 where that is below FP32's normal numbers.
func exp(x ptx.F32) ptx.F32 { return x.Mul(ptx.Float(math.Log2E)).Ex2Approx(".ftz") }

// rawScores are raw scores that logits have each by itself.
var rawScores = map[spec.Score]func(logit ptx.F32) ptx.F32{
	spec.Sigmoid: sigmoid,
	// The root by the logarithm.
	spec.SqrtSoftplus: func(x ptx.F32) ptx.F32 { return softplus(x).Lg2Approx().Mul(ptx.Float(0.5)).Ex2Approx() },
}

// small is e^-|x|, which does not overflow and keeps what is below FP32's normal
// numbers.
func small(x ptx.F32) ptx.F32 { return x.Max(x.Neg()).Mul(ptx.Float(-math.Log2E)).Ex2Approx() }

// sigmoid is 1/(1 + e⁻ˣ), to a few last bits of the result, however small it is.
func sigmoid(x ptx.F32) ptx.F32 {
	e := small(x)
	return ptx.Select(x.Lt(ptx.Float(0)), e, ptx.Float(1)).Mul(e.Add(ptx.Float(1)).RcpApprox())
}

// softplus is log(1 + eˣ) = max(x, 0) + log(1 + e), e = e^-|x|. The logarithm's
// error is absolute: below 1/16 its series is more exact.
func softplus(x ptx.F32) ptx.F32 {
	e := small(x)
	log := e.Add(ptx.Float(1)).Lg2Approx().Mul(ptx.Float(math.Ln2))
	series := ptx.Float(-1. / 6)
	for n := 5.; n >= 1; n-- {
		series = series.Fma(e, ptx.Float((2*float64(int(n)%2)-1)/n))
	}
	log = ptx.Select(e.Lt(ptx.Float(1./16)), series.Mul(e), log)
	// A NaN is less than nothing, and stays.
	return ptx.Select(x.Lt(ptx.Float(0)), log, x.Add(log))
}

// normed divides the raw scores of a token's slots, a lane's each, by their norm;
// sum is theirs, where the layer normalises. Lanes that have no slot get anything.
func normed(c spec.Config, weight ptx.F32, has ptx.Pred) (share, sum ptx.F32) {
	if c.Renormalize == spec.NoRenorm {
		return weight, ptx.Float(0)
	}
	sum = acrossWarp(ptx.Select(has, weight, ptx.Float(0)), plus)
	z := sum
	switch {
	case c.Renormalize == spec.RenormClamp:
		z = sum.Max(ptx.Float(c.NormEpsilon), ".NaN")
	case c.NormEpsilon != 0:
		z = sum.Add(ptx.Float(c.NormEpsilon))
	default:
		// The inverse of what is tiny overflows.
		const tiny = 0x1p-64
		lift := ptx.Select(sum.Lt(ptx.Float(tiny)), ptx.Float(1/tiny), ptx.Float(1))
		weight, z = weight.Mul(lift), sum.Mul(lift)
	}
	return weight.Mul(z.RcpApprox()), sum
}
