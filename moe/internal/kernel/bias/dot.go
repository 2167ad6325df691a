package bias

import (
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/moe/internal/element"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/route/choose"
)

// DotKernel computes dO·b2ᵀ, [T, E] f32. DScores then reads, for each pair of token and slot, the
// element of the pair's expert.
var DotKernel = &registry.Kernel[choose.RouterArgs]{KernelName: "bias-dot", Backward: true, Only: Has, Emit: func(l registry.Layer) (*jit.Kernel[choose.RouterArgs], error) {
	k, err := choose.Router{Hidden: l.Hidden, NumExperts: l.NumExperts, TopK: l.TopK, Element: element.Of(l.Config), Logits: spec.F32, LogitsOnly: true}.Build()
	if err == nil {
		k.Rename("moe_bias_dot")
	}
	return k, err
}}
