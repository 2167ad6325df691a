package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"sonicmoe/examples/layer/safetensors"
	"sonicmoe/internal/spec"
	"sonicmoe/moe"
)

// pass is a forward pass, without saved activations unless a backward pass
// follows.
type pass struct {
	job    *job
	layer  *moe.Layer
	memory *memory
	args   moe.Forward
	back   moe.Backward // where the job has one

	loaded, forwarded, backwarded time.Duration
	bytes                         int64 // read from the files
}

// run loads the inputs, computes, and writes the outputs.
func (p *pass) run(ctx context.Context, out *output) error {
	started := time.Now()
	if err := p.load(ctx); err != nil {
		return err
	}
	p.loaded = time.Since(started)
	if err := p.reserve(); err != nil {
		return err
	}
	call := p.layer.NewCall()
	forward, backward := call.Forward, call.Backward
	if p.job.routed {
		forward, backward = call.ForwardExperts, call.BackwardExperts
	}
	started = time.Now()
	if err := p.wait(ctx, "forward", forward(p.memory.stream, p.args)); err != nil {
		return err
	}
	p.forwarded = time.Since(started)
	if p.job.backward {
		started = time.Now()
		if err := p.wait(ctx, "backward", backward(p.memory.stream, p.back)); err != nil {
			return err
		}
		p.backwarded = time.Since(started)
	}
	return out.commit(append(p.outputs(), p.gradients()...)...)
}

// wait waits for a pass that was queued with that error.
func (p *pass) wait(ctx context.Context, name string, err error) error {
	if err != nil {
		return err
	}
	if err := p.layer.Explain(p.memory.stream.Synchronize(ctx)); err != nil {
		return fmt.Errorf("%s pass: %w", name, err)
	}
	return nil
}

// outputs are what the forward pass has written.
func (p *pass) outputs() []safetensors.Source {
	if p.job.routed {
		return []safetensors.Source{p.whole(nameO, p.args.O)}
	}
	return []safetensors.Source{
		p.whole(nameO, p.args.O), p.whole(nameScores, p.args.Scores), p.whole(nameExperts, p.args.ExpertIDs),
	}
}

// input is a tensor to be loaded, from one of a file or several by turns.
type input struct {
	to    *moe.Tensor
	shape spec.Shape
	from  source
	names []string
}

// load brings weights and tokens to the device. Gate and up that are apart in
// the file are put together there, for each expert gate before up.
func (p *pass) load(ctx context.Context) error {
	s := p.job.shapes()
	var list []input
	if p.job.model != nil {
		if err := p.loadModel(); err != nil {
			return err
		}
	} else {
		list = []input{
			{&p.args.W1, s.W1, p.job.weights, p.job.w1Names()},
			{&p.args.W2, s.W2, p.job.weights, []string{nameDown}},
		}
	}
	list = append(list, input{&p.args.X, s.X, p.job.input, []string{nameX}})
	switch {
	case p.job.routed:
		list = append(list, input{&p.args.Scores, s.Scores, p.job.input, []string{nameScores}}, input{&p.args.ExpertIDs, s.ExpertIDs, p.job.input, []string{nameExperts}})
	case p.job.model == nil:
		list = append(list, input{&p.args.Router, s.Router, p.job.weights, []string{nameRouter}})
	}
	if p.job.backward {
		list = append(list, input{&p.back.DO, p.job.config.Gradients(p.job.tokens, p.job.config.Type).DO, p.job.input, []string{nameDO}})
	}
	for _, in := range list {
		var err error
		if *in.to, err = p.tensor(in.names[0], in.shape); err != nil {
			return err
		}
		block, stride := blocks(in.shape, len(in.names))
		for i, name := range in.names {
			to := at(in.to.Ptr, int64(i)*block)
			if err := p.memory.load(ctx, to, in.from, name, block, stride); err != nil {
				return err
			}
		}
		p.bytes += in.shape.Bytes()
	}
	return p.memory.stream.Synchronize(ctx)
}

// weight is one of the layer's, and its gradient where it has one.
type weight struct {
	name string // in spec.Shapes
	file string // in the files of the command
	to   *moe.Tensor
	grad *moe.Gradient
}

