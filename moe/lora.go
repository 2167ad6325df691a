package moe

import (
	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/jit/gemm"
	"sonicmoe/jit/schedule"
	"sonicmoe/moe/internal/gradient"
	"sonicmoe/moe/internal/kernel"
	"sonicmoe/moe/internal/kernel/dw"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/weights"
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

// padLoRA queues the kernel that pads the adapter's factors, if their rank is no multiple of 8. It
// changes the addresses in w to the addresses of the padded factors in the workspace at p.
func (q *queue) padLoRA(w *Weights, p driver.DevicePtr, places indices) {
	if to, pads := q.padded(w, p, places); pads {
		launch(q, kernel.PadKernel, to)
	}
}

// padded changes the addresses in w to the addresses of padded factors, and returns the arguments of the
// kernel that pads. pads reports whether the layer's factors are padded.
func (q *queue) padded(w *Weights, p driver.DevicePtr, places indices) (to kernel.PadArgs, pads bool) {
	if !spec.PadsRank(q.layer.of.Config) {
		return to, false
	}
	to = kernel.PadArgs{
		LoraA1: w.LoraA1.Ptr, LoraB1: w.LoraB1.Ptr, LoraB3: w.LoraB3.Ptr, LoraA2: w.LoraA2.Ptr, LoraB2: w.LoraB2.Ptr,
		ToLoraA1: at(p, places.loraA1), ToLoraB1: at(p, places.loraB1), ToLoraB3: at(p, places.loraB3), ToLoraA2: at(p, places.loraA2), ToLoraB2: at(p, places.loraB2),
	}
	w.LoraA1.Ptr, w.LoraB1.Ptr, w.LoraB3.Ptr, w.LoraA2.Ptr, w.LoraB2.Ptr = to.ToLoraA1, to.ToLoraB1, to.ToLoraB3, to.ToLoraA2, to.ToLoraB2
	return to, true
}

// paddedFactorBytes returns the size of the largest gradient of a factor with the padded rank, in FP32.
// The factors of gate and up count as one.
func paddedFactorBytes(c Config) int64 {
	g := spec.Padded(c).Gradients(0, F32)
	return max(g.DLoraA1.Bytes(), g.DLoraB1.Bytes()+g.DLoraB3.Bytes(), g.DLoraA2.Bytes(), g.DLoraB2.Bytes())
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
		X: at(p, w.a), Factor: f.LoraA2.Ptr, U: q.keptU2(n, f, w), Rows: n.rows, TileArgs: w.loraTiles(p, 1),
	})
}

// keptU2 returns the address of the product of the activation with LoraA2.
func (q *queue) keptU2(n work, f *ForwardArgs, w pieces) driver.DevicePtr {
	if f.LoraU.IsZero() {
		return at(f.Workspace.Ptr, w.u)
	}
	return q.secondU(f.LoraU, n)
}

// secondU returns the address of the second part of LoraU.
func (q *queue) secondU(u Tensor, n work) driver.DevicePtr {
	return at(u.Ptr, weights.U(q.layer.of.Config).Bytes(n.rows))
}

// loraDO computes the product of dO with LoraB2 in w.v.
func (r *backwardRun) loraDO() {
	r.clearLoRATickets(r.Workspace.Ptr, r.w.indices)
	if dw.ReadsOnce(r.layer.of.Config) {
		r.bothB2()
		return
	}
	r.loraProduct(kernel.LoRAB2Kernel, 0, kernel.LoRAArgs{X: r.DO.Ptr, Gather: r.at(r.w.gather), Factor: r.LoraB2.Ptr, U: r.at(r.w.v)})
}

// loraDH computes the product of dH with LoraB1 in w.v.
func (r *backwardRun) loraDH() {
	if dw.ReadsOnce(r.layer.of.Config) {
		r.bothB1()
		return
	}
	r.loraProduct(kernel.LoRAB1Kernel, 2, kernel.LoRAArgs{X: r.at(r.w.dh), Factor: r.LoraB1.Ptr, Factor3: r.LoraB3.Ptr, U: r.at(r.w.v)})
}

// bothB1 computes the product of dH with LoraB1 in w.v, and the gradient of LoraB1.
func (r *backwardRun) bothB1() {
	r.planSplits()
	u := Tensor{Ptr: r.at(r.w.v)} // any rows, if the gradient is not wanted
	if !r.DLoraB1.IsZero() {
		u = r.firstU()
	}
	args := r.dW(1, u, r.w.dh, r.DLoraB1.Tensor)
	args.DW3, args.Factor, args.Factor3, args.Sums = r.DLoraB3.Ptr, r.LoraB1.Ptr, r.LoraB3.Ptr, r.at(r.w.loraSums)
	r.factorGradient(dw.BothB1Kernels, spec.TensorLoraB1, args)
	launch(r.queue, dw.SumB1Kernel, dw.SumArgs{Sums: args.Sums, V: r.at(r.w.v), Rows: r.rows})
}

// firstU returns the product of the tokens with LoraA1, which it computes again if forward has not kept
// it.
func (r *backwardRun) firstU() Tensor {
	u := r.LoraU
	if u.IsZero() {
		u.Ptr = r.at(r.w.u)
		r.loraProduct(kernel.LoRAA1Kernel, 3, kernel.LoRAArgs{X: r.X.Ptr, Gather: r.at(r.w.gather), Factor: r.LoraA1.Ptr, U: u.Ptr})
	}
	return u
}

