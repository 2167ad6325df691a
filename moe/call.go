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

// Call runs a layer. It keeps packed parameters and tensor maps between runs,
// so it belongs to one goroutine at a time; a pass that finds it in use is an
// error.
type Call struct {
	layer *Layer
	// busy says that a pass is being queued.
	busy      atomic.Bool
	check     argCheck
	launchers map[registry.Any]registry.Launcher
	observer  Observer
	// shared is the shared experts', nil without them.
	shared *Call
	// last is what the last forward pass looked like.
	last laid
}

// laid is the workspace and the shapes of a forward pass of so much work.
type laid struct {
	known     bool
	of        work
	workspace workspace
	shapes    spec.Shapes
	h         spec.Shape
}

// laid gives them, kept from the last pass where that was alike, as those of a
// model are: they cost the host as much as a launch.
func (c *Call) laid(n work) *laid {
	if !c.last.known || c.last.of != n {
		cfg := c.layer.of.Config
		c.last = laid{known: true, of: n, workspace: c.layer.workspace(n), shapes: cfg.Shapes(n.tokens), h: cfg.ListShapes(n.rows).H}
	}
	return &c.last
}

// Observer is told of a kernel, by its name in [Layer.Kernels], right before
// its launch on s. It may record an event there; an error of its own ends the
// pass and is returned by it as it is.
type Observer func(kernel string, s driver.Stream) error

// Observe calls f before each launch of later passes, nil nobody, which is the
// default and costs nothing. It is for measuring kernels in their places: an
// event between two kernels keeps the later one from starting before the
// earlier has ended, so that the times of all add up to a little more than an
// unobserved pass.
func (c *Call) Observe(f Observer) {
	if c != nil {
		c.observer = f
		c.shared.Observe(f)
	}
}

// NewCall makes a call.
func (l *Layer) NewCall() *Call {
	c := &Call{layer: l, launchers: map[registry.Any]registry.Launcher{}}
	if l == nil {
		return c // its passes are errors
	}
	for _, k := range l.kernels {
		c.launchers[k.Any] = k.built.NewLauncher(k.fn, l.dev)
	}
	if l.shared != nil {
		c.shared = l.shared.NewCall()
	}
	return c
}

// Forward queues a whole pass on s.
func (c *Call) Forward(s driver.Stream, f Forward) error {
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
	few := &c.layer.few
	switch {
	case !n.list && few.isLone(t):
		return c.loneToken(s, n, &f)
	case !n.list && few.isSmall(t):
		return c.smallPass(s, n, &f)
	}
	if err := c.route(s, n, &f); err != nil {
		return err
	}
	if n.list {
		return c.roundedExperts(s, n, &f)
	}
	if !few.choosesAtOnce(t) {
		if err := c.plan(s, order.PlanKernel, c.routed(t), f.ExpertIDs, f.Workspace.Ptr, c.laid(n).workspace.indices); err != nil {
			return err
		}
	}
	return c.experts(s, n, &f)
}

// Route queues router product, top-K and softmax on s: the part of Forward that
// writes scores, ids and logits. W1, W2, O and H are not looked at.
func (c *Call) Route(s driver.Stream, f Forward) error {
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
	return c.route(s, c.layer.work(t), &f)
}

// ForwardExperts queues the experts and their weighted sum on s, with scores and
// ids from anywhere. Router and Logits are not looked at.
func (c *Call) ForwardExperts(s driver.Stream, f Forward) error {
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
	if n.list {
		return c.listExperts(s, n, &f)
	}
	w := c.laid(n).workspace
	if err := c.count(s, t, f.ExpertIDs, f.Workspace.Ptr, w.indices); err != nil {
		return err
	}
	if err := c.plan(s, order.PlanKernel, c.ranges(t), f.ExpertIDs, f.Workspace.Ptr, w.indices); err != nil {
		return err
	}
	return c.experts(s, n, &f)
}

