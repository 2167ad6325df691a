package dh

import "sonicmoe/moe/internal/registry"

// Kernels lists the kernels of this package.
var Kernels = registry.Registry{
	Kernel, ScoresKernel, ScoresGivenKernel, ScoresListKernel,
}
