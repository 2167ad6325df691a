package kernel

import (
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

// Kernels are the layer's kernels, each declared in its own file. Its shared
// experts launch those of [SharedKernels], which are these but for the plan,
// EveryToken's.
var Kernels = registry.Registry{
	choose.TermsKernel, choose.RouterKernel, choose.LogitsKernel, choose.FromLogitsKernel, order.CountKernel, order.PlanKernel, UpKernel, UpInferenceKernel, DownKernel, AggregateKernel, EarlyAggregateKernel,
	choose.FewLogitsKernel, choose.ChainLogitsKernel, choose.ChooseKernel, choose.ChooseRangesKernel, decode.UpKernel, decode.DownKernel, decode.WideUpKernel, decode.WideDownKernel,
	decode.SmallUpKernel, decode.SmallDownKernel, decode.LoneUpKernel, decode.LoneDownKernel,
	rounding.KeysKernel, rounding.CutoffKernel, rounding.ListKernel, order.PlanSortedKernel, order.CountListKernel, order.PlanListKernel, order.ByTokenKernel, AggregateListKernel,
	order.PlanPairsKernel, training.LossesKernel, training.LossSumKernel, training.LoadsKernel, training.BalanceBiasKernel, dh.Kernel, dh.ScoresKernel, dh.ScoresGivenKernel, dh.ScoresListKernel, training.DLogitsKernel, training.RoundedDLogitsKernel, training.ExpertSumsKernel, dw.PlanKernel,
	dw.W2Kernels[0], dw.W2Kernels[1], dw.W2Kernels[2], dw.W2Kernels[3],
	dw.W1Kernels[0], dw.W1Kernels[1], dw.W1Kernels[2], dw.W1Kernels[3],
	bias.DotKernel, bias.B1Kernels[0], bias.B1Kernels[1], bias.B1Kernels[2], bias.B1Kernels[3],
	bias.ScoresKernel, bias.ScoresListKernel, bias.B2Kernel, bias.B2RoutedKernel,
	DXKernel, DXGivenKernel, drouter.ExtraRowsKernel, SumKernel, SumExtraKernel, SumListKernel, SumExtraListKernel,
	drouter.Kernel, drouter.ExtraKernel, drouter.SumKernels[0], drouter.SumKernels[1], drouter.SumKernels[2], drouter.SumKernels[3],
}

// Choose picks tilings by the cost model of the H200.
func Choose(c spec.Config, t driver.Target) tiles.Choice { return Kernels.Choose(tiles.H200, c, t) }
