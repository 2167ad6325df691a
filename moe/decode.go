package moe

import (
	"math"

	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/jit/gemm"
	"sonicmoe/moe/internal/kernel"
	"sonicmoe/moe/internal/kernel/decode"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/route/choose"
)

// minSmallBatch is the smallest possible upper limit of small batches.
const minSmallBatch = 64

// decodeUpTo returns the largest small batch of a layer with these options. The kernels of package
// decode are faster until products take longer than reading the weights, or until an expert has
// more than 128 rows, the rows of their widest product. With more experts, the fullest expert has
// more rows relative to the mean, so it reaches 128 rows at a lower mean. The formula fits the
// batches for which both kinds of kernels take the same time; see decode.md of the benchmarks.
func (o options) decodeUpTo(c Config) int {
	if o.decode != nil {
		return *o.decode
	}
	experts := float64(max(1, c.NumExperts))
	doublings := math.Log2(max(8, experts)) - 5 // relative to 32 experts
	fewer := 7.5                                // rows an expert fewer for each doubling
	if doublings < 0 {
		fewer = 10.25
	}
	rows := min(100.5-fewer*doublings, max(64, 16384/experts))
	return min(max(minSmallBatch, int(rows*experts/float64(c.TopK))), decode.MaxTokens)
}

// unitsRows returns the mean number of an expert's rows up to which the products read units. Up to
// this number, unpacking the weights, also next to the up-projection, takes more time than the products
// of large batches save; see experiments.md of the benchmarks.
func unitsRows(c Config) int {
	p := spec.PackingOf(c)
	switch {
	case p != nil && p.Code == spec.E4M3 && p.Scale == spec.ScaleF32:
		return 768
	case p != nil && (p.Code == spec.E4M3 || p.Scale == spec.ScaleE4M3 || p.HasZeros):
		return 1024
	case p != nil && p.Code == spec.Int4:
		return 4096
	}
	return 2048
}

// besideRows is the mean number of an expert's rows from which the up-projection runs next to the kernel
// that unpacks. With fewer rows the up-projection would wait for that kernel, which then has only a part of each SM.
const besideRows = 256

// unitsUpTo returns the largest batch whose products read units.
func (o options) unitsUpTo(c Config) int {
	if o.decode != nil {
		return *o.decode
	}
	return max(o.decodeUpTo(c), unitsRows(c)*c.NumExperts/c.TopK)
}

// smallBatch decides which kernels a layer's passes over small batches use. New computes it once.
type smallBatch struct {
	// upTo is the largest small batch. unitsUpTo is the largest batch whose products read units of
	// packed weights. Tiles are wide from wideFrom tokens on, unless wideFrom is 0. Tiles of units
	// have up to 32 tokens up to unitsFewUpTo tokens, have up to 96 from unitsMidFrom tokens on, and are
	// wide from unitsWideFrom tokens on.
	upTo, unitsUpTo, wideFrom, unitsFewUpTo, unitsMidFrom, unitsWideFrom int
	// besideFrom is the smallest batch whose up-projection runs next to the kernel that unpacks, unless
	// the products read units.
	besideFrom int
	// byWarps is the largest batch for which a warp chooses each token's experts from the
	// router's sums.
	byWarps int
	// inRouter means that the router chooses the experts of batches above byWarps. single means
	// that the products choose the experts of one token. tiny means that they choose the experts of
	// up to decode.MaxTiny tokens.
	inRouter, single, tiny bool
}

func (o options) smallBatch(c Config) smallBatch {
	if spec.HasLoRA(c) { // the kernels for small batches cannot train an adapter
		return smallBatch{inRouter: choose.InRouter(c)}
	}
	f := smallBatch{upTo: o.decodeUpTo(c), unitsUpTo: o.unitsUpTo(c), wideFrom: decode.WideFrom(c), unitsFewUpTo: decode.UnitsFewUpTo(c), unitsMidFrom: decode.UnitsMidFrom(c), unitsWideFrom: decode.UnitsWideFrom(c), inRouter: choose.InRouter(c)}
	f.besideFrom = besideRows * c.NumExperts / c.TopK
	// The router's sums use the memory of Y for the same tokens.
	room := 2 * c.TopK * c.Hidden
	if f.inRouter && 4*c.NumExperts <= room {
		f.byWarps = min(f.upTo, choose.MaxByWarps)
	}
	f.single = f.byWarps > 0 && choose.HasSingle(c) && (spec.IsPlain(c) || decode.HasSingleUnits(c) && !spec.HasAdapters(c))
	f.tiny = f.byWarps > 0 && choose.ChoosesInProducts(c) && choose.ChainBytes(c) <= room
	if spec.HasAdapters(c) { // Adapt needs a plan before the up-projection
		f.tiny = false
	}
	return f
}

