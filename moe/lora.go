package moe

import (
	"sonicmoe/internal/spec"
	"sonicmoe/jit/gemm"
	"sonicmoe/jit/schedule"
	"sonicmoe/moe/internal/kernel"
)

// This file queues the products with an adapter's first factors. The products of the layer add the
// second factors.

// loraUp queues the product of the tokens with LoraA1, if the layer has an adapter.
func (q *queue) loraUp(n work, f *ForwardArgs, w pieces) {
	if !spec.HasLoRA(q.layer.of.Config) {
		return
	}
	p := f.Workspace.Ptr
	q.fill(at(p, w.loraTickets), 0, schedule.TicketsBytes/4)
	launch(q, kernel.LoRAUpKernel, kernel.LoRAArgs{
		X: f.X.Ptr, Gather: at(p, w.gather), Factor: f.LoraA1.Ptr, U: at(p, w.u), Rows: n.rows, TileArgs: q.loraTiles(f, w, 0),
	})
}

// loraDown queues the product of the activation with LoraA2, if the layer has an adapter.
func (q *queue) loraDown(n work, f *ForwardArgs, w pieces) {
	if !spec.HasLoRA(q.layer.of.Config) {
		return
	}
	p := f.Workspace.Ptr
	launch(q, kernel.LoRADownKernel, kernel.LoRAArgs{
		X: at(p, w.a), Factor: f.LoraA2.Ptr, U: at(p, w.u), Rows: n.rows, TileArgs: q.loraTiles(f, w, 1),
	})
}

// loraTiles returns the tiles of the adapter's product with the number which.
func (q *queue) loraTiles(f *ForwardArgs, w pieces, which int64) gemm.TileArgs {
	t := w.tiles(f.Workspace.Ptr, 0)
	t.Tickets = at(f.Workspace.Ptr, w.loraTickets+which*schedule.TicketBytes)
	return t
}
