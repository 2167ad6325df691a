package moe

import (
	"fmt"

	"sonicmoe/driver"
	"sonicmoe/moe/kernel"
)

// Call runs a layer. It keeps packed parameters and tensor maps between runs,
// so it belongs to one goroutine at a time.
type Call struct {
	layer    *Layer
	check    argCheck
	bindings [kernelCount]binding
	observer Observer
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
func (c *Call) Observe(f Observer) { c.observer = f }

// NewCall makes a call.
func (l *Layer) NewCall() *Call {
	c := &Call{layer: l}
	for i := range c.bindings {
		c.bindings[i] = newBinding(l.dev, &l.kernels[i], kernelNames[i], &c.observer)
	}
	return c
}

// Forward are the buffers of a whole pass.
type Forward struct {
	X, Router, W1, W2 Tensor
	// O, Scores and Experts are written. H is written too unless it is the
	// zero Tensor: a training pass keeps it, an inference pass does without.
	O, H, Scores, Experts Tensor
	Workspace             Buffer
}

// Route are the buffers of the router alone.
type Route struct {
	X, Router Tensor
	// Scores and Experts are written.
	Scores, Experts Tensor
	Workspace       Buffer
}

// Experts are the buffers of the experts alone, with scores and ids from
// anywhere. An id outside [0, E) is skipped and adds nothing to O; a token
// may name an expert more than once.
type Experts struct {
	X, W1, W2       Tensor
	Scores, Experts Tensor
	// O and, unless zero, H are written. Rows of H are by expert, then token,
	// then slot.
	O, H      Tensor
	Workspace Buffer
}

// Forward queues a whole pass on s.
func (c *Call) Forward(s driver.Stream, f Forward) error {
	t, err := c.tokens(s, f.X)
	if err != nil {
		return err
	}
	c.checkInput(t, f.X, f.Scores, f.Experts, true)
	c.checkRouter(t, f.Router)
	e := Experts{X: f.X, W1: f.W1, W2: f.W2, Scores: f.Scores, Experts: f.Experts, O: f.O, H: f.H, Workspace: f.Workspace}
	c.checkExperts(t, e)
	if err := c.checked(t, f.Workspace); err != nil || t == 0 {
		return err
	}
	if err := c.route(s, t, Route{X: f.X, Router: f.Router, Scores: f.Scores, Experts: f.Experts, Workspace: f.Workspace}); err != nil {
		return err
	}
	return c.experts(s, t, e)
}

// Route queues router product, top-K and softmax on s.
func (c *Call) Route(s driver.Stream, r Route) error {
	t, err := c.tokens(s, r.X)
	if err != nil {
		return err
	}
	c.checkInput(t, r.X, r.Scores, r.Experts, true)
	c.checkRouter(t, r.Router)
	if err := c.checked(t, r.Workspace); err != nil || t == 0 {
		return err
	}
	return c.route(s, t, r)
}

// Experts queues the experts and their weighted sum on s.
func (c *Call) Experts(s driver.Stream, e Experts) error {
	t, err := c.tokens(s, e.X)
	if err != nil {
		return err
	}
	c.checkInput(t, e.X, e.Scores, e.Experts, false)
	c.checkExperts(t, e)
	if err := c.checked(t, e.Workspace); err != nil || t == 0 {
		return err
	}
	w := c.layer.workspace(t)
	b := &c.bindings[count]
	per := c.perCTA(t)
	b.ptr("experts", e.Experts.Ptr)
	b.ptr("counts", w.at(e.Workspace.Ptr, w.counts))
	b.u32("tokens", t)
	b.u32("perCTA", per)
	if err := b.run(s, c.ranges(t)); err != nil {
		return err
	}
	return c.experts(s, t, e)
}

// maxRows bounds T·K: row numbers are signed 32-bit integers on the device.
const maxRows = 1<<31 - 1

// tokens is T, from X's shape, and starts the checks.
func (c *Call) tokens(s driver.Stream, x Tensor) (int, error) {
	c.check.reset()
	if s == nil {
		return 0, &ArgError{Field: "stream", Got: "nil", Want: "a stream of the layer's device"}
	}
	cfg, t := c.layer.config, x.Shape.Dims[0]
	if x.Shape.Rank != 2 || t < 0 || t > maxRows/int64(cfg.TopK) {
		return 0, &ArgError{Field: "X", Got: x.Shape.String(), Want: fmt.Sprintf("bf16 [T %d] with T·K below 2^31", cfg.Hidden)}
	}
	return int(t), nil
}

// checkInput checks what all passes share; written says whether scores and
// ids come out or go in.
func (c *Call) checkInput(t int, x, scores, experts Tensor, written bool) {
	want := c.layer.config.Shapes(t)
	c.check.tensor("X", x, want.X, false)
	c.check.tensor("Scores", scores, want.Scores, written)
	c.check.tensor("Experts", experts, want.Experts, written)
}

func (c *Call) checkRouter(t int, router Tensor) {
	c.check.tensor("Router", router, c.layer.config.Shapes(t).Router, false)
}

func (c *Call) checkExperts(t int, e Experts) {
	want := c.layer.config.Shapes(t)
	c.check.tensor("W1", e.W1, want.W1, false)
	c.check.tensor("W2", e.W2, want.W2, false)
	c.check.tensor("O", e.O, want.O, true)
	if !e.H.IsZero() {
		c.check.tensor("H", e.H, want.H, true)
	}
}

// checked ends the checks.
func (c *Call) checked(t int, w Buffer) error {
	need := c.layer.workspace(t).bytes
	if t > 0 && w.Bytes < need {
		c.check.fail("Workspace", fmt.Sprintf("%d bytes", w.Bytes), fmt.Sprintf("at least %d bytes (Layer.Sizes)", need))
	}
	if t > 0 {
		c.check.add("Workspace", w.Ptr, need, workspaceAlignment, true)
	}
	return c.check.overlaps()
}

// perCTA is how many tokens each CTA of router, count and plan takes, ranges
// how many CTAs that makes.
func (c *Call) perCTA(tokens int) int {
	each := (tokens + c.layer.sms - 1) / c.layer.sms
	return (each + kernel.RangeStep - 1) / kernel.RangeStep * kernel.RangeStep
}

func (c *Call) ranges(tokens int) int {
	per := c.perCTA(tokens)
	return (tokens + per - 1) / per
}

func (c *Call) route(s driver.Stream, t int, r Route) error {
	shape := c.layer.router()
	w := c.layer.workspace(t)
	b := &c.bindings[router]
	if err := b.tensorMap("x", shape.XMap(r.X.Ptr, t)); err != nil {
		return err
	}
	if err := b.tensorMap("w", shape.WMap(r.Router.Ptr)); err != nil {
		return err
	}
	b.ptr("scores", r.Scores.Ptr)
	b.ptr("experts", r.Experts.Ptr)
	b.ptr("counts", w.at(r.Workspace.Ptr, w.counts))
	b.u32("tokens", t)
	b.u32("perCTA", c.perCTA(t))
	return b.run(s, c.ranges(t))
}

// experts queues everything after the counts.
func (c *Call) experts(s driver.Stream, t int, e Experts) error {
	w := c.layer.workspace(t)
	if err := c.plan(s, t, e, w); err != nil {
		return err
	}
	if err := c.up(s, t, e, w); err != nil {
		return err
	}
	if err := c.down(s, t, e, w); err != nil {
		return err
	}
	b := &c.bindings[aggregate]
	b.ptr("y", w.at(e.Workspace.Ptr, w.y))
	b.ptr("o", e.O.Ptr)
	b.ptr("inverse", w.at(e.Workspace.Ptr, w.inverse))
	b.ptr("scores", e.Scores.Ptr)
	b.u32("tokens", t)
	cfg := c.layer.config
	return b.run(s, kernel.Aggregate{Hidden: cfg.Hidden, TopK: cfg.TopK}.CTAs(t))
}

func (c *Call) plan(s driver.Stream, t int, e Experts, w workspace) error {
	b := &c.bindings[plan]
	p := e.Workspace.Ptr
	b.ptr("experts", e.Experts.Ptr)
	b.ptr("counts", w.at(p, w.counts))
	b.ptr("gather", w.at(p, w.gather))
	b.ptr("inverse", w.at(p, w.inverse))
	b.ptr("offsets", w.at(p, w.offsets))
	b.ptr("table", w.at(p, w.table))
	b.ptr("blocks", w.at(p, w.blocks))
	b.ptr("tickets", w.at(p, w.tickets))
	b.u32("tokens", t)
	b.u32("perCTA", c.perCTA(t))
	return b.run(s, c.ranges(t))
}

func (c *Call) up(s driver.Stream, t int, e Experts, w workspace) error {
	cfg := c.layer.config
	rows := t * cfg.TopK
	which, shape := upInfer, c.layer.up(false)
	if !e.H.IsZero() {
		which, shape = upTrain, c.layer.up(true)
	}
	b := &c.bindings[which]
	p := e.Workspace.Ptr
	b.ptr("table", w.at(p, w.table))
	b.ptr("blocks", w.at(p, w.blocks))
	b.ptr("tickets", w.at(p, w.tickets))
	b.ptr("x", e.X.Ptr)
	b.ptr("gather", w.at(p, w.gather))
	if err := b.tensorMap("w1", shape.W1Map(e.W1.Ptr, cfg.Experts, cfg.GateUp)); err != nil {
		return err
	}
	if err := b.tensorMap("a", shape.AMap(w.at(p, w.a), rows)); err != nil {
		return err
	}
	if which == upTrain {
		if err := b.tensorMap("h", shape.HMap(e.H.Ptr, rows)); err != nil {
			return err
		}
	}
	return b.persist(s, c.layer.sms)
}

func (c *Call) down(s driver.Stream, t int, e Experts, w workspace) error {
	cfg := c.layer.config
	rows := t * cfg.TopK
	shape := c.layer.down()
	b := &c.bindings[down]
	p := e.Workspace.Ptr
	b.ptr("table", w.at(p, w.table))
	b.ptr("blocks", w.at(p, w.blocks))
	b.ptr("tickets", w.at(p, w.tickets+ticketBytes))
	if err := b.tensorMap("a", shape.AMap(w.at(p, w.a), rows)); err != nil {
		return err
	}
	if err := b.tensorMap("w2", shape.W2Map(e.W2.Ptr, cfg.Experts)); err != nil {
		return err
	}
	if err := b.tensorMap("y", shape.YMap(w.at(p, w.y), rows)); err != nil {
		return err
	}
	return b.persist(s, c.layer.sms)
}
