package moe

import (
	"fmt"
	"sync/atomic"

	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/moe/internal/kernel"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/route/choose"
	"sonicmoe/moe/internal/route/order"
)

// Call runs a layer. It keeps packed parameters and tensor maps between passes, so only one
// goroutine at a time may use it. If two goroutines use a call at the same time, one of them gets
// an error.
type Call struct {
	layer *Layer
	// busy is true while a goroutine queues a pass.
	busy      atomic.Bool
	check     argCheck
	launchers registry.Launchers
	observer  func(kernel string, s driver.Stream) error
	// shared is the call of the shared experts, nil if there are none.
	shared *Call
	// last has the layout of the last forward pass, and lastBackward of the last backward pass.
	last         laid
	lastBackward laidBackward
}

// laid has the layout of the workspace and the shapes for forward passes of one size, which is the
// field `of`.
type laid struct {
	known     bool
	of        work
	workspace workspace
	shapes    spec.Shapes
}

// laid returns the layout for a pass. If the last pass had the same size, as in a model's layers,
// it returns the layout of that pass, because computing it costs the host as much as a launch.
func (c *Call) laid(n work) *laid {
	if !c.last.known || c.last.of != n {
		c.last = laid{known: true, of: n, workspace: c.layer.workspace(n), shapes: n.shapes(c.layer.of.Config)}
	}
	return &c.last
}

// laidBackward has the layout of the workspace and the shapes of gradients for backward passes of
// one size.
type laidBackward struct {
	known     bool
	of        work
	workspace backwardWorkspace
	gradients spec.GradientShapes
}

// laidBackward is like laid, for a backward pass.
func (c *Call) laidBackward(n work) *laidBackward {
	if l := &c.lastBackward; !l.known || l.of != n {
		*l = laidBackward{known: true, of: n, workspace: c.layer.backwardWorkspace(n), gradients: c.layer.of.Gradients(n.tokens, c.layer.of.Type)}
		if n.list {
			l.gradients.DScores = n.shapes(c.layer.of.Config).Scores
		}
	}
	return &c.lastBackward
}

// Observe makes later passes call f right before the launch of each kernel on s, with the kernel's
// name in [Layer.Kernels]. f may record an event on s. If f returns an error, the pass ends and
// returns the same error. With nil, the default, passes call nothing, at no cost. Observers measure
// kernels within a pass: an event between two kernels delays the later one until the earlier one
// has ended, so the times of all kernels add up to a little more than the time of a pass without an
// observer.
func (c *Call) Observe(f func(kernel string, s driver.Stream) error) {
	if c != nil {
		c.observer = f
		c.shared.Observe(f)
	}
}

// NewCall returns a call of the layer.
func (l *Layer) NewCall() *Call {
	c := &Call{layer: l, launchers: registry.Launchers{}}
	if l == nil {
		return c // the passes of this call return errors
	}
	for _, k := range l.kernels {
		c.launchers[k.Any] = k.built.NewLauncher(k.fn)
	}
	if l.shared != nil {
		c.shared = l.shared.NewCall()
	}
	return c
}

// Forward queues a whole pass on s. A graph may capture it. If a buffer is wrong, the error is an
// *ArgError and nothing was queued; other errors are the device's. The same is true of Route and
// ForwardExperts.
func (c *Call) Forward(s driver.Stream, f ForwardArgs) error {
	t, err := c.begin(s, f.X)
	if err != nil {
		return err
	}
	defer c.end()
	c.checkRouting(t, &f, true)
	c.checkRouter(t, &f)
	n := c.layer.work(t)
	if !f.List.IsZero() {
		n = c.checkRounded(t, f.List, f.Logits, true)
	}
	c.checkExperts(n, &f)
	if err := c.checked(n, f.Workspace); err != nil || t == 0 {
		return err
	}
	q := c.queue(s)
	q.forward(n, &f)
	return q.err
}

// forward queues the kernels of a pass that routes.
func (q *queue) forward(n work, f *ForwardArgs) {
	small := &q.layer.smallBatch
	readsSmall := spec.IsPlain(q.layer.of.Config) || q.readsUnits(n, f) // the products that choose experts can read the weights
	switch {
	case n.list:
		q.route(n, f)
		q.round(n, f)
		q.planList(n, f.List, f.Workspace.Ptr, q.laid(n).workspace.indices)
		q.experts(n, f)
	case small.isSingle(n.tokens) && readsSmall:
		q.singlePass(n, f)
	case small.isTiny(n.tokens) && readsSmall:
		q.tinyPass(n, f)
	case small.choosesAtOnce(n.tokens):
		q.route(n, f)
		q.experts(n, f)
	default:
		q.route(n, f)
		q.plan(order.PlanKernel, q.routed(n.tokens), f.ExpertIDs, f.Workspace.Ptr, q.laid(n).workspace.indices)
		q.experts(n, f)
	}
}

// forwardGiven queues the kernels of a pass whose routing is given.
func (q *queue) forwardGiven(n work, f *ForwardArgs) {
	w, p := q.laid(n).workspace, f.Workspace.Ptr
	if n.list {
		q.planList(n, f.List, p, w.indices)
	} else {
		q.count(n.tokens, f.ExpertIDs, p, w.indices)
		q.plan(order.PlanKernel, q.ranges(n.tokens), f.ExpertIDs, p, w.indices)
	}
	q.experts(n, f)
}

