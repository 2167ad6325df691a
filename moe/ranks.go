package moe

import (
	"slices"

	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/moe/internal/exchange"
	"sonicmoe/moe/internal/hook"
	"sonicmoe/moe/internal/kernel"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/route/choose"
	"sonicmoe/moe/internal/route/order"
)

// This file has the steps of passes whose experts are spread over ranks. Package moe/parallel
// queues the steps through package hook. A rank has two layers. The home layer holds the rank's
// tokens and has the whole Config. The other layer holds the rank's experts, and gets its routing
// as a list.

// part tells which part of a layer's work the layer does.
type part uint8

const (
	// The zero value is a whole layer, on one device.
	_ part = iota
	// home is a layer for the tokens of a rank: everything but the experts' products.
	home
	// ofRank is a layer for the experts of a rank.
	ofRank
)

// kernels lists the kernels of a layer with this part.
func (p part) kernels(c Config) registry.Registry {
	all := kernel.Kernels.Of(c)
	switch p {
	case home:
		all = slices.DeleteFunc(all, func(k registry.Any) bool { return k.Product() != nil })
		return append(all, exchange.Kernels.Of(c)...)
	case ofRank:
		all = slices.DeleteFunc(all, func(k registry.Any) bool { return slices.Contains(choose.Kernels, k) })
		return append(all, exchange.OfRank...)
	}
	return all
}

func init() {
	hook.Home = Option(func(o *options) { o.part, o.decode = home, new(int) })
	hook.OfRank = Option(func(o *options) { o.part, o.decode = ofRank, new(int) })
	hook.Ranks = hook.Steps[*Call, ForwardArgs, BackwardArgs, Gradient]{
		Check: (*Call).checkRanks, Split: (*Call).split, Entries: step(exchange.EntriesKernel), Shift: step(exchange.ShiftKernel), Rows: step(exchange.RowsKernel),
		SumPlaces: step(exchange.SumPlacesKernel), Slots: step(exchange.SlotsKernel), SumRows: step(kernel.AggregateKernel), SumGradientRows: step(kernel.SumKernel),
		Arrange: step(exchange.ArrangeKernel), Experts: (*Call).expertsOfRank, Sum: (*Call).sumRanks, Returned: (*Call).returned,
		CheckBackward: (*Call).checkRanksBackward, GradientH: (*Call).gradientH, GradientScores: (*Call).gradientScores, GradientRows: (*Call).gradientRows, GradientWeights: (*Call).gradientWeights, ExpertSums: (*Call).expertSums, NoWeights: (*Call).noWeights,
		GradientsReturned: (*Call).gradientsReturned, GradientLogits: (*Call).gradientLogits, GradientTokens: (*Call).gradientTokens,
		RouterInputs: (*Call).routerInputs, BiasInputs: (*Call).biasInputs, GradientRouter: (*Call).gradientRouter, SumRouter: (*Call).sumRouter,
		SharedRows: (*Call).sharedGradientRows, SharedPart: (*Call).sharedPart, AddParts: (*Call).addParts,
		TokenLosses: (*Call).tokenLosses, SumLosses: (*Call).sumTokenLosses,
	}
}

// step returns a function that queues the kernel k.
func step[A any](k *registry.Kernel[A]) func(*Call, driver.Stream, A) error {
	return func(c *Call, s driver.Stream, args A) error {
		return c.steps(s, func(q *queue) { launch(q, k, args) })
	}
}

// steps queues launches of a pass over ranks. Package moe/parallel has checked the arguments.
func (c *Call) steps(s driver.Stream, body func(q *queue)) error {
	if err := c.ready(s); err != nil {
		return err
	}
	defer c.end()
	q := c.queue(s)
	body(q)
	return q.err
}

// checkRanks checks the tensors of a forward pass. A home layer checks the tensors of the tokens. A
// layer of experts checks the weights of its experts. routed reports whether the pass writes scores
// and ids.
func (c *Call) checkRanks(f *ForwardArgs, routed bool) error {
	shared := func(id TensorID) bool { return spec.Row(id).Needs&spec.HasShared != 0 }
	ids := slices.Clone(spec.ExpertWeights)
	c.check.reset()
	if c.layer.part == ofRank {
		c.check.weights(slices.DeleteFunc(ids, shared), &f.Weights, &c.laid(work{}).shapes)
		return c.check.err
	}
	t, err := c.layer.tokensOf("X", f.X, c.layer.of.Type, c.layer.of.Hidden)
	if err != nil {
		return err
	}
	want := &c.laid(c.layer.work(t)).shapes
	c.checkRouting(t, f, routed)
	if routed {
		c.checkRouter(t, f)
	}
	c.check.weights(slices.DeleteFunc(ids, func(id TensorID) bool { return !shared(id) }), &f.Weights, want)
	c.check.tensor("O", f.O, want.O, true)
	return c.check.overlaps()
}

