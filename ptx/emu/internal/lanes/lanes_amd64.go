package lanes

import "golang.org/x/sys/cpu"

var available = cpu.X86.HasAVX2 && cpu.X86.HasFMA

//go:noescape
func add(d, a, b *Vector, sign, ftz uint64)

//go:noescape
func multiply(d, a, b *Vector, ftz uint64)

//go:noescape
func multiplyAdd(d, a, b, c *Vector, ftz uint64)

func flag(ftz bool) uint64 {
	if ftz {
		return 1
	}
	return 0
}

// Add computes a+b, or a-b if subtract is set.
func Add(d, a, b *Vector, subtract, ftz bool) bool {
	if available {
		add(d, a, b, flag(subtract)<<31, flag(ftz))
	}
	return available
}

// Multiply computes a*b.
func Multiply(d, a, b *Vector, ftz bool) bool {
	if available {
		multiply(d, a, b, flag(ftz))
	}
	return available
}

// MultiplyAdd computes a*b+c, rounded once.
func MultiplyAdd(d, a, b, c *Vector, ftz bool) bool {
	if available {
		multiplyAdd(d, a, b, c, flag(ftz))
	}
	return available
}
