package moe

import (
	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/moe/internal/kernel"
	"sonicmoe/moe/internal/kernel/decode"
	"sonicmoe/moe/internal/registry"
)

// experts queues the products of a pass with a plan, and the sum over each token's experts.
func (q *queue) experts(n work, f *ForwardArgs) {
	w := q.laid(n).workspace
	q.sharedProducts(n.tokens, f, w.shared)
	q.products(n, f, w.pieces)
	if n.list {
		q.aggregateList(n, f, w)
	} else {
		q.aggregate(n, f, w)
	}
}

// products queues the up- and the down-projection, by the kernels for the size of the batch.
func (q *queue) products(n work, f *ForwardArgs, w pieces) {
	small := q.layer.smallBatch
	if q.readsUnits(n, f) {
		w1, w2 := q.layer.units(f.Units)
		up, down := decode.UnitsUpKernel, decode.UnitsDownKernel
		switch {
		case n.tokens <= small.unitsFewUpTo:
			up, down = decode.FewUnitsUpKernel, decode.FewUnitsDownKernel
		case n.tokens >= small.unitsWideFrom:
			up, down = decode.WideUnitsUpKernel, decode.WideUnitsDownKernel
		case n.tokens >= small.unitsMidFrom:
			up, down = decode.MidUnitsUpKernel, decode.MidUnitsDownKernel
		}
		q.smallBatchProducts(n, f, w, up, down, w1, w2)
		return
	}
	q.unpack(&f.Weights, f.Workspace.Ptr, w.indices, q.besides(n, f, w))
	switch {
	case n.list || !small.decodes(n.tokens): // a list may give an expert more rows than there are tokens
		q.padLoRA(&f.Weights, f.Workspace.Ptr, w.indices)
		q.largeBatchProducts(n, f, w)
	case small.isWide(n.tokens):
		q.smallBatchProducts(n, f, w, decode.WideUpKernel, decode.WideDownKernel, f.W1.Ptr, f.W2.Ptr)
	default:
		q.smallBatchProducts(n, f, w, decode.UpKernel, decode.DownKernel, f.W1.Ptr, f.W2.Ptr)
	}
}

// smallBatchProducts queues the products of a small batch. w1 and w2 are the weights, or the units
// of the weights.
func (q *queue) smallBatchProducts(n work, f *ForwardArgs, w pieces, up *registry.Kernel[decode.UpArgs], down *registry.Kernel[decode.DownArgs], w1, w2 driver.DevicePtr) {
	p := f.Workspace.Ptr
	launch(q, up, decode.UpArgs{
		X: f.X.Ptr, Gather: at(p, w.gather), W1: w1, W3: f.W3.Ptr, B1: f.B1.Ptr, B3: f.B3.Ptr, Scores: f.Scores.Ptr, Pairs: at(p, w.pairs),
		A: at(p, w.a), H: q.keptH(f, w), Rows: n.rows, TileArgs: w.tiles(p, 0),
	})
	q.adapt(kernel.AdaptUpKernel, n, f, w)
	args := decode.DownArgs{A: at(p, w.a), W2: w2, B2: f.B2.Ptr, Y: at(p, w.y), Rows: n.rows, TileArgs: w.tiles(p, 1)}
	if !spec.HasAdapters(q.layer.of.Config) { // an adapter's kernel is between the products
		args.Progress = args.Table
	}
	launch(q, down, args)
	q.adapt(kernel.AdaptDownKernel, n, f, w)
}

// largeBatchProducts queues the products of a large batch or of a list. The weights are unpacked, and an
// adapter's factors are padded.
func (q *queue) largeBatchProducts(n work, f *ForwardArgs, w pieces) {
	p := f.Workspace.Ptr
	up, scores := kernel.UpInferenceKernel, f.Scores.Ptr
	h := q.keptH(f, w)
	switch {
	case h != 0:
		up = kernel.UpKernel
	case q.besides(n, f, w):
		up = kernel.UpBesideKernel
	}
	if n.list {
		scores = f.List.Scores.Ptr
	}
	q.loraUp(n, f, w)
	launch(q, up, kernel.UpArgs{
		X: f.X.Ptr, Gather: at(p, w.gather), W1: f.W1.Ptr, W3: f.W3.Ptr, B1: f.B1.Ptr, B3: f.B3.Ptr,
		U: q.keptU(f, w), LoraB1: f.LoraB1.Ptr, LoraB3: f.LoraB3.Ptr, Scores: scores, Pairs: at(p, w.pairs), Ready: at(p, w.ready),
		A: at(p, w.a), H: h, Rows: n.rows, TileArgs: w.tiles(p, 0),
	})
	q.adapt(kernel.AdaptUpKernel, n, f, w)
	q.loraDown(n, f, w)
	launch(q, kernel.DownKernel, kernel.DownArgs{
		A: at(p, w.a), W2: f.W2.Ptr, B2: f.B2.Ptr, U: q.keptU2(n, f, w), LoraB2: f.LoraB2.Ptr, Y: at(p, w.y), Rows: n.rows, TileArgs: w.tiles(p, 1),
	})
	q.adapt(kernel.AdaptDownKernel, n, f, w)
}
