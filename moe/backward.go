package moe

import (
	"fmt"

	"sonicmoe/driver"
	"sonicmoe/internal/spec"
)

// Backward queues a backward pass on s, after a Forward that saved H. It may be
// captured in a graph, together with the forward pass or alone. What that one
// saved must stay untouched until then: X, H, scores and experts, which is all.
// Errors are *ArgError for a wrong buffer, when nothing was queued, or the
// device's own. Without tokens, weights' gradients that are overwritten become 0,
// and a list's DScores.
//
// The same input gives the same bits on every run and for every tile shape.
func (c *Call) Backward(s driver.Stream, b Backward) error {
	return c.backward(s, &b, true)
}

// BackwardExperts queues the backward pass of ForwardExperts on s: DX is without
// the router's part. A gradient of the router, and losses on its logits, are
// errors; Router, Logits and DLogits are not looked at.
func (c *Call) BackwardExperts(s driver.Stream, b Backward) error {
	return c.backward(s, &b, false)
}

// backward checks and queues. routed says that the scores are this layer's
// softmax over its own logits.
func (c *Call) backward(s driver.Stream, b *Backward, routed bool) error {
	t, err := c.begin(s, b.X)
	if err != nil {
		return err
	}
	defer c.end()
	if err := c.layer.trains(); err != nil {
		return err
	}
	n := c.checkBackward(t, b, routed)
	w := c.layer.backwardWorkspace(n)
	if err := c.checkedFor(t, b.Workspace, w.bytes, "BackwardWorkspace"); err != nil {
		return err
	}
	q := c.queue(s)
	if t == 0 {
		q.zero(b)
	} else {
		q.gradients(n, b, w, routed)
	}
	return q.err
}

func (c *Call) checkBackward(t int, b *Backward, routed bool) work {
	want, grad, n := c.layer.of.Shapes(t), c.layer.of.Gradients(t, c.layer.of.Type), c.layer.work(t)
	if b.List.IsZero() || routed {
		if !b.List.IsZero() {
			n = c.checkRounded(t, b.List, b.Logits, false)
		}
		c.checkRouting(t, &Forward{X: b.X, Scores: b.Scores, ExpertIDs: b.ExpertIDs}, false)
	} else {
		n = c.checkList(t, b.X, b.List)
	}
	if n.list {
		list := c.layer.of.ListShapes(n.rows)
		want.H, grad.DScores = list.H, list.DScores
	}
	c.check.weights(&b.Weights, want)
	c.check.tensor("H", b.H, want.H, false)
	c.checkSharedH(b.H, b.SharedH, want.SharedH, false)
	c.check.tensor("DO", b.DO, grad.DO, false)
	if routed {
		c.checkLogits(t, b)
		c.check.gradient("DRouter", b.DRouter, grad.DRouter)
		c.check.numbers("DRouterBias", b.DRouterBias, grad.DRouterBias)
		c.check.numbers("DExpertScale", b.DExpertScale, grad.DExpertScale)
	} else {
		c.checkNoRouter(b)
	}
	c.check.optional("DX", b.DX, grad.DX, true)
	c.check.optional("DScores", b.DScores, grad.DScores, true)
	c.check.gradient("DW1", b.DW1, grad.DW1)
	c.check.partner("DW3", b.DW3, grad.DW3, "DW1", b.DW1)
	c.check.optionalGradient("DB1", b.DB1, grad.DB1)
	c.check.partner("DB3", b.DB3, grad.DB3, "DB1", b.DB1)
	c.check.optionalGradient("DB2", b.DB2, grad.DB2)
	c.check.gradient("DW2", b.DW2, grad.DW2)
	c.checkSharedGradients(b, grad)
	if b.wanted() == (wanted{}) {
		c.check.fail("Backward", "without a gradient to make", "given at least one of DX, DScores and the weights' gradients")
	}
	return n
}

// checkLogits checks the inputs of a pass through the router.
func (c *Call) checkLogits(t int, b *Backward) {
	want, grad := c.layer.of.Shapes(t), c.layer.of.Gradients(t, c.layer.of.Type)
	c.check.routerWeights(&b.Weights, want, false)
	c.check.optional("DLogits", b.DLogits, grad.DLogits, false)
	for _, f := range []struct {
		name string
		of   float32
	}{{"Balance", b.Balance}, {"ZLoss", b.ZLoss}} {
		if f.of-f.of != 0 {
			c.check.fail(f.name, fmt.Sprint(f.of), "a finite coefficient")
		}
	}
	if b.Sequence < 0 || b.Sequence > 0 && t%b.Sequence != 0 {
		c.check.fail("Sequence", fmt.Sprint(b.Sequence), fmt.Sprintf("0, or a divisor of the %d tokens", t))
	}
	if b.hasLosses() || !b.RouterLosses.IsZero() || c.layer.of.SavesLogits() {
		c.check.tensor("Logits", b.Logits, want.Logits, false)
	} else {
		c.check.optional("Logits", b.Logits, want.Logits, false)
	}
	c.check.optional("RouterLosses", b.RouterLosses, grad.RouterLosses, true)
}