// count queues the counting of each range's experts.
func (c *Call) count(s driver.Stream, t int, experts Tensor, p driver.DevicePtr, w indices) error {
	return launch(c, s, order.CountKernel, order.CountArgs{ExpertIDs: experts.Ptr, Counts: at(p, w.counts), TokenRanges: c.ranges(t)})
}

// begin starts a pass: the call is this goroutine's until end, T is X's.
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

// ready makes the call this goroutine's until end.
func (c *Call) ready(s driver.Stream) error {
	switch {
	case c == nil || !c.layer.made():
		return &ArgError{Field: "Call", Got: "none of a layer", Want: "made by Layer.NewCall"}
	case s == nil:
		return &ArgError{Field: "stream", Got: "nil", Want: "a stream of the layer's device"}
	case !c.busy.CompareAndSwap(false, true):
		return &ArgError{Field: "Call", Got: "in use", Want: "one goroutine's at a time; NewCall makes one for each"}
	}
	c.check.reset()
	return nil
}

// tokensOf is the T of a tensor [T, width], whose pairs the layer's kernels can
// number. The rest of it is checked with the others.
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

// end lets others use the call.
func (c *Call) end() { c.busy.Store(false) }

// checkRouting checks what all passes share; written says whether scores and
// ids come out or go in.
func (c *Call) checkRouting(t int, f *Forward, written bool) {
	want := c.laid(c.layer.work(t)).shapes
	c.check.tensor("X", f.X, want.X, false)
	c.check.tensor("Scores", f.Scores, want.Scores, written)
	c.check.tensor("ExpertIDs", f.ExpertIDs, want.ExpertIDs, written)
}

func (c *Call) checkRouter(t int, f *Forward) {
	want := c.laid(c.layer.work(t)).shapes
	c.check.routerWeights(&f.Weights, want, true)
	c.check.optional("Logits", f.Logits, want.Logits, true)
}

func (c *Call) checkExperts(n work, f *Forward) {
	laid := c.laid(n)
	want := laid.shapes
	c.check.weights(&f.Weights, want)
	c.check.tensor("O", f.O, want.O, true)
	c.check.optional("H", f.H, laid.h, true)
	c.checkSharedH(f.H, f.SharedH, want.SharedH, true)
}

// checked ends the checks.
func (c *Call) checked(n work, w Buffer) error {
	return c.checkedFor(n.tokens, w, c.laid(n).workspace.bytes, "Workspace")
}

// checkedFor ends the checks; the workspace must have need bytes, which is that
// field of Sizes.
func (c *Call) checkedFor(t int, w Buffer, need int64, size string) error {
	if t > 0 && w.Bytes < need {
		c.check.fail("Workspace", fmt.Sprintf("%d bytes", w.Bytes), fmt.Sprintf("at least %d bytes (Layer.Sizes, %s)", need, size))
	}
	if t > 0 {
		c.check.add("Workspace", w.Ptr, need, workspaceAlignment, true)
	}
	return c.check.overlaps()
}

// ranges are the tokens of each CTA of router, count and plan.
func (c *Call) ranges(tokens int) order.TokenRanges { return order.RangesOf(tokens, c.layer.sms) }

// routed are the ranges whose experts the routing of a pass has counted.
func (c *Call) routed(tokens int) order.TokenRanges {
	if c.layer.few.choosesByWarps(tokens) {
		return choose.ChosenRanges(tokens, c.layer.sms)
	}
	return c.ranges(tokens)
}

func (c *Call) route(s driver.Stream, n work, f *Forward) error {
	w := c.laid(n).workspace
	if err := c.splitRouter(s, f.Router, f.Workspace.Ptr, w.indices); err != nil {
		return err
	}
	switch {
	case !choose.InRouter(c.layer.of.Config):
		return c.selectExperts(s, n.tokens, f, w)
	case !n.list && c.layer.few.choosesAtOnce(n.tokens):
		return c.choose(s, n.tokens, f, w)
	case !n.list && c.layer.few.choosesByWarps(n.tokens):
		return c.chooseRanges(s, n.tokens, f, w)
	}
	return launch(c, s, choose.RouterKernel, c.routerArgs(n.tokens, f, w))
}

