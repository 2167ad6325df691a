package arith

import "math"

// PTX specifies the approximate functions by an error bound and a table of special cases. Here
// each function is the float64 result rounded to the nearest FP32 number, with the manual's
// special cases. That is within every bound (2 ulp for ex2 and lg2 over most of the range, 1
// ulp for rcp, 2^-22.9 relative for rsqrt, 2^-11 for tanh). A GPU's bits may differ within the
// bound.

// Unary is a function of one FP32 register.
type Unary func(x uint32, ftz bool) uint32

// Approx maps mnemonics to .approx functions.
var Approx = map[string]Unary{
	"ex2":   ex2Approx,
	"lg2":   lg2Approx,
	"rcp":   rcpApprox,
	"rsqrt": RsqrtApprox,
	"sqrt":  SqrtApprox,
	"tanh":  tanhApprox,
	"sin":   viaFloat64(math.Sin),
	"cos":   viaFloat64(math.Cos),
}

// viaFloat64 returns a function of FP32 bits that computes in float64.
func viaFloat64(f func(float64) float64) Unary {
	return func(x uint32, ftz bool) uint32 {
		y := FromF32(float32(f(float64(ToF32(FlushIf(ftz, x))))))
		return FlushIf(ftz, y)
	}
}

var (
	// ex2Approx: -Inf gives +0, zeros and subnormals 1, +Inf +Inf.
	ex2Approx = viaFloat64(math.Exp2)
	// lg2Approx: zeros give -Inf, negative numbers NaN.
	lg2Approx = viaFloat64(log2)
	// rcpApprox: zeros give infinities and infinities zeros, with the same sign.
	rcpApprox = viaFloat64(func(x float64) float64 { return 1 / x })
	// rsqrtApprox: zeros give infinities with the same sign, negative numbers NaN.
	RsqrtApprox = viaFloat64(func(x float64) float64 {
		if x == 0 {
			return 1 / x
		}
		return 1 / math.Sqrt(x)
	})
	// sqrtApprox: -0 gives -0, negative numbers NaN.
	SqrtApprox = viaFloat64(math.Sqrt)
)

// tanhApprox keeps subnormals and zeros unchanged. PTX has no tanh.approx.ftz.
func tanhApprox(x uint32, _ bool) uint32 {
	return FromF32(float32(math.Tanh(float64(ToF32(x)))))
}

// log2 is math.Log2, exact at powers of two and accurate around 1, where math.Log2 suffers from
// cancellation.
func log2(x float64) float64 {
	if x > 0.5 && x < 2 {
		return math.Log1p(x-1) / math.Ln2
	}
	return math.Log2(x)
}
