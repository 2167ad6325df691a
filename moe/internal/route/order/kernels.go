package order

import "sonicmoe/moe/internal/registry"

// Kernels lists the kernels of this package.
var Kernels = registry.Registry{
	CountKernel, PlanKernel, PlanPairsKernel,
	CountListKernel, PlanListKernel, ByTokenKernel, PlanSortedKernel,
}