// Route queues the router's product, top-K and scores on s: the part of Forward
// that writes scores, ids and logits. W1, W2, O and H are ignored.
func (c *Call) Route(s driver.Stream, f ForwardArgs) error {
	t, err := c.begin(s, f.X)
	if err != nil {
		return err
	}
	defer c.end()
	c.checkRouting(t, &f, true)
	c.checkRouter(t, &f)
	c.checkNoList(f.List)
	if err := c.checked(c.layer.work(t), f.Workspace); err != nil || t == 0 {
		return err
	}
	q := c.queue(s)
	q.route(c.layer.work(t), &f)
	return q.err
}

// ForwardExperts queues the experts and their weighted sum on s, with scores and
// ids of the caller. Router and Logits are ignored.
func (c *Call) ForwardExperts(s driver.Stream, f ForwardArgs) error {
	t, err := c.begin(s, f.X)
	if err != nil {
		return err
	}
	defer c.end()
	n := c.layer.work(t)
	if f.List.IsZero() {
		c.checkRouting(t, &f, false)
	} else {
		n = c.checkList(t, f.X, f.List)
	}
	c.checkExperts(n, &f)
	if err := c.checked(n, f.Workspace); err != nil || t == 0 {
		return err
	}
	q := c.queue(s)
	q.forwardGiven(n, &f)
	return q.err
}

// count queues the kernel that counts the pairs of each expert in each range of tokens.
func (q *queue) count(t int, experts Tensor, p driver.DevicePtr, w indices) {
	launch(q, order.CountKernel, order.CountArgs{ExpertIDs: experts.Ptr, Counts: at(p, w.counts), TokenRanges: q.ranges(t)})
}

// begin starts a pass: it reserves the call for this goroutine until end. It returns the number of
// tokens of X.
func (c *Call) begin(s driver.Stream, x Tensor) (int, error) {
	if err := c.ready(s); err != nil {
		return 0, err
	}
	t, err := c.layer.tokensOf("X", x, c.layer.of.Type, c.layer.of.Hidden)
	if err != nil {
		c.end()
	}
	return t, err
}

// ready reserves the call for this goroutine until end.
func (c *Call) ready(s driver.Stream) error {
	switch {
	case c == nil || !c.layer.made():
		return &ArgError{Field: "Call", Got: "not of a layer", Want: "made by Layer.NewCall"}
	case s == nil:
		return &ArgError{Field: "stream", Got: "nil", Want: "a stream of the layer's device"}
	case !c.busy.CompareAndSwap(false, true):
		return &ArgError{Field: "Call", Got: "in use", Want: "used by one goroutine at a time; NewCall makes one for each"}
	}
	c.check.reset()
	return nil
}

// tokensOf returns T of a tensor [T, width]. The T·K pairs must have numbers below 2^31. Type and
// width are checked later, with the other tensors.
func (l *Layer) tokensOf(field string, x Tensor, of Type, width int) (int, error) {
	t := x.Shape.Dims[0]
	if x.Shape.Rank == 2 && 0 <= t && t <= spec.MaxRows/int64(l.of.TopK) {
		return int(t), nil
	}
	got := x.Shape.String()
	if x.IsZero() {
		got = missing
	}
	return 0, &ArgError{Field: field, Got: got, Want: fmt.Sprintf("%v [T %d] with T·K below 2^31", of, width)}
}

// end releases the call.
func (c *Call) end() { c.busy.Store(false) }

// checkRouting checks the arguments that all passes share. written reports whether
// the pass writes scores and ids.
func (c *Call) checkRouting(t int, f *ForwardArgs, written bool) {
	want := &c.laid(c.layer.work(t)).shapes
	c.check.tensor("X", f.X, want.X, false)
	c.check.tensor("Scores", f.Scores, want.Scores, written)
	c.check.tensor("ExpertIDs", f.ExpertIDs, want.ExpertIDs, written)
	if f.Seed != 0 && !c.layer.of.Rounds() {
		c.check.fail("Seed", fmt.Sprint(f.Seed), "0: this layer has no Config.Rounding")
	}
}

func (c *Call) checkRouter(t int, f *ForwardArgs) {
	want := &c.laid(c.layer.work(t)).shapes
	c.check.routerWeights(&f.Weights, want, true)
	c.check.optional("Logits", f.Logits, want.Logits, true)
}

func (c *Call) checkExperts(n work, f *ForwardArgs) {
	want := &c.laid(n).shapes
	c.check.weights(spec.ExpertWeights, &f.Weights, want)
	c.check.tensor("O", f.O, want.O, true)
	c.check.optional("H", f.H, want.H, true)
	c.checkSharedH(f.H, f.SharedH, want.SharedH, true)
	c.checkUnits(f.Units)
	c.checkAdapters(f, want)
	c.check.ifAny("LoraU", f.LoraU, want.LoraU, true)
}

