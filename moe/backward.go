package moe

import (
	"fmt"
	"slices"

	"sonicmoe/driver"
	"sonicmoe/internal/num"
	"sonicmoe/internal/spec"
)

// Backward queues a backward pass on s, after a Forward that saved H. A graph may
// capture it, alone or with the forward pass. X, H, scores and experts of the
// forward pass must not change in between. If a buffer is wrong, the error is an
// *ArgError and nothing was queued; other errors are the device's. Without tokens,
// gradients of weights become 0 unless they accumulate, and so does DScores of a
// list.
//
// The same input gives the same bits on every run and for every tile shape.
func (c *Call) Backward(s driver.Stream, b BackwardArgs) error {
	return c.backward(s, &b, true)
}

// BackwardExperts queues the backward pass of ForwardExperts on s. DX then has no part from the
// router. A gradient of a router weight and a loss on the logits are errors. Router, Logits and
// DLogits are ignored.
func (c *Call) BackwardExperts(s driver.Stream, b BackwardArgs) error {
	return c.backward(s, &b, false)
}

// backward checks the arguments and queues the pass. routed reports whether the layer's own logits
// determine the scores.
func (c *Call) backward(s driver.Stream, b *BackwardArgs, routed bool) error {
	t, err := c.begin(s, b.X)
	if err != nil {
		return err
	}
	defer c.end()
	if err := c.layer.trains(); err != nil {
		return err
	}
	n := c.checkBackward(t, b, routed)
	w := c.laidBackward(n).workspace
	if err := c.checkedFor(t, b.Workspace, w.bytes, "BackwardWorkspace"); err != nil {
		return err
	}
	if d, ok := c.layer.dev.(interface{ Checking() bool }); ok && d.Checking() && b.List.IsZero() {
		if err := c.checkExpertIDs(s, t, b.ExpertIDs); err != nil {
			return err
		}
	}
	q := c.queue(s)
	if t == 0 {
		q.zero(b)
	} else {
		q.gradients(n, b, w, routed)
	}
	return q.err
}

// isCapturing reports whether work of a stream is recorded for a graph, so that nothing can be read
// from the device.
func isCapturing(s driver.Stream) (bool, error) {
	of, ok := s.(interface{ Capturing() (bool, error) })
	if !ok {
		return false, nil
	}
	return of.Capturing()
}

// checkExpertIDs returns an error if a token has an expert twice. It reads the ids from the device.
func (c *Call) checkExpertIDs(s driver.Stream, tokens int, ids Tensor) error {
	if capturing, err := isCapturing(s); err != nil || capturing {
		return err
	}
	k, e := c.layer.of.TopK, c.layer.of.NumExperts
	read := make([]int32, tokens*k)
	if err := s.CopyToHost(num.Bytes(read), ids.Ptr); err != nil {
		return err
	}
	for i, id := range read {
		if id >= 0 && int(id) < e && slices.Contains(read[i/k*k:i], id) {
			return argErrorf("ExpertIDs", fmt.Sprintf("expert %d twice of token %d", id, i/k), "different experts of a token")
		}
	}
	return nil
}

func (c *Call) checkBackward(t int, b *BackwardArgs, routed bool) work {
	n := c.layer.work(t)
	if b.List.IsZero() || routed {
		if !b.List.IsZero() {
			n = c.checkRounded(t, b.List, b.Logits, false)
		}
		c.checkRouting(t, &ForwardArgs{X: b.X, Routing: b.Routing}, false)
	} else {
		n = c.checkList(t, b.X, b.List)
	}
	want, grad := &c.laid(n).shapes, &c.laidBackward(n).gradients
	c.check.weights(spec.ExpertWeights, &b.Weights, want)
	c.check.tensor("H", b.H, want.H, false)
	c.checkSharedH(b.H, b.SharedH, want.SharedH, false)
	c.check.ifAny("LoraU", b.LoraU, want.LoraU, false)
	c.check.tensor("DO", b.DO, grad.DO, false)
	if routed {
		c.checkLogits(t, b, want, grad)
		c.check.gradients(spec.RouterWeights, &b.WeightGradients, grad)
	} else {
		c.checkNoRouter(b)
	}
	c.check.optional("DX", b.DX, grad.DX, true)
	c.check.optional("DScores", b.DScores, grad.DScores, true)
	c.checkNoPacked(&b.WeightGradients)
	c.checkFrozen(&b.WeightGradients)
	c.check.gradients(spec.ExpertWeights, &b.WeightGradients, grad)
	c.checkModes(b)
	if b.wanted() == (wanted{}) {
		c.check.fail("Backward", "without a gradient to make", "given at least one of DX, DScores and the weights' gradients")
	}
	return n
}

