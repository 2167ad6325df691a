package registry

import (
	"sonicmoe/internal/recent"
	"sonicmoe/internal/spec"
	"sonicmoe/jit/gemm"
)

// emitted has the kernels that this process has emitted most recently, enough for two or three
// layers. A kernel in it is not emitted again, neither if the same layer is created again, nor if
// another layer needs the kernel with the same sizes.
var emitted = recent.New[emission, Built](maxEmitted)

// maxEmitted is the largest number of instructions in emitted. An instruction takes about 600
// bytes.
const maxEmitted = 100_000

// emission is everything that a kernel's text may depend on. It is the key in emitted.
type emission struct {
	kernel   Any
	config   spec.Config
	tiling   gemm.Tiling
	isShared bool
}

// emission returns what the kernel's text depends on in a layer.
func (k *Kernel[A]) emission(l Layer) emission {
	e := emission{kernel: k, config: l.Config, isShared: l.IsShared}
	if k.From != nil {
		e.config = k.From(l.Config)
	}
	e.config.TokensHint = 0 // the hint only affects the choice of tilings, and not the text of a kernel
	if k.Of != nil {
		e.tiling = l.Tiling(k.Of)
	}
	return e
}

// layer returns a layer with only the properties on which the kernel may depend.
func (e emission) layer() Layer {
	l := Layer{Config: e.config, IsShared: e.isShared}
	if p := e.kernel.Product(); p != nil {
		l.Tiles[p.ID] = e.tiling
	}
	return l
}

// OfExperts returns the Config without its router, scores and shared experts: the part on which the
// experts' products depend. It is the [Kernel.From] of their kernels.
func OfExperts(c spec.Config) spec.Config {
	of := spec.Config{
		Hidden: c.Hidden, Intermediate: c.Intermediate, NumExperts: c.NumExperts, Type: c.Type, GateUp: c.GateUp, InOut: c.InOut,
		Activation: c.Activation, Alpha: c.Alpha, Limit: c.Limit, Bias: c.Bias, ScoreOnInput: c.ScoreOnInput,
	}
	if spec.HasLoRA(c) { // kernels of their own add the products of a table of adapters
		of.LoRARank, of.LoRAAlpha, of.RSLoRA = c.LoRARank, c.LoRAAlpha, c.RSLoRA
	}
	return of
}
