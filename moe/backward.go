package moe

import (
	"fmt"

	"sonicmoe/driver"
	"sonicmoe/moe/spec"
)

// Backward are the buffers of a backward pass: the gradients of a loss, given
// that of the layer's output.
//
// Every input but DLogits must be there, whatever is wanted. Of the gradients
// those that are zero Tensors are not wanted, and the work that only they need
// is left out: a frozen weight costs nothing.
type Backward struct {
	// X, Router, W1 and W2 are what Forward was given; H, Scores and Experts
	// what it gave. A token's experts differ, as Forward's do.
	X, Router, W1, W2  Tensor
	H, Scores, Experts Tensor
	// DO [T, d] bf16 is the gradient of O.
	DO Tensor
	// DLogits [T, E] f32, unless zero, is added to the gradients of the logits:
	// those of losses on the logits themselves, such as load balancing.
	DLogits Tensor
	// DX [T, d] bf16 is written, with the part that comes through the router.
	DX Tensor
	// DScores [T, K] f32 is written: the gradient of the scores as if they
	// were inputs, 0 where the expert's id is outside [0, E).
	DScores Tensor
	// WeightGradients are those of W1 and W2.
	WeightGradients
	// DRouter [E, d], bf16 or f32, is the gradient of Router.
	DRouter Tensor
	// AccumulateDRouter adds to DRouter instead of overwriting it.
	AccumulateDRouter bool
	// Workspace has Sizes.BackwardWorkspace bytes. It need not be the one
	// of the forward pass, and nothing of that one is needed.
	Workspace Buffer
}

// ExpertsBackward are the buffers of the backward pass of Experts, for callers
// who route themselves. Inputs and gradients are those of Backward; DX leaves
// the router out.
type ExpertsBackward struct {
	X, W1, W2          Tensor
	H, Scores, Experts Tensor
	DO                 Tensor
	DX, DScores        Tensor
	WeightGradients
	Workspace Buffer
}

// WeightGradients are the gradients of the experts' weights, laid out as the
// weights are, each bf16 or f32.
//
// Sums are FP32 and rounded once. An expert without tokens gets zeros, or when
// accumulating stays as it was.
type WeightGradients struct {
	DW1, DW2 Tensor // [E, 2n, d], [E, d, n]
	// AccumulateDW1 and AccumulateDW2 add to what is there instead of
	// overwriting it.
	AccumulateDW1, AccumulateDW2 bool
}

// Backward queues a backward pass on s, after a Forward that saved H. It may be
// captured in a graph, together with the forward pass or alone. What that one
// saved must stay untouched until then: X, H, scores and experts, which is all.
// Errors are *ArgError for a wrong buffer, when nothing was queued, or the
// device's own. Without tokens, weights' gradients that are overwritten become 0.
//
// The same input gives the same bits on every run and for every tile shape.
func (c *Call) Backward(s driver.Stream, b Backward) error {
	return c.backward(s, &b, true)
}

// ExpertsBackward queues the backward pass of Experts on s.
func (c *Call) ExpertsBackward(s driver.Stream, e ExpertsBackward) error {
	return c.backward(s, &Backward{
		X: e.X, W1: e.W1, W2: e.W2, H: e.H, Scores: e.Scores, Experts: e.Experts, DO: e.DO,
		DX: e.DX, DScores: e.DScores, WeightGradients: e.WeightGradients, Workspace: e.Workspace,
	}, false)
}

// backward checks and queues. routed says that the scores are this layer's
// softmax over its own logits.
func (c *Call) backward(s driver.Stream, b *Backward, routed bool) error {
	if !c.layer.hasBackward() {
		return &ArgError{Field: "Layer", Got: "made with WithoutBackward", Want: "made without that option"}
	}
	t, err := c.tokens(s, b.X)
	if err != nil {
		return err
	}
	c.checkBackward(t, b, routed)
	w := c.layer.backwardWorkspace(t)
	if err := c.checkedFor(t, b.Workspace, w.bytes, "BackwardWorkspace"); err != nil {
		return err
	}
	if t == 0 {
		return c.noTokens(s, b)
	}
	return c.gradients(s, t, b, w, routed)
}

func (c *Call) checkBackward(t int, b *Backward, routed bool) {
	want, grad := c.layer.config.Shapes(t), c.layer.config.Gradients(t, BF16)
	c.checkInput(t, b.X, b.Scores, b.Experts, false)
	c.check.tensor("W1", b.W1, want.W1, false)
	c.check.tensor("W2", b.W2, want.W2, false)
	c.check.tensor("H", b.H, want.H, false)
	c.check.tensor("DO", b.DO, grad.DO, false)
	if routed {
		c.checkRouter(t, b.Router)
		c.check.optional("DLogits", b.DLogits, grad.DLogits, false)
		c.check.weights("DRouter", b.DRouter, grad.DRouter)
	}
	c.check.optional("DX", b.DX, grad.DX, true)
	c.check.optional("DScores", b.DScores, grad.DScores, true)
	c.check.weights("DW1", b.DW1, grad.DW1)
	c.check.weights("DW2", b.DW2, grad.DW2)
}

// optional checks a tensor that may be absent.
func (c *argCheck) optional(field string, t Tensor, want spec.Shape, written bool) {
	if !t.IsZero() {
		c.tensor(field, t, want, written)
	}
}

// weights checks a gradient of weights, which may be absent, bf16 or FP32.
func (c *argCheck) weights(field string, t Tensor, want spec.Shape) {
	switch want.Type = t.Shape.Type; {
	case t.IsZero():
	case t.Shape != want || want.Type != BF16 && want.Type != F32:
		want.Type = BF16
		c.fail(field, t.Shape.String(), fmt.Sprintf("%v or the same in %v", want, F32))
	default:
		c.tensor(field, t, want, true)
	}
}

// noTokens zeroes what is overwritten.
func (c *Call) noTokens(s driver.Stream, b *Backward) error {
	for _, w := range []struct {
		grad       Tensor
		accumulate bool
	}{{b.DW1, b.AccumulateDW1}, {b.DW2, b.AccumulateDW2}, {b.DRouter, b.AccumulateDRouter}} {
		if w.grad.IsZero() || w.accumulate {
			continue
		}
		if err := s.Fill32(w.grad.Ptr, 0, w.grad.Shape.Bytes()/4); err != nil {
			return fmt.Errorf("zeroing a weight's gradient: %w", err)
		}
	}
	return nil
}
