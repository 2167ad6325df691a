package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"sonicmoe/internal/spec"
	"sonicmoe/moe"
	"sonicmoe/moe/checkpoint/safetensors"
)

// pass is a forward pass and, if the job has one, a backward pass.
type pass struct {
	job    *job
	layer  *moe.Layer
	memory *memory
	args   moe.ForwardArgs
	back   moe.BackwardArgs // arguments of the backward pass, if the job has one

	loaded, forwarded, backwarded time.Duration
	bytes                         int64 // number of bytes read from the files
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

// wait waits for a queued pass. err is the error of queueing the pass.
func (p *pass) wait(ctx context.Context, name string, err error) error {
	if err != nil {
		return err
	}
	if err := p.layer.Explain(p.memory.stream.Synchronize(ctx)); err != nil {
		return fmt.Errorf("%s pass: %w", name, err)
	}
	return nil
}

// outputs returns the results of the forward pass.
func (p *pass) outputs() []safetensors.Source {
	if p.job.routed {
		return []safetensors.Source{p.whole(nameO, p.args.O)}
	}
	return []safetensors.Source{
		p.whole(nameO, p.args.O), p.whole(nameScores, p.args.Scores), p.whole(nameExperts, p.args.ExpertIDs),
	}
}

// input is a tensor on the device that is loaded from one or two tensors of a file.
type input struct {
	to    *moe.Tensor
	shape spec.Shape
	from  source
	names []string
}

// load copies the weights and tokens to the device. If gate and up are separate tensors, it
// joins them, with the gate of each expert before its up.
func (p *pass) load(ctx context.Context) error {
	s := p.job.shapes()
	var list []input
	if p.job.model != nil {
		if err := p.loadModel(ctx); err != nil {
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

// weightNames maps weights to their names in the files of this command.
var weightNames = map[moe.TensorID]string{
	spec.TensorRouter: nameRouter, spec.TensorRouterBias: "router.bias", spec.TensorSelectionBias: "router.selection_bias", spec.TensorExpertScale: "router.expert_scale",
	spec.TensorW1: nameGateUp, spec.TensorW3: nameUp, spec.TensorW2: nameDown,
	spec.TensorB1: nameGateUp + "_bias", spec.TensorB3: nameUp + "_bias", spec.TensorB2: nameDown + "_bias",
	spec.TensorSharedW1: "shared.gate", spec.TensorSharedW3: "shared.up", spec.TensorSharedW2: "shared.down", spec.TensorSharedGate: "shared.score",
}

// fileName returns the name of a weight in the files of this command.
func (j *job) fileName(id moe.TensorID) string {
	if j.config.GateUp == "apart" {
		switch id {
		case spec.TensorW1:
			return nameGate
		case spec.TensorB1:
			return nameGate + "_bias"
		}
	}
	return weightNames[id]
}

// loadModel copies the weights of a model's layer to the device. It skips the router if the
// experts run without it.
func (p *pass) loadModel(ctx context.Context) (err error) {
	shapes := p.job.shapes()
	for _, id := range moe.WeightIDs() {
		s := shapes.Of(id)
		if s.IsZero() || p.job.routed && slices.Contains(spec.RouterWeights, id) {
			continue
		}
		if *p.args.Weight(id), err = p.tensor(id.String(), s); err != nil {
			return err
		}
		p.bytes += s.Bytes()
	}
	return p.job.model.Load(ctx, p.memory.stream, p.args.Weights)
}

// w1Names returns the names of the tensors that make up W1 in the file.
func (j *job) w1Names() []string {
	if j.separate {
		return []string{nameGate, nameUp}
	}
	return []string{nameGateUp}
}

// blocks returns the layout of a tensor on the device that is joined from a number of tensors
// of a file. A block is the part of one expert that comes from one tensor of the file. The
// blocks of neighbouring experts are a stride apart.
func blocks(s spec.Shape, tensors int) (block, stride int64) {
	stride = max(s.Bytes(), 1)
	if tensors > 1 {
		stride /= s.Dims[0]
	}
	return stride / int64(tensors), stride
}

// reserve allocates the tensors that the passes write.
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

// room is a tensor that must still be allocated.
type room struct {
	name  string
	to    *moe.Tensor
	shape spec.Shape
}

func (p *pass) tensor(name string, s spec.Shape) (moe.Tensor, error) {
	ptr, err := p.memory.alloc(name, s.Bytes())
	return moe.Tensor{Ptr: ptr, Shape: s}, err
}
