package main

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"sonicmoe/cache"
	"sonicmoe/driver"
	"sonicmoe/internal/num"
	"sonicmoe/internal/reference"
	"sonicmoe/moe"
	"sonicmoe/moe/parallel"
)

// This file has layers whose experts are spread over the ranks of a group in this process. Rank r of W
// has the tokens from r·T/W to (r+1)·T/W - 1 of every pass. A goroutine runs each rank.

// group is the ranks of a group.
type group struct {
	members []*member
	tokens  int // largest number of tokens of a pass
}

// member is a rank, with the tensors that all blocks share.
type member struct {
	*device
	rank *parallel.Rank
}

// newGroup makes the group of ranks that the options ask for. The ranks get the devices in turns.
func newGroup(ctx context.Context, list []driver.Device, o options, s size, kept *cache.Cache) (*group, error) {
	var devices []driver.Device
	for i := range o.ranks {
		devices = append(devices, list[i%len(list)])
	}
	c, tokens := s.layer, s.tokens
	transports, err := parallel.Local(devices...)
	if err != nil {
		return nil, err
	}
	g := &group{members: make([]*member, len(devices)), tokens: tokens}
	most := (tokens + len(devices) - 1) / len(devices)
	err = g.each(func(i int, _ *member) error {
		r, err := parallel.Join(ctx, devices[i], transports[i], parallel.Options{Config: c, MaxTokens: most, PartialSums: o.sums, Layer: []moe.Option{moe.WithCache(kept)}})
		if err != nil {
			return err
		}
		d, err := openDevice(ctx, devices[i], c, most, o.freeze, kept)
		if err != nil {
			return errors.Join(err, r.Close())
		}
		g.members[i] = &member{d, r}
		sizes, err := r.Sizes()
		if err != nil {
			return err
		}
		return d.reserveFor(max(sizes.Workspace, sizes.BackwardWorkspace))
	})
	if err != nil {
		return nil, errors.Join(err, g.Close())
	}
	return g, nil
}

// each calls body for every rank, in goroutines that run at the same time.
func (g *group) each(body func(i int, m *member) error) error {
	var all errgroup.Group
	for i, m := range g.members {
		all.Go(func() error { return body(i, m) })
	}
	return all.Wait()
}

// Close frees what the ranks have on their devices.
func (g *group) Close() (err error) {
	for _, m := range g.members {
		if m != nil {
			err = errors.Join(err, m.rank.Close(), m.device.Close())
		}
	}
	return err
}

// share returns the tokens of a rank among a number of tokens: from first to end-1.
func (g *group) share(rank, tokens int) (first, end int) {
	return rank * tokens / len(g.members), (rank + 1) * tokens / len(g.members)
}

// groupExperts is the layer of one block, spread over the ranks of a group.
type groupExperts struct {
	*group
	parts []part
	count int // number of tokens of the latest pass
	added bool
}

// part is what one rank has of a block: its experts' weights, and what its latest pass keeps.
type part struct {
	x, router, scores, experts moe.Tensor
	weights                    map[moe.TensorID]deviceWeight
	saved                      *parallel.Saved
}

// newExperts creates the layer of a block. Its type is makeExperts.
func (g *group) newExperts(w reference.Weights) (experts, error) {
	e := &groupExperts{group: g, parts: make([]part, len(g.members))}
	return e, g.each(func(i int, m *member) (err error) {
		sizes, err := m.rank.Sizes()
		if err != nil {
			return err
		}
		s, p := m.config.Shapes(m.tokens), &e.parts[i]
		p.x, p.router, p.scores, p.experts = m.memory.Tensor(s.X), m.memory.Tensor(s.Router), m.memory.Tensor(s.Scores), m.memory.Tensor(s.ExpertIDs)
		p.weights, p.saved = map[moe.TensorID]deviceWeight{}, &parallel.Saved{Buffer: m.memory.Buffer(sizes.Saved)}
		if err := m.memory.Err(); err != nil {
			return err
		}
		first, count := m.rank.Experts()
		shapes := m.rank.WeightShapes()
		for _, id := range weightIDs(m.config) {
			bits := *w.Bits(id)
			each := len(bits) / m.config.NumExperts
			if p.weights[id], err = m.newWeight(shapes[id], bits[first*each:(first+count)*each], learns(m.config, m.frozen, id)); err != nil {
				return err
			}
		}
		return nil
	})
}

