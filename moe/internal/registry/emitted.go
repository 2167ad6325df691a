package registry

import (
	"sonicmoe/internal/recent"
	"sonicmoe/internal/spec"
	"sonicmoe/jit/gemm"
	"sonicmoe/moe/internal/tiles"
)

// emitted are the kernels that this process emitted last, of two or three layers:
// a layer that is made again, or shares kernels' sizes with another, emits none of
// them.
var emitted = recent.New[emission, Built](maxEmitted)

// maxEmitted bounds emitted by instructions, each of which takes some 600 bytes.
const maxEmitted = 100_000

// emission is all that a kernel's text may follow from.
type emission struct {
	kernel   Any
	config   spec.Config
	tiling   gemm.Tiling
	isShared bool
}

// emission is what the kernel is in a layer.
func (k *Kernel[A]) emission(l Layer) emission {
	e := emission{kernel: k, config: l.Config, isShared: l.IsShared}
	if k.From != nil {
		e.config = k.From(l.Config)
	}
	e.config.TokensHint = 0 // it steers the choice of tilings alone
	if k.Of != nil {
		e.tiling = l.Tiling(k.Of)
	}
	return e
}

// layer is a layer that has nothing but what the kernel may follow from.
func (e emission) layer() Layer {
	l := Layer{Config: e.config, IsShared: e.isShared}
	if p := e.kernel.Product(); p != nil {
		l.Tiles = tiles.Choice{p.Name: e.tiling}
	}
	return l
}

// OfExperts is what the experts' products follow from, a [Kernel.From]: a layer
// but for its router, what it makes of logits, and its shared experts.
func OfExperts(c spec.Config) spec.Config {
	return spec.Config{
		Hidden: c.Hidden, Intermediate: c.Intermediate, NumExperts: c.NumExperts, Type: c.Type, GateUp: c.GateUp, WeightOrder: c.WeightOrder,
		Activation: c.Activation, Alpha: c.Alpha, Limit: c.Limit, Bias: c.Bias, ScoreOnInput: c.ScoreOnInput,
	}
}