// routerWeights are those that experts alone don't take.
var routerWeights = []string{"Router", "RouterBias", "SelectionBias", "ExpertScale"}

// weights are all that a layer may have.
func (p *pass) weights() []weight {
	w, g := &p.args.Weights, &p.back.WeightGradients
	up := nameGateUp
	if p.job.config.GateUp == moe.Apart {
		up = nameGate
	}
	return []weight{
		{"Router", nameRouter, &w.Router, &g.DRouter},
		{"RouterBias", "router.bias", &w.RouterBias, &g.DRouterBias},
		{"SelectionBias", "router.selection_bias", &w.SelectionBias, nil},
		{"ExpertScale", "router.expert_scale", &w.ExpertScale, &g.DExpertScale},
		{"W1", up, &w.W1, &g.DW1},
		{"W3", nameUp, &w.W3, &g.DW3},
		{"W2", nameDown, &w.W2, &g.DW2},
		{"B1", up + "_bias", &w.B1, &g.DB1},
		{"B3", nameUp + "_bias", &w.B3, &g.DB3},
		{"B2", nameDown + "_bias", &w.B2, &g.DB2},
		{"SharedW1", "shared.gate", &w.SharedW1, &g.DSharedW1},
		{"SharedW3", "shared.up", &w.SharedW3, &g.DSharedW3},
		{"SharedW2", "shared.down", &w.SharedW2, &g.DSharedW2},
		{"SharedGate", "shared.score", &w.SharedGate, &g.DSharedGate},
	}
}

// loadModel brings a model's weights to the device, those that its layer has.
func (p *pass) loadModel() error {
	for _, w := range p.weights() {
		if p.job.routed && slices.Contains(routerWeights, w.name) {
			continue
		}
		data, err := p.job.model.Tensor(w.name)
		if err != nil {
			return err
		}
		if data == nil {
			continue
		}
		if *w.to, err = p.tensor(w.name, p.job.model.Shape(w.name)); err != nil {
			return err
		}
		if err := p.memory.stream.CopyToDevice(w.to.Ptr, data); err != nil {
			return err
		}
		p.bytes += int64(len(data))
	}
	return nil
}

// w1Names are the tensors that W1 is made of.
func (j *job) w1Names() []string {
	if j.separate {
		return []string{nameGate, nameUp}
	}
	return []string{nameGateUp}
}

// blocks is how a tensor is made of so many of a file: a block is what one
// expert has of each, and lies a stride from the next expert's.
func blocks(s spec.Shape, tensors int) (block, stride int64) {
	stride = max(s.Bytes(), 1)
	if tensors > 1 {
		stride /= s.Dims[0]
	}
	return stride / int64(tensors), stride
}

// reserve makes room for what the passes write.
func (p *pass) reserve() (err error) {
	s := p.job.shapes()
	sizes, err := p.layer.Sizes(p.job.tokens)
	if err != nil {
		return err
	}
	w := moe.Buffer{Bytes: sizes.Workspace}
	if p.job.backward {
		w.Bytes = sizes.BackwardWorkspace
	}
	if w.Ptr, err = p.memory.alloc("the workspace", w.Bytes); err != nil {
		return err
	}
	p.args.Workspace = w
	rooms := []room{{nameO, &p.args.O, s.O}}
	if !p.job.routed {
		rooms = append(rooms, room{nameScores, &p.args.Scores, s.Scores}, room{nameExperts, &p.args.ExpertIDs, s.ExpertIDs})
	}
	for _, out := range rooms {
		if *out.to, err = p.tensor(out.name, out.shape); err != nil {
			return err
		}
	}
	if p.job.backward {
		return p.reserveGradients()
	}
	return nil
}

// room is a tensor to be written.
type room struct {
	name  string
	to    *moe.Tensor
	shape spec.Shape
}

func (p *pass) tensor(name string, s spec.Shape) (moe.Tensor, error) {
	ptr, err := p.memory.alloc(name, s.Bytes())
	return moe.Tensor{Ptr: ptr, Shape: s}, err
}
