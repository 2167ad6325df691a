//go:build !amd64

package lanes

// Add computes a+b, or a-b if subtract.
func Add(d, a, b *Vector, subtract, ftz bool) bool { return false }

// Multiply computes a*b.
func Multiply(d, a, b *Vector, ftz bool) bool { return false }

// MultiplyAdd computes a*b+c, rounded once.
func MultiplyAdd(d, a, b, c *Vector, ftz bool) bool { return false }
