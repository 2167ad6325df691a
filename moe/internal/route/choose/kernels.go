package choose

import "sonicmoe/moe/internal/registry"

// Kernels lists the kernels of this package.
var Kernels = registry.Registry{
	TermsKernel, RouterKernel, LogitsKernel, FromLogitsKernel,
	SmallBatchLogitsKernel, ChainLogitsKernel, ChooseKernel, ChooseRangesKernel,
}
