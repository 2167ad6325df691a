package moe

import "sonicmoe/moe/kernel"

// gradientKernels is how many ways there are of writing a weight's gradient:
// overwriting in bf16 or f32, adding in bf16 or f32.
const gradientKernels = 4

// gradientStore is how a gradient is to be written.
func gradientStore(grad Tensor, accumulate bool) kernel.Gradient {
	return kernel.Gradient{F32: grad.Shape.Type == F32, Accumulate: accumulate}
}

// gradientKernel is the number of the kernel that writes so, from the first of
// its gradientKernels on.
func gradientKernel(first int, store kernel.Gradient) int {
	if store.F32 {
		first++
	}
	if store.Accumulate {
		first += 2
	}
	return first
}

// backwardBuilders sets the kernels of backward.
func (l *Layer) backwardBuilders(b *[kernelCount]builder) {
	c := l.config
	b[planPairs] = kernel.Plan{Experts: c.Experts, TopK: c.TopK, Pairs: true}
	b[dh] = l.dh()
	b[dscores] = l.dscores(true)
	b[dscoresGiven] = l.dscores(false)
	b[planSplits] = l.splits()
	b[extraRows] = l.extraRows()
	b[drouter], b[drouterExtra] = l.drouter(false), l.drouter(true)
	for _, store := range []kernel.Gradient{{}, {F32: true}, {Accumulate: true}, {F32: true, Accumulate: true}} {
		b[gradientKernel(dw1, store)], b[gradientKernel(dw2, store)] = l.dw1(store), l.dw2(store)
		b[gradientKernel(drouterSum, store)] = l.drouterSum(store)
	}
	b[dx], b[dxGiven] = l.dx(true), l.dx(false)
	b[sum], b[sumExtra] = l.sum(false), l.sum(true)
}

func (l *Layer) dh() kernel.DH {
	return kernel.DH{Hidden: l.config.Hidden, Intermediate: l.config.Intermediate, Point: l.choice.DH}
}

func (l *Layer) dscores(routed bool) kernel.DScores {
	return kernel.DScores{Intermediate: l.config.Intermediate, TopK: l.config.TopK, Scores: true, Router: routed}
}

func (l *Layer) splits() kernel.DWPlan { return kernel.DWPlan{Experts: l.config.Experts} }

func (l *Layer) dw1(store kernel.Gradient) kernel.DW {
	c := l.config
	return kernel.DW{Hidden: c.Hidden, Intermediate: c.Intermediate, Of: kernel.W1, Layout: c.GateUp, Store: store, Point: l.choice.DW1}
}

func (l *Layer) dw2(store kernel.Gradient) kernel.DW {
	c := l.config
	return kernel.DW{Hidden: c.Hidden, Intermediate: c.Intermediate, Of: kernel.W2, Store: store, Point: l.choice.DW2}
}

func (l *Layer) dx(routed bool) kernel.DX {
	return kernel.DX{Hidden: l.config.Hidden, Intermediate: l.config.Intermediate, Router: routed, Point: l.choice.DX}
}

// sum adds up a token's rows of dX~.
func (l *Layer) sum(extra bool) kernel.Aggregate {
	return kernel.Aggregate{Hidden: l.config.Hidden, TopK: l.config.TopK, Unit: true, Extra: extra}
}

// extraRows is what the caller's gradients of the logits add to the tokens'.
func (l *Layer) extraRows() kernel.ExtraRows {
	return kernel.ExtraRows{Hidden: l.config.Hidden, Experts: l.config.Experts}
}

func (l *Layer) drouter(extra bool) kernel.DRouter {
	c := l.config
	return kernel.DRouter{Hidden: c.Hidden, Experts: c.Experts, TopK: c.TopK, Extra: extra}
}

func (l *Layer) drouterSum(store kernel.Gradient) kernel.DRouterSum {
	return kernel.DRouterSum{Hidden: l.config.Hidden, Experts: l.config.Experts, Store: store}
}