// splitRouter queues the router's terms, where its weights are FP32.
func (c *Call) splitRouter(s driver.Stream, router Tensor, p driver.DevicePtr, w indices) error {
	if !c.layer.of.RouterF32 {
		return nil
	}
	return launch(c, s, choose.TermsKernel, choose.TermsArgs{Weights: router.Ptr, Terms: at(p, w.terms)})
}

// routerTerms are the router's weights for products: their terms, or as they are.
func (l *Layer) routerTerms(router Tensor, p driver.DevicePtr, w indices) driver.DevicePtr {
	if !l.of.RouterF32 {
		return router.Ptr
	}
	return at(p, w.terms)
}

func (c *Call) routerArgs(t int, f *Forward, w workspace) choose.RouterArgs {
	return choose.RouterArgs{
		X: f.X.Ptr, Weights: c.layer.routerTerms(f.Router, f.Workspace.Ptr, w.indices), Bias: f.RouterBias.Ptr, Scores: f.Scores.Ptr, ExpertIDs: f.ExpertIDs.Ptr, Logits: f.Logits.Ptr,
		Counts: at(f.Workspace.Ptr, w.counts), TokenRanges: c.ranges(t),
	}
}

// selectExperts queues the router product, of few tokens or many, and the choice
// from its logits.
func (c *Call) selectExperts(s driver.Stream, t int, f *Forward, w workspace) error {
	p, logits := f.Workspace.Ptr, f.Logits.Ptr
	if logits == 0 {
		logits = at(p, w.logits)
	}
	var err error
	if c.layer.few.decodes(t) {
		err = c.fewLogits(s, t, f, w.indices, logits)
	} else {
		args := c.routerArgs(t, f, w)
		args.Logits = logits
		err = launch(c, s, choose.LogitsKernel, args)
	}
	if err != nil {
		return err
	}
	return launch(c, s, choose.FromLogitsKernel, choose.FromLogitsArgs{
		Logits: logits, SelectionBias: f.SelectionBias.Ptr, ExpertScale: f.ExpertScale.Ptr, Scores: f.Scores.Ptr, ExpertIDs: f.ExpertIDs.Ptr,
		Counts: at(p, w.counts), TokenRanges: c.ranges(t),
	})
}

// experts queues everything after the plan.
func (c *Call) experts(s driver.Stream, n work, f *Forward) error {
	w := c.laid(n).workspace
	if err := c.sharedProducts(s, n.tokens, f, w.shared); err != nil {
		return err
	}
	if err := c.products(s, n, f, w.pieces); err != nil {
		return err
	}
	return c.aggregate(s, n, f, w)
}

// aggregate queues the sum over a token's experts.
func (c *Call) aggregate(s driver.Stream, n work, f *Forward, w workspace) error {
	p, which := f.Workspace.Ptr, kernel.AggregateKernel
	if c.layer.few.decodes(n.tokens) {
		which = kernel.EarlyAggregateKernel
	}
	return launch(c, s, which, kernel.AggregateArgs{
		Y: at(p, w.y), O: f.O.Ptr, Inverse: at(p, w.inverse), Scores: f.Scores.Ptr, Tokens: n.tokens,
		SharedRows: at(p, w.shared.y), SharedScores: at(p, w.shared.weights),
	})
}

// plan queues one of the two plan kernels.
func (c *Call) plan(s driver.Stream, which *registry.Kernel[order.PlanArgs], ranges order.TokenRanges, experts Tensor, p driver.DevicePtr, w indices) error {
	return launch(c, s, which, order.PlanArgs{PlanTensors: w.plan(p, experts), Counts: at(p, w.counts), TokenRanges: ranges})
}
