package decode

import (
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/moe/internal/fragments"
	"sonicmoe/moe/internal/registry"
)

// Kernels lists the kernels of this package.
var Kernels = registry.Registry{
	UpKernel, DownKernel,
	WideUpKernel, WideDownKernel,
	TinyUpKernel, TinyDownKernel,
	SingleUpKernel, SingleDownKernel,
	ArrangeKernel, UnitsUpKernel, UnitsDownKernel,
}

// ArrangeKernel writes the units of packed weights.
var ArrangeKernel = &registry.Kernel[fragments.ArrangeArgs]{KernelName: "arrange", Only: fragments.Suits, From: ofPacked,
	Emit: func(l registry.Layer) (*jit.Kernel[fragments.ArrangeArgs], error) {
		return fragments.Arrange{Config: l.Config}.Build()
	}}

// ofPacked is [registry.OfExperts] for kernels whose text depends on the format of the weights.
func ofPacked(c spec.Config) spec.Config {
	of := registry.OfExperts(c)
	of.Weights = c.Weights
	return of
}
