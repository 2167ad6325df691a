package rounding

import "sonicmoe/moe/internal/registry"

// Kernels lists the kernels of this package.
var Kernels = registry.Registry{
	KeysKernel, CutoffKernel, ListKernel,
}