// checkNoRouter refuses what BackwardExperts can't give.
func (c *Call) checkNoRouter(b *Backward) {
	const want = "none: BackwardExperts knows nothing of the router"
	switch {
	case !b.DRouter.IsZero():
		c.check.fail("DRouter", b.DRouter.Shape.String(), want)
	case !b.DRouterBias.IsZero():
		c.check.fail("DRouterBias", b.DRouterBias.Shape.String(), want)
	case !b.DExpertScale.IsZero():
		c.check.fail("DExpertScale", b.DExpertScale.Shape.String(), want)
	case !b.RouterLosses.IsZero():
		c.check.fail("RouterLosses", b.RouterLosses.Shape.String(), want)
	case b.Balance != 0:
		c.check.fail("Balance", fmt.Sprint(b.Balance), want)
	case b.ZLoss != 0:
		c.check.fail("ZLoss", fmt.Sprint(b.ZLoss), want)
	case b.Sequence != 0:
		c.check.fail("Sequence", fmt.Sprint(b.Sequence), want)
	}
}

// optional checks a tensor that may be absent.
func (c *argCheck) optional(field string, t Tensor, want spec.Shape, written bool) {
	if !t.IsZero() {
		c.tensor(field, t, want, written)
	}
}

// gradient checks a gradient of weights, which may be absent, FP32 or as wanted.
func (c *argCheck) gradient(field string, g Gradient, want spec.Shape) {
	own := want.Type
	switch want.Type = g.Shape.Type; {
	case g.IsZero():
		if g.Accumulate {
			c.fail(field, "missing, but to be added to", "a tensor, or Accumulate false")
		}
	case g.Shape != want || want.Type != own && want.Type != F32:
		want.Type = own
		c.fail(field, g.Shape.String(), fmt.Sprintf("%v or the same in %v", want, F32))
	default:
		c.tensor(field, g.Tensor, want, true)
	}
}

// numbers checks a gradient of FP32 numbers, one an expert, which may be absent.
func (c *argCheck) numbers(field string, g Gradient, want spec.Shape) {
	switch {
	case g.IsZero():
		c.gradient(field, g, want)
	case want.IsZero():
		c.fail(field, g.Shape.String(), "none: the layer has no such weight")
	default:
		c.tensor(field, g.Tensor, want, true)
	}
}

// optionalGradient is gradient of what not every layer has.
func (c *argCheck) optionalGradient(field string, g Gradient, want spec.Shape) {
	if want.IsZero() && !g.IsZero() {
		c.fail(field, g.Shape.String(), "none: the layer has no such weight")
		return
	}
	c.gradient(field, g, want)
}

// partner checks a gradient that the kernel of another makes with it, alike.
func (c *argCheck) partner(field string, g Gradient, want spec.Shape, with string, leader Gradient) {
	switch {
	case want.IsZero() && g.IsZero():
	case want.IsZero():
		c.fail(field, g.Shape.String(), "none: the layer has no such weight")
	case leader.IsZero() && g.IsZero():
	case leader.IsZero():
		c.fail(field, g.Shape.String(), "none without "+with+": one kernel makes both")
	case g.Shape.Type != leader.Shape.Type || g.Accumulate != leader.Accumulate || g.IsZero():
		want.Type = leader.Shape.Type
		got := g.Shape.String()
		if g.IsZero() {
			got = missing
		}
		c.fail(field, got+added(g), want.String()+added(leader)+", as "+with)
	default:
		want.Type = g.Shape.Type
		c.tensor(field, g.Tensor, want, true)
	}
}

// added says that a gradient is added to.
func added(g Gradient) string {
	if g.Accumulate {
		return ", added to"
	}
	return ""
}

// zero sets the outputs of a pass without tokens to 0, except gradients that are
// added to.
func (q *queue) zero(b *Backward) {
	outputs := []Tensor{b.RouterLosses, b.DScores} // a list has entries without tokens too
	for _, g := range b.WeightGradients.all() {
		if !g.Accumulate {
			outputs = append(outputs, g.Tensor)
		}
	}
	for _, t := range outputs {
		if !t.IsZero() {
			q.fill(t.Ptr, 0, t.Shape.Bytes()/4)
		}
	}
	if q.err != nil {
		q.err = fmt.Errorf("writing zeros, as there are no tokens: %w", q.err)
	}
}
