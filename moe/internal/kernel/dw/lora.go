package dw

import (
	"slices"

	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/gemm"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/gradient"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/weights"
)

// This file has the gradients of the factors of an adapter. Each is a [DW] of a smaller layer, in
// which the rank takes the place of a width. U are rows of the adapter's products:
//
//	dB2[e] [d, r]  = Σ_p dO[gather[p]]ᵀ · U[p]       dW2 of n = r; U from A'
//	dA2[e] [r, n]  = Σ_p U[p]ᵀ · A'[p]               dW2 of d = r; U from dO
//	dA1[e] [r, d]  = Σ_p U[p]ᵀ · X[gather[p]]        dW1 of n = r, without a gate; U from dH
//	dB1[e] [2n, r] = Σ_p dH[p]ᵀ · U[p]               dW1 of d = r; U from X

// The kernels of these gradients, one for each mode.
var (
	B2Kernels = factorKernels("b2", W2, aloneB2, spec.HasLoRA)
	A2Kernels = factorKernels("a2", W2, nil, spec.HasLoRA)
	A1Kernels = factorKernels("a1", W1, aloneA1, spec.HasLoRA)
	B1Kernels = factorKernels("b1", W1, nil, ReadsTwice)
)

// FactorKernels lists the kernels for the factors of an adapter.
var FactorKernels = slices.Concat(B2Kernels.Kernels(), A2Kernels.Kernels(), A1Kernels.Kernels(), B1Kernels.Kernels(),
	BothB1Kernels.Kernels(), BothB2Kernels.Kernels(), registry.Registry{SumB1Kernel, SumB2Kernel, ScaleKernel})

// wideFactor is the tiling of the kernels of [DW] for factors. The gradients of A1 and B2 have the rank
// as their width. If one block of columns covers it, they have the tiling narrowFactor.
var (
	wideFactor   = gemm.Tiling{TileN: 128, Stages: 6, GroupM: 1, ClusterM: 1}
	narrowFactor = gemm.Tiling{TileN: 64, Stages: 8, GroupM: 1, ClusterM: 1}
)

// factorTiling returns the tiling of a factor's gradient.
func factorTiling(c spec.Config, isPacked bool) gemm.Tiling {
	if !isPacked && c.LoRARank <= tile.Block {
		return narrowFactor
	}
	return wideFactor
}

// FactorPartialBytes returns the size of a slot for a partial sum of these kernels.
func FactorPartialBytes(c spec.Config) int {
	if spec.PaddedRank(c) <= gemm.WarpgroupM {
		return DW{Tiling: bothTiling}.PartialBytes()
	}
	return DW{Tiling: wideFactor}.PartialBytes()
}

// factorKernels returns the kernels of a factor. alone returns the kernel of gathered rows for a rank that
// fits. It is nil if all rows are packed.
func factorKernels(name string, of Weight, alone func(spec.Config, gradient.Mode) Both, only func(spec.Config) bool) gradient.Set[Args] {
	return gradient.NewSet("dlora-"+name, func(k *registry.Kernel[Args], _ gradient.Mode) {
		k.From, k.Only = registry.OfExperts, only
	}, func(l registry.Layer, g gradient.Mode) (*jit.Kernel[Args], error) {
		isPacked := alone == nil
		if !isPacked && alone(l.Config, g).fits() {
			return alone(l.Config, g).Build()
		}
		return DW{Config: factorOf(l.Config, of, isPacked), Of: of, Factor: name, IsPacked: isPacked, Store: g, Tiling: factorTiling(l.Config, isPacked)}.Build()
	})
}

// factorOf returns the layer whose weight has the layout of a factor.
func factorOf(c spec.Config, of Weight, isPacked bool) spec.Config {
	if isPacked {
		c.Hidden = spec.PaddedRank(c)
		return c
	}
	c.Intermediate = spec.PaddedRank(c)
	if of == W1 {
		c.Activation, c.GateUp = spec.ReLU, spec.Concatenated
	}
	return c
}

// hasU reports whether the packed rows are rows of an adapter's product. X has rows by token then.
func (d DW) hasU() bool { return d.Factor != "" && !d.IsPacked }

// rowBytes is the size of a row of X.
func (d DW) rowBytes() int {
	if d.IsPacked {
		return weights.U(d.Config).Elements() * tile.ElementBytes
	}
	return d.Hidden * tile.ElementBytes
}
