package arith

import "math"

// PTX specifies approximate functions by an error bound and a table of special cases. Here each
// function computes in float64, rounds the result to the nearest FP32 number, and follows the
// manual's special cases. This is within every bound: 2 ulp for ex2 and lg2 over most of the range,
// 1 ulp for rcp, a relative error of 2^-22.9 for rsqrt and of 2^-11 for tanh. A GPU's result may be
// another one within the bound.

// Unary is a function of the bits of one FP32 register.
type Unary func(x uint32, ftz bool) uint32

// Approx maps the name of an instruction to its .approx function.
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

// viaFloat64 returns the function of FP32 bits that computes f in float64.
func viaFloat64(f func(float64) float64) Unary {
	return func(x uint32, ftz bool) uint32 {
		y := FromF32(float32(f(float64(ToF32(FlushIf(ftz, x))))))
		return FlushIf(ftz, y)
	}
}

var (
	// ex2Approx of -Inf is +0, of a zero or subnormal number it is 1, and of +Inf it is +Inf.
	ex2Approx = viaFloat64(math.Exp2)
	// lg2Approx of a zero is -Inf, of a negative number NaN.
	lg2Approx = viaFloat64(log2)
	// rcpApprox of a zero is an infinity and of an infinity a zero, with the same sign.
	rcpApprox = viaFloat64(func(x float64) float64 { return 1 / x })
	// RsqrtApprox of a zero is an infinity with the same sign, of a negative number NaN.
	RsqrtApprox = viaFloat64(func(x float64) float64 {
		if x == 0 {
			return 1 / x
		}
		return 1 / math.Sqrt(x)
	})
	// SqrtApprox of -0 is -0, of a negative number NaN.
	SqrtApprox = viaFloat64(math.Sqrt)
)

// tanhApprox leaves subnormal numbers and zeros unchanged. PTX has no tanh.approx.ftz.
func tanhApprox(x uint32, _ bool) uint32 {
	return FromF32(float32(math.Tanh(float64(ToF32(x)))))
}

// log2 is exact at powers of two and accurate around 1. math.Log2 is not, because of cancellation.
func log2(x float64) float64 {
	if x > 0.5 && x < 2 {
		return math.Log1p(x-1) / math.Ln2
	}
	return math.Log2(x)
}
