package main

import (
	"context"

	"sonicmoe/internal/reference"
	"sonicmoe/moe"
)

// hostExperts is the MoE layer in float64 on the host. The device's results are compared with
// it.
type hostExperts struct {
	config moe.Config
	frozen bool
	w1, w2 *param

	layer   *reference.Layer // with the experts' weights, and the router of the latest pass
	x       []uint16
	routing reference.Routing
}

func newHostExperts(c moe.Config, frozen bool) makeExperts {
	return func(w1, w2 []uint16) (experts, error) {
		return &hostExperts{config: c, frozen: frozen, w1: newParam(widen(w1)), w2: newParam(widen(w2))}, nil
	}
}

func (h *hostExperts) Forward(_ context.Context, x, router []uint16, _ bool) (output, error) {
	var err error
	if h.layer, err = reference.NewLayer(h.config, router, narrow(h.w1.w), narrow(h.w2.w)); err != nil {
		return output{}, err
	}
	var out reference.Output
	h.x = x
	h.routing, out, err = h.layer.Forward(x, reference.Unrounded)
	return output{out.O, h.routing.ExpertIDs}, err
}

func (h *hostExperts) Backward(_ context.Context, do, dlogits []float64) (gradients, error) {
	g, err := h.layer.Gradients(reference.Backward{
		X: h.x, DO: narrow(do), Scores: h.routing.Scores, ExpertIDs: h.routing.ExpertIDs, Routed: true, Extra: dlogits,
	}, reference.Unrounded)
	if err != nil {
		return gradients{}, err
	}
	tokens, err := g.Tokens(nil)
	if err != nil {
		return gradients{}, err
	}
	router, err := g.Router(tokens.DLogits)
	if err != nil {
		return gradients{}, err
	}
	return gradients{tokens.DX, router}, h.weights(g)
}

// weights adds the weight gradients of a pass to the sums since the latest step.
func (h *hostExperts) weights(g *reference.Gradients) error {
	if h.frozen {
		return nil
	}
	dw1, err := g.W1(reference.AllRows(h.config.NumExperts, 2*h.config.Intermediate))
	if err != nil {
		return err
	}
	dw2, err := g.W2(reference.AllRows(h.config.NumExperts, h.config.Hidden))
	if err != nil {
		return err
	}
	addScaled(h.w1.grad, 1, dw1)
	addScaled(h.w2.grad, 1, dw2)
	return nil
}

func (h *hostExperts) Step(_ context.Context, a adam) error {
	if !h.frozen {
		h.w1.update(a)
		h.w2.update(a)
	}
	return nil
}
