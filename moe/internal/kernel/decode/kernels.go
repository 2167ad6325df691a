package decode

import (
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/moe/internal/fragments"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/route/choose"
)

// Kernels lists the kernels of this package.
var Kernels = registry.Registry{
	UpKernel, DownKernel,
	WideUpKernel, WideDownKernel,
	TinyUpKernel, TinyDownKernel,
	SingleUpKernel, SingleDownKernel,
	ArrangeKernel, UnitsUpKernel, UnitsDownKernel,
	FewUnitsUpKernel, FewUnitsDownKernel,
	MidUnitsUpKernel, MidUnitsDownKernel,
	WideUnitsUpKernel, WideUnitsDownKernel,
	TinyUnitsUpKernel, TinyUnitsDownKernel,
	SingleUnitsUpKernel, SingleUnitsDownKernel,
}

// ArrangeKernel writes packed weights in the layout of package fragments, which the kernels for
// small batches load.
var ArrangeKernel = &registry.Kernel[fragments.ArrangeArgs]{KernelName: "arrange", Only: spec.IsPacked, From: ofPacked,
	Emit: func(l registry.Layer) (*jit.Kernel[fragments.ArrangeArgs], error) {
		return fragments.Arrange{Config: l.Config}.Build()
	}}

// hasTiny reports whether the layer has kernels with tiny CTAs for plain weights. hasTinyUnits
// reports whether the layer has kernels with tiny CTAs for units of packed weights.
func hasTiny(c spec.Config) bool      { return choose.ChoosesInProducts(c) && spec.IsPlain(c) }
func hasTinyUnits(c spec.Config) bool { return choose.ChoosesInProducts(c) && spec.IsPacked(c) }

// ofPacked is [registry.OfExperts] for kernels whose text depends on the format of the weights.
func ofPacked(c spec.Config) spec.Config {
	of := registry.OfExperts(c)
	of.Weights = c.Weights
	return of
}