// scaledU multiplies the kept product of the activation by the scores, and returns the address of the
// result.
func (r *backwardRun) scaledU() driver.DevicePtr {
	u := r.secondU(r.LoraU, r.work)
	if r.layer.of.ScoreOnInput {
		return u
	}
	launch(r.queue, dw.ScaleKernel, dw.ScaleArgs{U: u, Scores: r.weights().Ptr, Pairs: r.at(r.w.pairs), Scaled: r.at(r.w.u), Rows: r.rows})
	return r.at(r.w.u)
}

// bothB2 computes the product of dO with LoraB2 in w.v and, if forward has kept LoraU, the gradient of
// LoraB2. Without LoraU the kernel has any rows in the place of U, and the gradient is not used.
func (r *backwardRun) bothB2() {
	r.planSplits()
	u, to := r.at(r.w.v), Gradient{}
	if !r.LoraU.IsZero() {
		u, to = r.scaledU(), r.DLoraB2
	}
	args := r.dW(0, Tensor{Ptr: u}, r.w.v, to.Tensor)
	args.PackedRows, args.Factor, args.Sums = r.DO.Ptr, r.LoraB2.Ptr, r.at(r.w.loraSums)
	r.gradientTo(dw.BothB2Kernels, spec.TensorLoraB2, to, args)
	launch(r.queue, dw.SumB2Kernel, dw.SumArgs{Sums: args.Sums, V: r.at(r.w.v), Rows: r.rows})
}

// loraProduct queues the which-th product of the adapter in a backward pass.
func (r *backwardRun) loraProduct(k *registry.Kernel[kernel.LoRAArgs], which int64, args kernel.LoRAArgs) {
	args.Rows, args.TileArgs = r.rows, r.w.loraTiles(r.Workspace.Ptr, which)
	launch(r.queue, k, args)
}

// dLora2 computes the gradients of LoraA2 and LoraB2, from the product of dO in w.v.
func (r *backwardRun) dLora2() {
	once := dw.ReadsOnce(r.layer.of.Config)
	r.when(!once, (*backwardRun).planSplits)
	if !r.DLoraB2.IsZero() && !(once && !r.LoraU.IsZero()) {
		r.when(once, (*backwardRun).planSplits)
		args := r.dW(0, r.DO, r.w.u, r.DLoraB2.Tensor)
		if r.LoraU.IsZero() {
			r.loraProduct(kernel.LoRAA2Kernel, 1, kernel.LoRAArgs{X: r.at(r.w.scaledA), Factor: r.LoraA2.Ptr, U: r.at(r.w.u)})
		} else {
			args.PackedRows = r.scaledU()
		}
		r.factorGradient(dw.B2Kernels, spec.TensorLoraB2, args)
	}
	if !r.DLoraA2.IsZero() {
		v := Tensor{Ptr: r.at(r.w.v)}
		r.factorGradient(dw.A2Kernels, spec.TensorLoraA2, r.dW(1, v, r.w.scaledA, r.DLoraA2.Tensor))
	}
}

// dLora1 computes the gradients of LoraA1 and LoraB1, from the product of dH in w.v.
func (r *backwardRun) dLora1() {
	once := dw.ReadsOnce(r.layer.of.Config) // then bothB1 has planned the splits, and computed the gradient of LoraB1
	r.when(!once, (*backwardRun).planSplits)
	if !r.DLoraA1.IsZero() {
		r.factorGradient(dw.A1Kernels, spec.TensorLoraA1, r.dW(0, r.X, r.w.v, r.DLoraA1.Tensor))
	}
	if !r.DLoraB1.IsZero() && !once {
		args := r.dW(1, r.firstU(), r.w.dh, r.DLoraB1.Tensor)
		args.DW3 = r.DLoraB3.Ptr
		r.factorGradient(dw.B1Kernels, spec.TensorLoraB1, args)
	}
}

// factorGradient queues the kernel of a factor's gradient. If the rank is no multiple of 8, the kernel
// writes a gradient of the padded rank to the workspace, and Unpad writes the caller's gradient.
func (r *backwardRun) factorGradient(kernels gradient.Set[dw.Args], of TensorID, args dw.Args) {
	r.gradientTo(kernels, of, *r.Gradient(of), args)
}

// gradientTo does the same as factorGradient for a gradient that may be absent. Then the kernel writes
// to the workspace.
func (r *backwardRun) gradientTo(kernels gradient.Set[dw.Args], of TensorID, to Gradient, args dw.Args) {
	c := r.layer.of.Config
	if !to.IsZero() && !spec.PadsRank(c) {
		launch(r.queue, kernels.In(gradientOf(to)), args)
		return
	}
	padded := spec.Padded(c).Shapes(0)
	args.DW = r.at(r.w.factor)
	bytes := padded.Of(of).Elements() * 4
	args.DW3 = at(args.DW, bytes)
	launch(r.queue, kernels.In(gradient.Mode{F32: true}), args)
	if to.IsZero() {
		return
	}
	r.unpad(args.DW, to, padded.Of(of))
	if of == spec.TensorLoraB1 && !r.DLoraB3.IsZero() {
		r.unpad(args.DW3, r.DLoraB3, padded.LoraB3)
	}
}

// unpad queues the kernel that writes a gradient of the padded shape to the caller's tensor.
func (r *backwardRun) unpad(from driver.DevicePtr, to Gradient, padded Shape) {
	launch(r.queue, kernel.UnpadKernels.In(gradientOf(to)), kernel.UnpadArgs{
		From: from, To: to.Ptr, Rows: int(to.Shape.Dims[1]), Columns: int(to.Shape.Dims[2]), PaddedRows: int(padded.Dims[1]), PaddedColumns: int(padded.Dims[2]),
	})
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
