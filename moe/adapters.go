package moe

import (
	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/moe/internal/kernel"
	"sonicmoe/moe/internal/registry"
)

// This file has what passes do for a table of adapters: they launch [kernel.Adapt] after Up and after
// Down, or [kernel.AdaptSingle] between them.

// keptH returns the address to which Up writes H, or 0 if Up does not write H. In a layer with a table
// Up always writes H, because Adapt reads it. If the caller does not want H, it goes to the memory of
// Y, which Down overwrites.
func (q *queue) keptH(f *ForwardArgs, w pieces) driver.DevicePtr {
	if f.H.IsZero() && spec.HasAdapters(q.layer.of.Config) {
		return at(f.Workspace.Ptr, w.y)
	}
	return f.H.Ptr
}

// adapt queues the kernel k, which adds the adapters' products to the results of Up or Down. It
// queues nothing if the layer has no table.
func (q *queue) adapt(k *registry.Kernel[kernel.AdaptArgs], n work, f *ForwardArgs, w pieces) {
	if !spec.HasAdapters(q.layer.of.Config) {
		return
	}
	p := f.Workspace.Ptr
	args := kernel.AdaptArgs{
		X: f.X.Ptr, AdapterIDs: f.AdapterIDs.Ptr, Scales: f.LoraScales.Ptr, Misses: f.AdapterMisses.Ptr,
		FactorA: f.LoraA1.Ptr, FactorB: f.LoraB1.Ptr, Factor3: f.LoraB3.Ptr, Results: q.keptH(f, w), A: at(p, w.a),
		Gather: at(p, w.gather), Table: at(p, w.table), RowPairs: at(p, w.rowPairs), Scores: f.Scores.Ptr, Pairs: at(p, w.pairs),
		Tokens: n.tokens, Rows: n.rows, Splits: kernel.AdaptSplits(q.layer.of.Config, n.tokens, n.rows, q.layer.sms),
	}
	if n.list {
		args.Scores = f.List.Scores.Ptr
	}
	if k == kernel.AdaptDownKernel {
		args.X, args.FactorA, args.FactorB, args.Results = at(p, w.a), f.LoraA2.Ptr, f.LoraB2.Ptr, at(p, w.y)
	}
	launch(q, k, args)
}

// adaptSingle queues the kernel between the up- and the down-projection of a single token. It queues
// nothing if the layer has no table.
func (q *queue) adaptSingle(f *ForwardArgs, w pieces, chosen driver.DevicePtr) {
	if !spec.HasAdapters(q.layer.of.Config) {
		return
	}
	p := f.Workspace.Ptr
	launch(q, kernel.AdaptSingleKernel, kernel.AdaptSingleArgs{
		X: f.X.Ptr, AdapterIDs: f.AdapterIDs.Ptr, Scales: f.LoraScales.Ptr, Misses: f.AdapterMisses.Ptr,
		LoraA1: f.LoraA1.Ptr, LoraB1: f.LoraB1.Ptr, LoraB3: f.LoraB3.Ptr, LoraA2: f.LoraA2.Ptr, Chosen: chosen,
		H: q.keptH(f, w), A: at(p, w.a), U: at(p, w.u),
	})
}

// checkAdapters checks the arguments for a table of adapters: a layer with a table needs AdapterIDs,
// and any other layer refuses them.
func (c *Call) checkAdapters(f *ForwardArgs, want *Shapes) {
	if spec.HasAdapters(c.layer.of.Config) {
		c.check.tensor("AdapterIDs", f.AdapterIDs, want.AdapterIDs, false)
		c.check.optional("AdapterMisses", f.AdapterMisses, want.AdapterMisses, true)
		return
	}
	const none = "none: the layer has no table of adapters (Config.LoRAAdapters)"
	if !f.AdapterIDs.IsZero() {
		c.check.fail("AdapterIDs", f.AdapterIDs.Shape.String(), none)
	}
	if !f.AdapterMisses.IsZero() {
		c.check.fail("AdapterMisses", f.AdapterMisses.Shape.String(), none)
	}
}
