package exchange

import (
	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/element"
	"sonicmoe/moe/internal/gradient"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/route/training"
	"sonicmoe/ptx"
)

// Parts adds partial sums of a gradient in order, as package dw adds the splits of an expert on one
// device. A thread adds PartsStep elements.
type Parts struct {
	Store gradient.Mode
	// Element is the type of the gradient if Store is not FP32.
	Element tile.Element
}

// PartsStep is the number of elements of which Count is a multiple.
const PartsStep = 4

const partsThreads = 256

// PartsArgs are the arguments of [Parts].
type PartsArgs struct {
	// Partials [N, Count] f32 are the partial sums. To [Count] is the output, in the format of Store.
	Partials, To driver.DevicePtr
	N, Count     int
}

// Build emits the kernel.
func (p Parts) Build() (*jit.Kernel[PartsArgs], error) {
	k := jit.NewBuilder[PartsArgs]("moe_parts"+p.Store.Suffix(), partsThreads, 1)
	k.CTAs(func(a *PartsArgs) int { return (a.Count/PartsStep + partsThreads - 1) / partsThreads })
	partials, to := k.Ptr(&k.Args.Partials), k.Ptr(&k.Args.To)
	n, count := k.U32(&k.Args.N), k.U32(&k.Args.Count)
	at := k.CtaidX().MulI(partsThreads).Add(k.TidX()).MulI(PartsStep)
	k.GridDepWait()
	k.GridDepLaunch()
	k.If(at.Lt(count), func() {
		var sum [PartsStep]*ptx.Var[ptx.F32]
		for i := range sum {
			sum[i] = ptx.NewVar(k.Kernel, ptx.Float(0))
		}
		part := func(i ptx.U32) []ptx.F32 {
			return ptx.LdGlobalVec[ptx.F32](partials.Index(at, 4).Plus(i.MulWide(count.MulI(4))), PartsStep)
		}
		// The sum starts with the first part and not with 0, because 0 + -0 is not -0.
		k.If(n.NeI(0), func() {
			for i, v := range part(ptx.Uint(0)) {
				sum[i].Set(v)
			}
		})
		k.For(ptx.Uint(1), n, ptx.Uint(1), func(i ptx.U32) {
			for j, v := range part(i) {
				sum[j].Set(sum[j].Get().Add(v))
			}
		})
		p.Store.Write(k.Kernel, p.Element, to.Index(at, p.Store.Bytes()), sum[0].Get(), sum[1].Get(), sum[2].Get(), sum[3].Get())
	})
	return k.Build()
}

// SharedRows are the tensors from which the gradients of the shared experts are made, a row for each
// token: X and DO [T, d], and the packed rows DH and A of package dw. DLogits [T, 1] f32 and
// ExpertIDs [T, 1] i32 are for the gradient of the gate, if there is one. Tokens [T] u32 has the
// numbers 0, 1, 2 and so on.
type SharedRows struct {
	X, DO, DH, A, DLogits, ExpertIDs, Tokens driver.DevicePtr
}

// LossTokens has the tokens of the losses on a rank's logits. Total is the number of the tokens of all
// ranks. Length is the number of tokens of a sequence.
type LossTokens struct {
	Total, Length int
	// Offsets [E+1] u32 has the first row of each expert over all ranks, as in the plan of one device.
	// If ExpertIDs is not 0, it has the ids of all tokens of the sequences that have tokens of this
	// rank. Listed is the number of these tokens. First is the number of the rank's first token among
	// them.
	Offsets, ExpertIDs driver.DevicePtr
	Listed, First      int
	// Values [T, 2] f32 has two numbers for each token, see training.Losses.
	Values driver.DevicePtr
}

// PartsKernels add the partial sums of the shared experts' gradients. TokenLossesKernel and
// SumLossesKernel compute the losses on the logits, see training.Losses.
var (
	PartsKernels = gradient.NewSet("parts", func(k *registry.Kernel[PartsArgs], _ gradient.Mode) {
		k.Only = func(c spec.Config) bool { return c.SharedExperts > 0 }
	}, func(l registry.Layer, g gradient.Mode) (*jit.Kernel[PartsArgs], error) {
		return Parts{Store: g, Element: element.Of(l.Config)}.Build()
	})
	TokenLossesKernel = lossesKernel("token-losses", training.EachToken)
	SumLossesKernel   = lossesKernel("sum-losses", training.SumTokens)
)

func lossesKernel(name string, part training.LossPart) *registry.Kernel[training.LossesArgs] {
	return &registry.Kernel[training.LossesArgs]{KernelName: name, Backward: true, Emit: func(l registry.Layer) (*jit.Kernel[training.LossesArgs], error) {
		return training.Losses{NumExperts: l.NumExperts, TopK: l.TopK, Logits: l.Logits, Part: part}.Build()
	}}
}