// checkLogits checks the inputs of a pass through the router.
func (c *Call) checkLogits(t int, b *BackwardArgs, want *Shapes, grad *spec.GradientShapes) {
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

// checkNoRouter refuses gradients and losses that BackwardExperts cannot compute.
func (c *Call) checkNoRouter(b *BackwardArgs) {
	const want = "none: BackwardExperts knows nothing of the router"
	for _, id := range spec.RouterWeights {
		if g := b.Gradient(id); g != nil && !g.IsZero() {
			c.check.fail(spec.Row(id).GradientID.String(), g.Shape.String(), want)
		}
	}
	switch {
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

// ifAny does the same as optional for a tensor that some layers do not have.
func (c *argCheck) ifAny(field string, t Tensor, want spec.Shape, written bool) {
	if !t.IsZero() && want.IsZero() {
		c.fail(field, t.Shape.String(), "none: the layer has no such tensor")
		return
	}
	c.optional(field, t, want, written)
}

// gradients checks the gradients of weights, by the ids of the weights.
func (c *argCheck) gradients(ids []TensorID, g *WeightGradients, want *spec.GradientShapes) {
	for _, id := range ids {
		got := g.Gradient(id)
		if got == nil {
			continue
		}
		d := spec.Row(id).GradientID
		row, shape := spec.Row(d), want.Of(d)
		switch {
		case shape.IsZero() && !got.IsZero():
			c.fail(row.Name, got.Shape.String(), noWeight)
		case row.With != "":
			c.partner(row, got, shape, g.Gradient(spec.Row(row.WithID).Of))
		default:
			c.gradient(row.Name, got, shape)
		}
	}
}

// gradient checks a gradient, which may be absent, FP32, or of the type of want.
func (c *argCheck) gradient(field string, g *Gradient, want spec.Shape) {
	own := want.Type
	switch want.Type = g.Shape.Type; {
	case g.IsZero():
		if g.Accumulate {
			c.fail(field, "missing, but to be added to", "a tensor, or Accumulate false")
		}
	case g.Shape != want || want.Type != own && want.Type != F32:
		want.Type = own
		text := want.String()
		if own != F32 {
			text += " or the same in f32"
		}
		c.fail(field, g.Shape.String(), text)
	default:
		c.tensor(field, g.Tensor, want, true)
	}
}

// partner checks a gradient that one kernel writes together with another gradient, leader. A pass
// writes both or neither, in the same type and mode.
func (c *argCheck) partner(row *spec.TensorRow, g *Gradient, want spec.Shape, leader *Gradient) {
	switch {
	case leader.IsZero() && g.IsZero():
	case want.IsZero():
	case leader.IsZero():
		c.fail(row.Name, g.Shape.String(), "none without "+row.With+": one kernel makes both")
	case g.Shape.Type != leader.Shape.Type || g.Accumulate != leader.Accumulate || g.IsZero():
		want.Type = leader.Shape.Type
		got := g.Shape.String()
		if g.IsZero() {
			got = missing
		}
		c.fail(row.Name, got+added(g), want.String()+added(leader)+", as "+row.With)
	default:
		want.Type = g.Shape.Type
		c.tensor(row.Name, g.Tensor, want, true)
	}
}

// added returns the words for errors about gradients that accumulate.
func added(g *Gradient) string {
	if g.Accumulate {
		return ", added to"
	}
	return ""
}

// zero sets the outputs of a pass without tokens to 0. It skips gradients that accumulate.
func (q *queue) zero(b *BackwardArgs) {
	outputs := []Tensor{b.RouterLosses, b.DScores} // without tokens, a list can still have entries
	for _, id := range spec.Weights {
		if g := b.Gradient(id); g != nil && !g.Accumulate {
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