// layerWeights returns the weights that a rank's pass reads.
func (p *part) layerWeights() moe.Weights {
	w := moe.Weights{Router: p.router}
	for id, of := range p.weights {
		*w.Weight(id) = of.layer
	}
	return w
}

func (e *groupExperts) Forward(ctx context.Context, x, router []uint16, learning bool) (output, error) {
	c := e.members[0].config
	e.count = len(x) / c.Hidden
	if e.count > e.group.tokens {
		return output{}, fmt.Errorf("a pass has %d tokens, must have at most %d", e.count, e.group.tokens)
	}
	o, ids := make([]uint16, len(x)), make([]int32, e.count*c.TopK)
	err := e.each(func(i int, m *member) error {
		p := &e.parts[i]
		first, end := e.share(i, e.count)
		s := c.Shapes(end - first)
		p.x.Shape, p.scores.Shape, p.experts.Shape = s.X, s.Scores, s.ExpertIDs
		m.resize(end - first)
		if err := errors.Join(m.put(p.x, num.Bytes(x[first*c.Hidden:end*c.Hidden])), m.put(p.router, num.Bytes(router))); err != nil {
			return err
		}
		a := parallel.Args{X: p.x, Weights: p.layerWeights(), Scores: p.scores, ExpertIDs: p.experts, O: m.o, Workspace: m.workspace}
		if learning {
			a.Saved = p.saved
		}
		if err := m.rank.Forward(ctx, m.stream, a); err != nil {
			return err
		}
		if err := m.rank.Wait(ctx, m.stream); err != nil {
			return err
		}
		return errors.Join(m.get(num.Bytes(o[first*c.Hidden:end*c.Hidden]), m.o), m.get(num.Bytes(ids[first*c.TopK:end*c.TopK]), p.experts))
	})
	return output{widen(o), ids}, err
}

func (e *groupExperts) Backward(ctx context.Context, do, dlogits []float64) (gradients, error) {
	c := e.members[0].config
	dx, drouter := make([]uint16, len(do)), make([]float32, c.Shapes(0).Router.Elements())
	err := e.each(func(i int, m *member) error {
		p := &e.parts[i]
		first, end := e.share(i, e.count)
		m.resize(end - first)
		if err := m.put(m.do, num.Bytes(narrow(do[first*c.Hidden:end*c.Hidden]))); err != nil {
			return err
		}
		b := parallel.BackwardArgs{
			X: p.x, Weights: p.layerWeights(), Scores: p.scores, ExpertIDs: p.experts, Saved: p.saved, DO: m.do, DX: m.dx, Workspace: m.workspace,
		}
		b.DRouter.Tensor = m.drouter
		if dlogits != nil {
			b.DLogits = m.dlogits
			if err := m.put(m.dlogits, num.Bytes(singles(dlogits[first*c.NumExperts:end*c.NumExperts]))); err != nil {
				return err
			}
		}
		for id, w := range p.weights {
			if learns(c, m.frozen, id) {
				*b.Gradient(id) = moe.Gradient{Tensor: w.grad, Accumulate: e.added}
			}
		}
		if err := m.rank.Backward(ctx, m.stream, b); err != nil {
			return err
		}
		if err := m.rank.Wait(ctx, m.stream); err != nil {
			return err
		}
		if i == 0 { // all ranks have the same gradient of the router
			if err := m.get(num.Bytes(drouter), m.drouter); err != nil {
				return err
			}
		}
		return m.get(num.Bytes(dx[first*c.Hidden:end*c.Hidden]), m.dx)
	})
	e.added = true
	return gradients{widen(dx), doubles(drouter)}, err
}

// Step queues the optimizer's kernels of every rank. They run before the next pass.
func (e *groupExperts) Step(_ context.Context, a adam) error {
	if !e.added {
		return nil
	}
	e.added = false
	return e.each(func(i int, m *member) error {
		for id, w := range e.parts[i].weights {
			if !learns(m.config, m.frozen, id) {
				continue
			}
			if err := w.step(m.stream, a); err != nil {
				return err
			}
		}
		return nil
	})
}
