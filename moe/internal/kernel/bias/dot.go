package bias

import (
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/moe/internal/element"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/route"
)

// DotKernel is dO·b2ᵀ [T, E] f32, the product of which each (token, slot) takes its
// expert's.
var DotKernel = &registry.Kernel[route.RouterArgs]{KernelName: "bias-dot", Backward: true, Only: Has, Emit: func(l registry.Layer) (*jit.Kernel[route.RouterArgs], error) {
	k, err := route.Router{Hidden: l.Hidden, NumExperts: l.NumExperts, TopK: l.TopK, Element: element.Of(l.Config), Logits: spec.LogitsF32, LogitsOnly: true}.Build()
	if err == nil {
		k.Rename("moe_bias_dot")
	}
	return k, err
}}
