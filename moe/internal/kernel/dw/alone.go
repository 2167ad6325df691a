package dw

import (
	"sonicmoe/internal/spec"
	"sonicmoe/jit/gemm"
	"sonicmoe/moe/internal/gradient"
)

// This file has the gradients of factors that sum over gathered rows, as kernels of [Both] without a
// product. They copy 512 bytes of a row at a time, [DW] copies 256.

// aloneB2 returns the gradient of B2 without the product.
func aloneB2(c spec.Config, g gradient.Mode) Both {
	b := BothB2(c, g)
	b.Alone = true
	return b
}

// aloneA1 returns the gradient of A1, dA1[e] [r, d] = Σ_p V[p]ᵀ·X[gather[p]]. It has the layout of a B2 of
// a layer with the other order of dimensions.
func aloneA1(c spec.Config, g gradient.Mode) Both {
	c.InOut = !c.InOut
	b := aloneB2(c, g)
	b.Factor = "a1"
	return b
}

// fits reports whether the rank fits in the lines of one math warpgroup. With 64 lines, a gradient that
// is stored transposed and added to old values has too few registers.
func (b Both) fits() bool {
	return b.Hidden < gemm.WarpgroupM || b.Hidden == gemm.WarpgroupM && !b.transposed()
}