// launches reports whether some pass launches the kernel. It ignores whether the layer has the
// kernel.
func (f *smallBatch) launches(k registry.Any) bool {
	switch k {
	case decode.UpKernel, decode.DownKernel, kernel.EarlyAggregateKernel:
		return f.decodes(1)
	case decode.WideUpKernel, decode.WideDownKernel:
		return f.isWide(f.upTo)
	case choose.SmallBatchLogitsKernel:
		return f.choosesByWarps(1) || f.decodes(1) && !f.inRouter
	case choose.ChooseKernel: // Call.Route of one token launches it
		return f.choosesAtOnce(1)
	case choose.ChooseRangesKernel:
		return f.choosesByWarps(choose.MaxAtOnce + 1)
	case choose.ChainLogitsKernel:
		return f.isSingle(1) || f.isTiny(1) || f.isTiny(2)
	case decode.SingleUpKernel, decode.SingleDownKernel, kernel.AdaptSingleKernel, decode.SingleUnitsUpKernel, decode.SingleUnitsDownKernel:
		return f.isSingle(1)
	case decode.TinyUpKernel, decode.TinyDownKernel, decode.TinyUnitsUpKernel, decode.TinyUnitsDownKernel:
		return f.isTiny(1) || f.isTiny(2)
	case decode.ArrangeKernel, decode.FewUnitsUpKernel, decode.FewUnitsDownKernel:
		return f.decodes(1)
	case decode.UnitsUpKernel, decode.UnitsDownKernel:
		return f.decodes(1) && f.unitsFewUpTo < f.unitsUpTo
	case decode.MidUnitsUpKernel, decode.MidUnitsDownKernel:
		return f.decodes(1) && f.unitsMidFrom <= f.unitsUpTo
	case decode.WideUnitsUpKernel, decode.WideUnitsDownKernel:
		return f.decodes(1) && f.unitsWideFrom <= f.unitsUpTo
	}
	return true
}

// decodes reports whether a pass uses the kernels for small batches.
func (f *smallBatch) decodes(tokens int) bool { return 0 < tokens && tokens <= f.upTo }

// isWide reports whether a pass uses wide tiles.
func (f *smallBatch) isWide(tokens int) bool {
	return f.wideFrom > 0 && f.wideFrom <= tokens && f.decodes(tokens)
}

// choosesByWarps reports whether a warp chooses each token's experts.
func (f *smallBatch) choosesByWarps(tokens int) bool { return 0 < tokens && tokens <= f.byWarps }

// choosesAtOnce reports whether one kernel makes both the choice and the plan.
func (f *smallBatch) choosesAtOnce(tokens int) bool {
	return f.choosesByWarps(tokens) && tokens <= choose.MaxAtOnce
}

// isSingle reports whether a pass uses the kernels for a single token. Passes over packed weights
// also need units for this.
func (f *smallBatch) isSingle(tokens int) bool { return tokens == 1 && f.single }

// isTiny reports whether a pass's up-projection itself chooses the experts of a few tokens, from
// the sums of the router's chains. It is false for packed weights without units, because these are
// unpacked between the choice and the products.
func (f *smallBatch) isTiny(tokens int) bool {
	return f.tiny && !f.isSingle(tokens) && tokens <= decode.MaxTiny && f.choosesAtOnce(tokens)
}

// choose queues the routing and the plan of a batch for which one CTA chooses.
func (q *queue) choose(t int, f *ForwardArgs, w workspace) {
	p := f.Workspace.Ptr
	logits := at(p, w.y)
	q.smallBatchLogits(t, f, w.indices, logits)
	launch(q, choose.ChooseKernel, choose.ChooseArgs{
		SmallBatchLogits: logits, Scores: f.Scores.Ptr, Logits: f.Logits.Ptr, PlanTensors: w.plan(p, f.ExpertIDs), Tokens: t,
	})
}

// chooseRanges queues the routing of a batch for which several CTAs choose.
func (q *queue) chooseRanges(t int, f *ForwardArgs, w workspace) {
	p := f.Workspace.Ptr
	logits := at(p, w.y)
	q.smallBatchLogits(t, f, w.indices, logits)
	launch(q, choose.ChooseRangesKernel, choose.ChooseRangesArgs{
		SmallBatchLogits: logits, Scores: f.Scores.Ptr, ExpertIDs: f.ExpertIDs.Ptr, Logits: f.Logits.Ptr, Counts: at(p, w.counts), TokenRanges: q.routed(t),
	})
}

