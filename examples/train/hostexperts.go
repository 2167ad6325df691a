package main

import (
	"context"

	"sonicmoe/internal/reference"
	"sonicmoe/internal/spec"
	"sonicmoe/moe"
)

// hostExperts is the MoE layer in float64 on the host. The device's results are compared with
// it.
type hostExperts struct {
	config moe.Config
	frozen bool
	w      map[moe.TensorID]*param

	layer   *reference.Layer // with the experts' weights, and the router of the latest pass
	x       []uint16
	routing reference.Routing
}

func newHostExperts(c moe.Config, frozen bool) makeExperts {
	return func(w reference.Weights) (experts, error) {
		h := &hostExperts{config: c, frozen: frozen, w: map[moe.TensorID]*param{}}
		for _, id := range weightIDs(c) {
			h.w[id] = newParam(widen(*w.Bits(id)))
		}
		return h, nil
	}
}

func (h *hostExperts) Forward(_ context.Context, x, router []uint16, _ bool) (output, error) {
	w := reference.Weights{Router: router}
	for id, p := range h.w {
		*w.Bits(id) = narrow(p.w)
	}
	var err error
	if h.layer, err = reference.New(h.config, w); err != nil {
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
	if h.config.LoRARank > 0 {
		of, err := g.LoRA()
		if err != nil {
			return err
		}
		for id, dw := range map[moe.TensorID][]float64{spec.TensorLoraA1: of.A1, spec.TensorLoraB1: of.B1, spec.TensorLoraA2: of.A2, spec.TensorLoraB2: of.B2} {
			addScaled(h.w[id].grad, 1, dw)
		}
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
	addScaled(h.w[spec.TensorW1].grad, 1, dw1)
	addScaled(h.w[spec.TensorW2].grad, 1, dw2)
	return nil
}

func (h *hostExperts) Step(_ context.Context, a adam) error {
	for id, p := range h.w {
		if learns(h.config, h.frozen, id) {
			p.update(a)
		}
	}
	return nil
}
