package scores

import (
	"math"

	"sonicmoe/internal/spec"
	"sonicmoe/moe/internal/element"
	"sonicmoe/moe/internal/lanes"
	"sonicmoe/ptx"
)

// LoadLogit loads an expert's logit from a token's row, as FP32.
func LoadLogit(format spec.Type, row ptx.Global, expert ptx.U32) ptx.F32 {
	if format == spec.F32 {
		return ptx.LdGlobal[ptx.F32](row.Index(expert, 4))
	}
	return element.OfLogits(format).Wide(ptx.LdGlobal[ptx.B16](row.Index(expert, 2)))
}

// Exp returns eˣ, and 0 where the result is below the normal numbers of FP32.
func Exp(x ptx.F32) ptx.F32 { return x.Mul(ptx.Float(math.Log2E)).Ex2Approx(".ftz") }

// OfLogit returns the raw score of a logit, if it depends on this logit alone. For a softmax
// it returns the logit.
func OfLogit(score spec.Score, logit ptx.F32) ptx.F32 {
	switch score {
	case spec.Sigmoid:
		return Sigmoid(logit)
	case spec.SqrtSoftplus:
		// The square root is 2 to the power of half the binary logarithm.
		return Softplus(logit).Lg2Approx().Mul(ptx.Float(0.5)).Ex2Approx()
	}
	return logit
}

// expOfMinusAbs returns e^-|x|. It cannot overflow, and results below the normal numbers of
// FP32 are kept.
func expOfMinusAbs(x ptx.F32) ptx.F32 {
	return x.Max(x.Neg()).Mul(ptx.Float(-math.Log2E)).Ex2Approx()
}

// Sigmoid returns 1/(1 + e⁻ˣ). Its relative error is a few units in the last place, for
// tiny results too.
func Sigmoid(x ptx.F32) ptx.F32 {
	e := expOfMinusAbs(x)
	return ptx.Select(x.Lt(ptx.Float(0)), e, ptx.Float(1)).Mul(e.Add(ptx.Float(1)).RcpApprox())
}

// Softplus returns log(1 + eˣ), computed as max(x, 0) + log(1 + e) with e = e^-|x|. The
// approximate logarithm has an absolute error, so a series replaces it for e below 1/16.
func Softplus(x ptx.F32) ptx.F32 {
	e := expOfMinusAbs(x)
	log := e.Add(ptx.Float(1)).Lg2Approx().Mul(ptx.Float(math.Ln2))
	series := ptx.Float(-1. / 6)
	for n := 5.; n >= 1; n-- {
		series = series.Fma(e, ptx.Float((2*float64(int(n)%2)-1)/n))
	}
	log = ptx.Select(e.Lt(ptx.Float(1./16)), series.Mul(e), log)
	// The comparison is false for NaN, and x + log keeps the NaN.
	return ptx.Select(x.Lt(ptx.Float(0)), log, x.Add(log))
}

// Normalize divides the raw scores of a token's slots by their norm, as [spec.Renorm]
// defines it. weight is the raw score of the lane's slot if has is true; lanes without a
// slot get meaningless results. Normalize also returns the sum of the raw scores, or 0 if
// the layer does not normalise.
func Normalize(c spec.Config, weight ptx.F32, has ptx.Pred) (share, sum ptx.F32) {
	if c.Renormalize == spec.NoRenorm {
		return weight, ptx.Float(0)
	}
	sum = lanes.Sum(ptx.Select(has, weight, ptx.Float(0)))
	norm := sum
	switch {
	case c.Renormalize == spec.RenormClamp:
		norm = sum.Max(ptx.Float(c.NormEpsilon), ".NaN")
	case c.NormEpsilon != 0:
		norm = sum.Add(ptx.Float(c.NormEpsilon))
	default:
		// The reciprocal of a tiny sum would overflow, so sum and weight are scaled up first.
		const tiny = 0x1p-64
		lift := ptx.Select(sum.Lt(ptx.Float(tiny)), ptx.Float(1/tiny), ptx.Float(1))
		weight, norm = weight.Mul(lift), sum.Mul(lift)
	}
	return weight.Mul(norm.RcpApprox()), sum
}
