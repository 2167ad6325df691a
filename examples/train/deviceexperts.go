package main

import (
	"context"
	"errors"
	"fmt"

	"sonicmoe/internal/num"
	"sonicmoe/internal/reference"
	"sonicmoe/moe"
)

// deviceExperts is the layer of one block on a device. It keeps x, H, scores and expert ids
// from forward to backward.
type deviceExperts struct {
	*device
	tokens                        int // number of tokens of the latest pass
	call                          *moe.Call
	x, router, h, scores, experts moe.Tensor
	weights                       map[moe.TensorID]deviceWeight
	list, chosen                  moe.RoutingList // used with rounding: list is the whole buffer, and chosen is the list of the latest pass
	listH, logits, kept           moe.Tensor      // kept is the H of the latest pass
	// added reports whether a backward pass has added to the gradients since the latest step.
	added bool
}

// newExperts creates the layer of a block. Its type is makeExperts.
func (d *device) newExperts(w reference.Weights) (experts, error) {
	e := &deviceExperts{device: d, call: d.layer.NewCall(), weights: map[moe.TensorID]deviceWeight{}}
	c, m := d.layer.Config(), d.memory
	s := c.Shapes(d.tokens)
	e.x, e.router, e.h, e.scores, e.experts = m.Tensor(s.X), m.Tensor(s.Router), m.Tensor(s.H), m.Tensor(s.Scores), m.Tensor(s.ExpertIDs)
	if c.Rounds() {
		rows := d.layer.RoundedRows(d.tokens)
		e.list, e.listH, e.logits = m.RoutingList(d.layer, rows), m.Tensor(c.ListShapes(d.tokens, rows).H), m.Tensor(s.Logits)
	}
	if err := m.Err(); err != nil {
		return nil, err
	}
	for _, id := range weightIDs(c) {
		var err error
		if e.weights[id], err = d.newWeight(s.Of(id), *w.Bits(id), learns(c, d.frozen, id)); err != nil {
			return nil, err
		}
	}
	return e, nil
}

// layerWeights returns the weights that the layer reads.
func (e *deviceExperts) layerWeights() moe.Weights {
	w := moe.Weights{Router: e.router}
	for id, of := range e.weights {
		*w.Weight(id) = of.layer
	}
	return w
}

// resize sets the shapes of the block's tensors for a pass with a number of tokens.
func (e *deviceExperts) resize(tokens int) error {
	if tokens > e.device.tokens {
		return fmt.Errorf("a pass has %d tokens, must have at most %d", tokens, e.device.tokens)
	}
	e.tokens = tokens
	s := e.layer.Config().Shapes(tokens)
	e.x.Shape, e.h.Shape, e.scores.Shape, e.experts.Shape = s.X, s.H, s.Scores, s.ExpertIDs
	e.device.resize(tokens)
	return nil
}

func (e *deviceExperts) Forward(ctx context.Context, x, router []uint16, learning bool) (output, error) {
	if err := e.resize(len(x) / e.layer.Config().Hidden); err != nil {
		return output{}, err
	}
	if err := errors.Join(e.put(e.x, num.Bytes(x)), e.put(e.router, num.Bytes(router))); err != nil {
		return output{}, err
	}
	f := moe.ForwardArgs{
		X: e.x, Weights: e.layerWeights(),
		O: e.o, H: e.h, Routing: moe.Routing{Scores: e.scores, ExpertIDs: e.experts}, Workspace: e.workspace,
	}
	if learning && e.layer.Config().Rounds() {
		e.round(&f)
	}
	e.chosen, e.kept = f.List, f.H
	if err := e.call.Forward(e.stream, f); err != nil {
		return output{}, err
	}
	if err := e.wait(ctx); err != nil {
		return output{}, fmt.Errorf("forward pass: %w", err)
	}
	o, ids := make([]uint16, e.o.Shape.Elements()), make([]int32, e.experts.Shape.Elements())
	err := errors.Join(e.get(num.Bytes(o), e.o), e.get(num.Bytes(ids), e.experts))
	return output{widen(o), ids}, err
}

// round adds to a pass the arguments that token rounding needs.
func (e *deviceExperts) round(f *moe.ForwardArgs) {
	e.seed++
	l := e.layer.Config().ListShapes(e.tokens, e.layer.RoundedRows(e.tokens))
	e.list.Tokens.Shape, e.list.ExpertIDs.Shape, e.list.Scores.Shape, e.listH.Shape = l.ExpertIDs, l.ExpertIDs, l.Scores, l.H
	e.logits.Shape = l.Logits
	f.List, f.H, f.Logits, f.Seed = e.list, e.listH, e.logits, e.seed
}

func (e *deviceExperts) Backward(ctx context.Context, do, dlogits []float64) (gradients, error) {
	e.device.resize(e.tokens)
	if err := e.put(e.do, num.Bytes(narrow(do))); err != nil {
		return gradients{}, err
	}
	b := moe.BackwardArgs{
		X: e.x, Weights: e.layerWeights(),
		Saved: moe.Saved{Routing: moe.Routing{Scores: e.scores, ExpertIDs: e.experts, List: e.chosen}, H: e.kept},
		DO:    e.do, DX: e.dx, Workspace: e.workspace,
	}
	b.DRouter.Tensor = e.drouter
	if !e.chosen.IsZero() {
		b.Logits = e.logits
	}
	if dlogits != nil {
		b.DLogits = e.dlogits
		if err := e.put(e.dlogits, num.Bytes(singles(dlogits))); err != nil {
			return gradients{}, err
		}
	}
	if !e.frozen {
		for id, w := range e.weights {
			if learns(e.layer.Config(), e.frozen, id) {
				*b.Gradient(id) = moe.Gradient{Tensor: w.grad, Accumulate: e.added}
			}
		}
		e.added = true
	}
	if err := e.call.Backward(e.stream, b); err != nil {
		return gradients{}, err
	}
	if err := e.wait(ctx); err != nil {
		return gradients{}, fmt.Errorf("backward pass: %w", err)
	}
	dx, drouter := make([]uint16, e.dx.Shape.Elements()), make([]float32, e.drouter.Shape.Elements())
	if err := errors.Join(e.get(num.Bytes(dx), e.dx), e.get(num.Bytes(drouter), e.drouter)); err != nil {
		return gradients{}, err
	}
	return gradients{widen(dx), doubles(drouter)}, nil
}

// Step queues the optimizer's kernels on the stream. They run before the next pass.
func (e *deviceExperts) Step(_ context.Context, a adam) error {
	if e.frozen || !e.added {
		return nil
	}
	e.added = false
	var errs []error
	for id, w := range e.weights {
		if learns(e.layer.Config(), e.frozen, id) {
			errs = append(errs, w.step(e.stream, a))
		}
	}
	return errors.Join(errs...)
}