// smallBatchLogits queues the router product of a small batch.
func (q *queue) smallBatchLogits(t int, f *ForwardArgs, w indices, logits driver.DevicePtr) {
	launch(q, choose.SmallBatchLogitsKernel, choose.SmallBatchLogitsArgs{
		X: f.X.Ptr, Weights: q.layer.routerTerms(f.Router, f.Workspace.Ptr, w), Bias: f.RouterBias.Ptr, Logits: logits, Tokens: t,
	})
}

// tinyPass queues a whole pass over up to decode.MaxTiny tokens.
func (q *queue) tinyPass(n work, f *ForwardArgs) {
	w, p := q.laid(n).workspace, f.Workspace.Ptr
	// The sums of the router's chains use Y's memory. The length of the table uses the memory of
	// the offsets, which the router's kernel sets to 0.
	sums, length := at(p, w.y), at(p, w.offsets)
	tiles := func(which int64) gemm.TileArgs {
		t := w.tiles(p, which)
		t.RowPairs = length
		return t
	}
	launch(q, choose.ChainLogitsKernel, choose.SmallBatchLogitsArgs{X: f.X.Ptr, Weights: f.Router.Ptr, Logits: sums, Chosen: length, Tickets: at(p, w.tickets), Tokens: n.tokens})
	q.sharedProducts(n.tokens, f, w.shared)
	up, down, w1, w2 := decode.TinyUpKernel, decode.TinyDownKernel, f.W1.Ptr, f.W2.Ptr
	if q.readsUnits(n, f) {
		up, down = decode.TinyUnitsUpKernel, decode.TinyUnitsDownKernel
		w1, w2 = q.layer.units(f.Units)
	}
	launch(q, up, decode.UpArgs{
		X: f.X.Ptr, W1: w1, W3: f.W3.Ptr, B1: f.B1.Ptr, B3: f.B3.Ptr, A: at(p, w.a), H: f.H.Ptr, Rows: n.rows, TileArgs: tiles(0),
		ChoiceArgs: decode.ChoiceArgs{Sums: sums, RouterBias: f.RouterBias.Ptr, ChosenScores: f.Scores.Ptr, ExpertIDs: f.ExpertIDs.Ptr, Logits: f.Logits.Ptr, Inverse: at(p, w.inverse), Tokens: n.tokens},
	})
	launch(q, down, decode.DownArgs{A: at(p, w.a), W2: w2, B2: f.B2.Ptr, Y: at(p, w.y), Rows: n.rows, TileArgs: tiles(1)})
	q.aggregate(n, f, w)
}

// singlePass queues a whole pass over one token.
func (q *queue) singlePass(n work, f *ForwardArgs) {
	w, p := q.laid(n).workspace, f.Workspace.Ptr
	// This pass has no plan. The sums of the router's chains use the memory of the plan's table, 16
	// bytes an expert. The choice uses the memory of the plan's offsets.
	sums, chosen := at(p, w.table), at(p, w.offsets)
	launch(q, choose.ChainLogitsKernel, choose.SmallBatchLogitsArgs{X: f.X.Ptr, Weights: f.Router.Ptr, Logits: sums, Chosen: chosen, Tickets: at(p, w.tickets), Tokens: 1})
	q.sharedProducts(1, f, w.shared)
	up, down, w1, w2 := decode.SingleUpKernel, decode.SingleDownKernel, f.W1.Ptr, f.W2.Ptr
	if q.readsUnits(n, f) {
		up, down = decode.SingleUnitsUpKernel, decode.SingleUnitsDownKernel
		w1, w2 = q.layer.units(f.Units)
	}
	launch(q, up, decode.SingleUpArgs{
		Sums: sums, RouterBias: f.RouterBias.Ptr, Chosen: chosen, Scores: f.Scores.Ptr, ExpertIDs: f.ExpertIDs.Ptr, Logits: f.Logits.Ptr,
		X: f.X.Ptr, W1: w1, W3: f.W3.Ptr, B1: f.B1.Ptr, B3: f.B3.Ptr, A: at(p, w.a), H: q.keptH(f, w.pieces),
	})
	q.adaptSingle(f, w.pieces, chosen)
	launch(q, down, decode.SingleDownArgs{
		AdapterIDs: f.AdapterIDs.Ptr, Scales: f.LoraScales.Ptr, LoraB2: f.LoraB2.Ptr, U: at(p, w.u), Chosen: chosen, Scores: f.Scores.Ptr, A: at(p, w.a), W2: w2, B2: f.B2.Ptr, SharedRow: at(p, w.shared.y), SharedScore: at(p, w.shared.weights), O: f.O.Ptr,
	})
}
