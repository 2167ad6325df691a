package decode

import "sonicmoe/moe/internal/registry"

// Kernels lists the kernels of this package.
var Kernels = registry.Registry{
	UpKernel, DownKernel,
	WideUpKernel, WideDownKernel,
	TinyUpKernel, TinyDownKernel,
	SingleUpKernel, SingleDownKernel,
}