// split sorts pairs by expert, and rows by rank. The kernels that sort rows by expert also sort the
// rows by rank, with ranks in place of experts. This fits, because there are no more ranks than
// experts.
func (c *Call) split(s driver.Stream, of exchange.Split, p driver.DevicePtr) error {
	return c.steps(s, func(q *queue) {
		w := q.laid(q.layer.work(of.Tokens)).workspace.indices
		launch(q, exchange.OwnersKernel, exchange.OwnersArgs{ExpertIDs: of.ExpertIDs, RowRanks: of.RowRanks, Ranks: of.Ranks, Pairs: of.Tokens * q.layer.of.TopK})
		sorted := func(ids driver.DevicePtr, to order.PlanTensors) {
			scratch := w.plan(p, Tensor{Ptr: ids})
			to.ExpertIDs, to.Table, to.RowPairs, to.Tickets = ids, scratch.Table, scratch.RowPairs, scratch.Tickets
			q.count(of.Tokens, Tensor{Ptr: ids}, p, w)
			launch(q, order.PlanPairsKernel, order.PlanArgs{PlanTensors: to, Counts: at(p, w.counts), TokenRanges: q.ranges(of.Tokens)})
		}
		unused := at(p, w.gather)
		sorted(of.ExpertIDs, order.PlanTensors{Gather: unused, Inverse: of.Places, Pairs: of.Pairs, Offsets: of.PairOffsets})
		sorted(of.RowRanks, order.PlanTensors{Gather: of.RowTokens, Inverse: of.RowPlaces, Pairs: unused, Offsets: of.RowOffsets})
	})
}

// expertsOfRank queues the products of some rows of a list.
func (c *Call) expertsOfRank(s driver.Stream, f ForwardArgs, of exchange.Work) error {
	n := work{tokens: int(f.X.Shape.Dims[0]), rows: int(f.List.ExpertIDs.Shape.Dims[0]), list: true}
	return c.steps(s, func(q *queue) {
		p := f.Workspace.Ptr
		w := q.laid(n).workspace.pieces
		from := func(address driver.DevicePtr) int64 { return int64(address - p) }
		w.y, w.gather, w.pairs, w.offsets = from(of.Y), from(of.Gather), from(of.Pairs), from(of.Offsets)
		w.table, w.rowPairs, w.tickets = from(of.Table), from(of.RowPairs), from(of.Tickets)
		q.weightsOfRank(&f.Weights, p, w.indices, of.Later)
		q.largeBatchProducts(n, &f, w)
	})
}

// weightsOfRank makes the weights of a rank's experts ready for products: it unpacks weights and pads the
// factors of an adapter. It queues no kernel if an earlier step of the pass has done so (later).
func (q *queue) weightsOfRank(w *Weights, p driver.DevicePtr, places indices, later bool) {
	if to, packed := q.unpacked(w, p, places); packed && !later {
		launch(q, kernel.UnpackKernel, to)
	}
	if to, pads := q.padded(w, p, places); pads && !later {
		launch(q, kernel.PadKernel, to)
	}
}

// returned returns the address for the rows of Y that come back. sumRanks reads them there.
func (c *Call) returned(f ForwardArgs) driver.DevicePtr {
	return at(f.Workspace.Ptr, c.laid(c.layer.work(int(f.X.Shape.Dims[0]))).workspace.y)
}

// sumRanks queues the shared experts, and the sum over each token's rows. inverse [T, K] u32 has the
// index of the returned row for each pair of token and slot.
func (c *Call) sumRanks(s driver.Stream, f ForwardArgs, inverse driver.DevicePtr) error {
	n := c.layer.work(int(f.X.Shape.Dims[0]))
	return c.steps(s, func(q *queue) {
		w, p := q.laid(n).workspace, f.Workspace.Ptr
		q.sharedProducts(n.tokens, &f, w.shared)
		launch(q, kernel.AggregateKernel, kernel.AggregateArgs{
			Y: at(p, w.y), O: f.O.Ptr, Inverse: inverse, Scores: f.Scores.Ptr, Tokens: n.tokens,
			SharedRows: at(p, w.shared.y), SharedScores: at(p, w.shared.weights),
		})
	})
}
