package mma

// Format describes an element type of A or B, and the rule by which its products are added.
type Format struct {
	// Bytes is the size of an element. A k step is 32 bytes deep.
	Bytes int
	// Each term of a sum is cut Fraction bits below the largest exponent among the terms.
	Fraction int
	// Cut is the number of trailing bits of the FP32 sum that are set to 0.
	Cut int
	// Halves states that the sum is rounded to the nearest FP16 number, which is given as FP32
	// bits.
	Halves bool
	// LeastExponent is the exponent of the format's smallest normal number.
	LeastExponent int
	// ToF32 converts an element to FP32 bits exactly. It is nil if the element is the upper half of
	// an FP32 number (bf16). For an integer element it returns the value as 32 bits.
	ToF32 func(uint32) uint32
}

// InHalves returns the same format with FP16 sums.
func (f *Format) InHalves() *Format {
	h := *f
	h.Halves = true
	return &h
}

// cut clears the last Cut bits of a finite sum.
func (f *Format) cut(sum uint32) uint32 {
	if sum&^f32Sign > f32Inf {
		return sum
	}
	if sum = sum >> f.Cut << f.Cut; sum == f32Sign {
		return 0
	}
	return sum
}

// stepBytes is the k extent of one step in bytes.
const stepBytes = 32

// Depth returns the k extent of one step in elements.
func (f *Format) Depth() int { return stepBytes / f.Bytes }

const (
	f32Sign      = 0x80000000
	f32Inf       = 0x7f800000
	f32Bias      = 127
	f32MaxBiased = 255
	canonicalNaN = 0x7fffffff
)

// Exponents of elements that are not nonzero finite numbers. A product with a zero factor has an
// exponent below anyZero. A product with an infinity or NaN has an exponent above that of every
// number.
const (
	exponentOfZero    = -0x2000
	exponentOfSpecial = 0x3000
	anyZero           = -0x1000
)

// widen converts an element to FP32 bits.
func (f *Format) widen(x uint32) uint32 {
	if f.ToF32 == nil {
		return x << (32 - 8*f.Bytes)
	}
	return f.ToF32(x)
}

// exponent returns the exponent of an element that is given as FP32 bits.
func (f *Format) exponent(value uint32) int16 {
	switch e := value >> 23 & f32MaxBiased; {
	case value&^f32Sign == 0:
		return exponentOfZero
	case e == f32MaxBiased:
		return exponentOfSpecial
	default:
		return int16(max(int(e)-f32Bias, f.LeastExponent))
	}
}