// checked finishes the checks of a forward pass.
func (c *Call) checked(n work, w Buffer) error {
	return c.checkedFor(n.tokens, w, c.laid(n).workspace.bytes, "Workspace")
}

// checkedFor finishes the checks. The parameter need is the least number of bytes of the workspace,
// and size is the name of the field of Sizes that has this number.
func (c *Call) checkedFor(t int, w Buffer, need int64, size string) error {
	if t > 0 && w.Bytes < need {
		c.check.fail("Workspace", fmt.Sprintf("%d bytes", w.Bytes), fmt.Sprintf("at least %d bytes (Layer.Sizes, %s)", need, size))
	}
	if t > 0 {
		c.check.add("Workspace", w.Ptr, need, workspaceAlignment, true)
	}
	return c.check.overlaps()
}

// ranges returns the token ranges of the CTAs of router, count and plan.
func (c *Call) ranges(tokens int) order.TokenRanges { return order.RangesOf(tokens, c.layer.sms) }

// routed returns the ranges in which a pass's routing has counted the experts.
func (c *Call) routed(tokens int) order.TokenRanges {
	if c.layer.smallBatch.choosesByWarps(tokens) {
		return choose.ChosenRanges(tokens, c.layer.sms)
	}
	return c.ranges(tokens)
}

// route queues the router's product, the choice of experts and their scores.
func (q *queue) route(n work, f *ForwardArgs) {
	w, small := q.laid(n).workspace, &q.layer.smallBatch
	q.splitRouter(f.Router, f.Workspace.Ptr, w.indices)
	switch {
	case !choose.InRouter(q.layer.of.Config):
		q.selectExperts(n.tokens, f, w)
	case !n.list && small.choosesAtOnce(n.tokens):
		q.choose(n.tokens, f, w)
	case !n.list && small.choosesByWarps(n.tokens):
		q.chooseRanges(n.tokens, f, w)
	default:
		launch(q, choose.RouterKernel, q.routerArgs(n.tokens, f, w))
	}
}

// splitRouter queues the split of FP32 router weights into 16-bit terms.
func (q *queue) splitRouter(router Tensor, p driver.DevicePtr, w indices) {
	if q.layer.of.RouterF32 {
		launch(q, choose.TermsKernel, choose.TermsArgs{Weights: router.Ptr, Terms: at(p, w.terms)})
	}
}

// routerTerms returns the router weights that products read: the terms of FP32
// weights, or the weights themselves.
func (l *Layer) routerTerms(router Tensor, p driver.DevicePtr, w indices) driver.DevicePtr {
	if !l.of.RouterF32 {
		return router.Ptr
	}
	return at(p, w.terms)
}

func (c *Call) routerArgs(t int, f *ForwardArgs, w workspace) choose.RouterArgs {
	return choose.RouterArgs{
		X: f.X.Ptr, Weights: c.layer.routerTerms(f.Router, f.Workspace.Ptr, w.indices), Bias: f.RouterBias.Ptr, Scores: f.Scores.Ptr, ExpertIDs: f.ExpertIDs.Ptr, Logits: f.Logits.Ptr,
		Counts: at(f.Workspace.Ptr, w.counts), TokenRanges: c.ranges(t),
	}
}

// selectExperts queues the router's product and, in a second kernel, the choice
// of experts from the logits.
func (q *queue) selectExperts(t int, f *ForwardArgs, w workspace) {
	p, logits := f.Workspace.Ptr, f.Logits.Ptr
	if logits == 0 {
		logits = at(p, w.logits)
	}
	if q.layer.smallBatch.decodes(t) {
		q.smallBatchLogits(t, f, w.indices, logits)
	} else {
		args := q.routerArgs(t, f, w)
		args.Logits = logits
		launch(q, choose.LogitsKernel, args)
	}
	launch(q, choose.FromLogitsKernel, choose.FromLogitsArgs{
		Logits: logits, SelectionBias: f.SelectionBias.Ptr, ExpertScale: f.ExpertScale.Ptr, Scores: f.Scores.Ptr, ExpertIDs: f.ExpertIDs.Ptr,
		Counts: at(p, w.counts), TokenRanges: q.ranges(t),
	})
}

// aggregate queues the weighted sum over each token's experts.
func (q *queue) aggregate(n work, f *ForwardArgs, w workspace) {
	p, which := f.Workspace.Ptr, kernel.AggregateKernel
	if q.layer.smallBatch.decodes(n.tokens) {
		which = kernel.EarlyAggregateKernel
	}
	launch(q, which, kernel.AggregateArgs{
		Y: at(p, w.y), O: f.O.Ptr, Inverse: at(p, w.inverse), Scores: f.Scores.Ptr, Tokens: n.tokens,
		SharedRows: at(p, w.shared.y), SharedScores: at(p, w.shared.weights),
	})
}

// plan queues a plan kernel, which orders the rows by expert.
func (q *queue) plan(which *registry.Kernel[order.PlanArgs], ranges order.TokenRanges, experts Tensor, p driver.DevicePtr, w indices) {
	launch(q, which, order.PlanArgs{PlanTensors: w.plan(p, experts), Counts: at(p, w.counts), TokenRanges: ranges})
}
