package moe

import (
	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/jit/gemm"
	"sonicmoe/jit/schedule"
	"sonicmoe/moe/internal/kernel"
	"sonicmoe/moe/internal/kernel/dw"
	"sonicmoe/moe/internal/registry"
)

// This file has the products of rows with one factor of an adapter, and the gradients of the
// factors. The layer's products add the other factor.

// loraProducts is the largest number of an adapter's products in a pass.
const loraProducts = 4

// hasLoRA reports whether the layer has an adapter.
func (q *queue) hasLoRA() bool { return spec.HasLoRA(q.layer.of.Config) }

// clearLoRATickets clears the tile counters of the adapter's products.
func (q *queue) clearLoRATickets(p driver.DevicePtr, w indices) {
	q.fill(at(p, w.loraTickets), 0, loraProducts)
}

// loraTiles returns the tiles of the which-th product of the adapter in a pass.
func (w indices) loraTiles(p driver.DevicePtr, which int64) gemm.TileArgs {
	t := w.tiles(p, 0)
	t.Tickets = at(p, w.loraTickets+which*schedule.TicketBytes)
	return t
}

// loraUp queues the product of the tokens with LoraA1, if the layer has an adapter.
func (q *queue) loraUp(n work, f *ForwardArgs, w pieces) {
	if !q.hasLoRA() {
		return
	}
	p := f.Workspace.Ptr
	q.clearLoRATickets(p, w.indices)
	launch(q, kernel.LoRAA1Kernel, kernel.LoRAArgs{
		X: f.X.Ptr, Gather: at(p, w.gather), Factor: f.LoraA1.Ptr, U: q.keptU(f, w), Rows: n.rows, TileArgs: w.loraTiles(p, 0),
	})
}

// keptU returns the address of the product of the tokens with LoraA1.
func (q *queue) keptU(f *ForwardArgs, w pieces) driver.DevicePtr {
	if f.LoraU.IsZero() {
		return at(f.Workspace.Ptr, w.u)
	}
	return f.LoraU.Ptr
}

// loraDown queues the product of the activation with LoraA2, if the layer has an adapter.
func (q *queue) loraDown(n work, f *ForwardArgs, w pieces) {
	if !q.hasLoRA() {
		return
	}
	p := f.Workspace.Ptr
	launch(q, kernel.LoRAA2Kernel, kernel.LoRAArgs{
		X: at(p, w.a), Factor: f.LoraA2.Ptr, U: at(p, w.u), Rows: n.rows, TileArgs: w.loraTiles(p, 1),
	})
}

// loraDO computes the product of dO with LoraB2 in w.v.
func (r *backwardRun) loraDO() {
	r.clearLoRATickets(r.Workspace.Ptr, r.w.indices)
	r.loraProduct(kernel.LoRAB2Kernel, 0, kernel.LoRAArgs{X: r.DO.Ptr, Gather: r.at(r.w.gather), Factor: r.LoraB2.Ptr, U: r.at(r.w.v)})
}

// loraDH computes the product of dH with LoraB1 in w.v.
func (r *backwardRun) loraDH() {
	r.loraProduct(kernel.LoRAB1Kernel, 2, kernel.LoRAArgs{X: r.at(r.w.dh), Factor: r.LoraB1.Ptr, Factor3: r.LoraB3.Ptr, U: r.at(r.w.v)})
}

// loraProduct queues the which-th product of the adapter in a backward pass.
func (r *backwardRun) loraProduct(k *registry.Kernel[kernel.LoRAArgs], which int64, args kernel.LoRAArgs) {
	args.Rows, args.TileArgs = r.rows, r.w.loraTiles(r.Workspace.Ptr, which)
	launch(r.queue, k, args)
}

// dLora2 computes the gradients of LoraA2 and LoraB2, from the product of dO in w.v.
func (r *backwardRun) dLora2() {
	r.planSplits()
	if !r.DLoraB2.IsZero() {
		r.loraProduct(kernel.LoRAA2Kernel, 1, kernel.LoRAArgs{X: r.at(r.w.scaledA), Factor: r.LoraA2.Ptr, U: r.at(r.w.u)})
		launch(r.queue, dw.B2Kernels.In(gradientOf(r.DLoraB2)), r.dW(0, r.DO, r.w.u, r.DLoraB2.Tensor))
	}
	if !r.DLoraA2.IsZero() {
		v := Tensor{Ptr: r.at(r.w.v)}
		launch(r.queue, dw.A2Kernels.In(gradientOf(r.DLoraA2)), r.dW(1, v, r.w.scaledA, r.DLoraA2.Tensor))
	}
}

// dLora1 computes the gradients of LoraA1 and LoraB1, from the product of dH in w.v.
func (r *backwardRun) dLora1() {
	r.planSplits()
	if !r.DLoraA1.IsZero() {
		launch(r.queue, dw.A1Kernels.In(gradientOf(r.DLoraA1)), r.dW(0, r.X, r.w.v, r.DLoraA1.Tensor))
	}
	if !r.DLoraB1.IsZero() {
		u := r.LoraU
		if u.IsZero() {
			u.Ptr = r.at(r.w.u)
			r.loraProduct(kernel.LoRAA1Kernel, 3, kernel.LoRAArgs{X: r.X.Ptr, Gather: r.at(r.w.gather), Factor: r.LoraA1.Ptr, U: u.Ptr})
		}
		args := r.dW(1, u, r.w.dh, r.DLoraB1.Tensor)
		args.DW3 = r.DLoraB3.Ptr
		launch(r.queue, dw.B1Kernels.In(gradientOf(r.DLoraB1)), args)
	}
}

// checkFrozen refuses gradients of the weights that an adapter adapts.
func (c *Call) checkFrozen(g *WeightGradients) {
	if !spec.HasLoRA(c.layer.of.Config) {
		return
	}
	for _, id := range spec.ExpertWeights {
		if d := g.Gradient(id); d != nil && spec.Row(id).IsFrozen() && !d.IsZero() {
			c.check.fail(spec.Row(id).GradientID.String(), d.Shape.String(), "none: a layer with LoRARank has gradients of the adapter's factors, not of the weights under it")
		}
	}
}
