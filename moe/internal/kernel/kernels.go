package kernel

import (
	"slices"

	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/moe/internal/kernel/bias"
	"sonicmoe/moe/internal/kernel/decode"
	"sonicmoe/moe/internal/kernel/dh"
	"sonicmoe/moe/internal/kernel/drouter"
	"sonicmoe/moe/internal/kernel/dw"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/route/choose"
	"sonicmoe/moe/internal/route/order"
	"sonicmoe/moe/internal/route/rounding"
	"sonicmoe/moe/internal/route/training"
	"sonicmoe/moe/internal/tiles"
)

// Kernels lists the kernels of a layer's experts and its routing. A kernel is declared in its own
// file, and each package lists its kernels.
var Kernels = slices.Concat(
	choose.Kernels, order.Kernels, rounding.Kernels,
	registry.Registry{UnpackKernel, PadKernel, LoRAA1Kernel, LoRAA2Kernel, UpKernel, UpInferenceKernel, UpBesideKernel, DownKernel, AdaptUpKernel, AdaptDownKernel, AdaptSingleKernel},
	decode.Kernels,
	registry.Registry{AggregateKernel, EarlyAggregateKernel, AggregateListKernel},
	training.Kernels,
	registry.Registry{LoRAB2Kernel, LoRAB1Kernel},
	dh.Kernels, dw.Kernels, dw.FactorKernels, UnpadKernels.Kernels(), bias.Kernels,
	registry.Registry{DXKernel, DXGivenKernel, SumKernel, SumExtraKernel, SumListKernel, SumExtraListKernel},
	drouter.Kernels,
)

// SharedKernels lists the kernels of the layer of shared experts, which
// [spec.Config.Shared] returns. It has one expert, and its packed rows are the tokens. If
// the shared experts have a gate, the gate is that layer's router, and the gate's score is
// the row's score.
func SharedKernels(shared spec.Config) registry.Registry {
	list := slices.Concat(
		registry.Registry{EveryTokenKernel, UpKernel, UpInferenceKernel, DownKernel, decode.UpKernel, decode.DownKernel},
		registry.Registry{dh.Kernel}, dw.Kernels,
	)
	if shared.SharedGate {
		return append(list, slices.Concat(registry.Registry{dh.ScoresKernel, DXKernel, drouter.Kernel}, drouter.SumKernels.Kernels())...)
	}
	return append(list, DXGivenKernel)
}

// Choose picks tilings with the cost model of the H200.
func Choose(c spec.Config, t driver.Target) tiles.Choice { return Kernels.Choose(tiles.H200, c, t) }
