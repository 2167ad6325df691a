//go:build !amd64

package lanes

// Add reports false: there is no vector code for this architecture.
func Add(d, a, b *Vector, subtract, ftz bool) bool { return false }

// Multiply reports false: there is no vector code for this architecture.
func Multiply(d, a, b *Vector, ftz bool) bool { return false }

// MultiplyAdd reports false: there is no vector code for this architecture.
func MultiplyAdd(d, a, b, c *Vector, ftz bool) bool { return false }
