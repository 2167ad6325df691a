package training

import "sonicmoe/moe/internal/registry"

// Kernels lists the kernels of this package.
var Kernels = registry.Registry{
	LossesKernel, LossSumKernel, LoadsKernel, BalanceBiasKernel,
	DLogitsKernel, RoundedDLogitsKernel, ExpertSumsKernel,
}
