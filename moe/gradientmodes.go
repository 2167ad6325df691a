package moe

import (
	"fmt"
	"slices"
	"strings"

	"sonicmoe/internal/spec"
	"sonicmoe/moe/internal/gradient"
	"sonicmoe/moe/internal/kernel"
	"sonicmoe/moe/internal/kernel/dw"
	"sonicmoe/moe/internal/registry"
)

// gradientWant is the argument of a WithGradients option.
type gradientWant struct {
	of         Type
	accumulate bool
}

// WithGradients names a mode in which backward passes write the gradients of the experts' weights:
// DW1, DW2, DW3, DSharedW1, DSharedW2 and DSharedW3. The mode is a type, F32 or the layer's, and
// whether the gradient accumulates or is overwritten. New compiles kernels only for the named
// modes, and Backward refuses others. Repeat the option for several modes. Without the option a
// layer has all four modes, which take twice as long to compile. Gradients of biases and of the
// router may always have any mode.
func WithGradients(of Type, accumulate bool) Option {
	return func(o *options) { o.gradients = append(o.gradients, gradientWant{of, accumulate}) }
}

// checkGradients refuses types that no gradient of the layer can have.
func (o options) checkGradients(c Config) error {
	for _, g := range o.gradients {
		if g.of != c.Type && g.of != F32 {
			return &ArgError{Field: "WithGradients", Got: g.of.String(), Want: fmt.Sprintf("%v, the layer's type, or %v", c.Type, F32)}
		}
	}
	return nil
}

// weightGradients and factorGradients are the kernels whose modes WithGradients selects.
var (
	weightGradients = []gradient.Set[dw.Args]{dw.W1Kernels, dw.W2Kernels}
	factorGradients = []gradient.Set[dw.Args]{dw.A1Kernels, dw.B1Kernels, dw.BothB1Kernels, dw.BothB2Kernels, dw.A2Kernels, dw.B2Kernels}
)

// writes reports whether a layer with the options has a kernel, by the kernel's gradient mode. Options
// that name no gradients include all modes. It is true for kernels without modes. If the layer pads an
// adapter's factors, their kernels write FP32 to the workspace, and the kernels lora-unpad have the
// modes.
func (o options) writes(c Config, k registry.Any) bool {
	if k == dw.BothB1Kernels.In(gradient.Mode{F32: true}) || k == dw.BothB2Kernels.In(gradient.Mode{F32: true}) { // writes an unwanted gradient to the workspace
		return true
	}
	for _, mode := range gradient.Modes {
		of := func(s gradient.Set[dw.Args]) bool { return k == s.In(mode) }
		isFactor := slices.ContainsFunc(factorGradients, of)
		if isFactor && spec.PadsRank(c) {
			return mode == gradient.Mode{F32: true}
		}
		if isFactor || slices.ContainsFunc(weightGradients, of) || k == kernel.UnpadKernels.In(mode) {
			return len(o.gradients) == 0 || slices.ContainsFunc(o.gradients, func(g gradientWant) bool {
				return mode == gradient.Mode{F32: g.of == F32, Accumulate: g.accumulate}
			})
		}
	}
	return true
}

// checkModes refuses gradients whose kernel WithGradients left out.
func (c *Call) checkModes(b *BackwardArgs) {
	if spec.HasLoRA(c.layer.of.Config) {
		for _, id := range []TensorID{spec.TensorLoraA1, spec.TensorLoraB1, spec.TensorLoraA2, spec.TensorLoraB2} {
			c.checkMode(spec.Row(id).GradientID.String(), *b.Gradient(id), c.launchers)
		}
	} else {
		c.checkMode("DW1", b.DW1, c.launchers)
		c.checkMode("DW2", b.DW2, c.launchers)
	}
	if c.shared != nil {
		c.checkMode("DSharedW1", b.DSharedW1, c.shared.launchers)
		c.checkMode("DSharedW2", b.DSharedW2, c.shared.launchers)
	}
}

// writesIn reports whether the launchers have kernels that write gradients in a mode.
func writesIn(launchers registry.Launchers, mode gradient.Mode) bool {
	return launchers[dw.W1Kernels.In(mode)] != nil || launchers[kernel.UnpadKernels.In(mode)] != nil ||
		launchers[kernel.PadKernel] == nil && launchers[dw.A1Kernels.In(mode)] != nil
}

// checkMode refuses a gradient without a kernel among the launchers.
func (c *Call) checkMode(field string, g Gradient, launchers registry.Launchers) {
	if g.IsZero() || writesIn(launchers, gradientOf(g)) {
		return
	}
	var ways []string
	for _, mode := range gradient.Modes {
		if writesIn(launchers, mode) {
			way := Gradient{Accumulate: mode.Accumulate}
			way.Shape.Type = c.layer.of.Type
			if mode.F32 {
				way.Shape.Type = F32
			}
			ways = append(ways, way.Shape.Type.String()+added(&way))
		}
	}
	c.check.fail(field, g.Shape.String()+added(&g), strings.Join(ways, ", or ")+", as WithGradients names")
}
