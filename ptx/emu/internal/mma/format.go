package mma

// Format is a type of matrix element and how products of it are added.
type Format struct {
	// Bytes is the size of an element; a k step is 32 bytes deep.
	Bytes int
	// Fraction is how many bits below the largest exponent a term keeps.
	Fraction int
	// Cut is how many bits at the end of the FP32 sum are 0.
	Cut int
	// Halves: the sum is rounded to the nearest FP16 number, given as FP32 bits.
	Halves bool
	// LeastExponent is that of the smallest normal number.
	LeastExponent int
	// ToF32 widens an element to FP32 bits, exactly; nil if an element is the
	// upper bits of an FP32 number. Of an integer it gives the 32 bits.
	ToF32 func(uint32) uint32
}

// InHalves is the format with sums in FP16.
func (f *Format) InHalves() *Format {
	h := *f
	h.Halves = true
	return &h
}

// cut ends a sum.
func (f *Format) cut(sum uint32) uint32 {
	if sum&^f32Sign > f32Inf {
		return sum
	}
	if sum = sum >> f.Cut << f.Cut; sum == f32Sign {
		return 0
	}
	return sum
}

// stepBytes is the extent in k of one step.
const stepBytes = 32

// Depth is the k extent of one step in elements.
func (f *Format) Depth() int { return stepBytes / f.Bytes }

const (
	f32Sign      = 0x80000000
	f32Inf       = 0x7f800000
	f32Bias      = 127
	f32MaxBiased = 255
	canonicalNaN = 0x7fffffff
)

// Exponents of elements that are no ordinary numbers: a product with a zero
// stays below anyZero, one with an infinity or NaN is above every number's.
const (
	exponentOfZero    = -0x2000
	exponentOfSpecial = 0x3000
	anyZero           = -0x1000
)

// widen gives an element as FP32 bits.
func (f *Format) widen(x uint32) uint32 {
	if f.ToF32 == nil {
		return x << (32 - 8*f.Bytes)
	}
	return f.ToF32(x)
}

// exponent is that of an element, given as FP32 bits.
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
