package tune

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	"sonicmoe/driver"
	"sonicmoe/internal/num"
	"sonicmoe/internal/reference"
	"sonicmoe/internal/spec"
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
	"sonicmoe/moe/internal/registry"
)

// named is a tensor with its id.
type named struct {
	id spec.TensorID
	moe.Tensor
}

// run is a pass whose outputs depend on a kernel of a product.
type run struct {
	registry.Pass
	// kernel is the name of the kernel. Observers of a call get this name.
	kernel string
	do     func(*moe.Call) error
	// outputs are the tensors to compare. The pass starts with `before` in each of their words.
	outputs []named
	before  uint32
}

const poison = 0xffffffff

// runs returns passes that together run every kernel of a product. Time measures the kernel of the
// first pass.
func (b *bench) runs(product spec.ProductID) ([]run, error) {
	var list []run
	for _, k := range b.kernels.OfProduct(b.kernels.Product(product)) {
		if !k.Suits(b.Config) || k.Pass().RoutedOnly && b.Histogram != nil {
			continue
		}
		r, err := b.run(k.Pass())
		if err != nil {
			return nil, fmt.Errorf("the pass that shows the work of the kernel %q: %w", k.Name(), err)
		}
		r.kernel = k.Name()
		list = append(list, r)
	}
	return list, nil
}

// run returns a pass with the buffers of the bench.
func (b *bench) run(p registry.Pass) (run, error) {
	r := run{Pass: p, before: poison}
	if p.Accumulate {
		r.before = 0
	}
	given := p.Given || b.Histogram != nil
	var from, to func(spec.TensorID) (*moe.Tensor, *bool)
	if p.Backward {
		g := b.trial.Args.BackwardArgs()
		g.DO = b.trial.Back.DO
		r.do, from, to = b.backward(&g, given), backwardOutput(&b.trial.Back), backwardOutput(&g)
	} else {
		f := b.trial.Args
		f.H, f.SharedH = moe.Tensor{}, moe.Tensor{}
		r.do, from, to = b.forward(&f, given), forwardOutput(&b.trial.Args), forwardOutput(&f)
	}
	wide := int64(0)
	for _, id := range b.outputs(p, given) {
		all, _ := from(id)
		if all == nil || all.IsZero() {
			return run{}, fmt.Errorf("%q has no output %q", p.Name, id)
		}
		wanted, accumulate := to(id)
		*wanted = *all
		if p.F32 {
			wanted.Ptr, wanted.Shape.Type = b.wide+driver.DevicePtr(wide), moe.F32
			wide += wanted.Shape.Bytes()
		}
		if p.Accumulate {
			*accumulate = true
		}
		r.outputs = append(r.outputs, named{id, *wanted})
	}
	if len(r.outputs) == 0 {
		return run{}, fmt.Errorf("%q has no outputs", p.Name)
	}
	return r, nil
}

// outputs returns the outputs of a pass, without those that a layer of this configuration does not
// have. If a kernel writes two gradients together (as dW1 and dW3), the second one follows the
// first.
func (b *bench) outputs(p registry.Pass, given bool) []spec.TensorID {
	var list []spec.TensorID
	for _, id := range p.Outputs {
		if given && spec.Row(id).Role == spec.RoleRouting {
			continue // if the routing is given, this tensor is an input and not an output
		}
		list = append(list, id)
		if id == spec.TensorH {
			list = append(list, spec.TensorSharedH)
		}
		for _, d := range spec.WeightGradients {
			if spec.Row(d).WithID == id {
				list = append(list, d)
			}
		}
	}
	forward, backward := b.Config.Shapes(0), b.Config.Gradients(0, b.Config.Type)
	return slices.DeleteFunc(list, func(id spec.TensorID) bool { return forward.Of(id).IsZero() && backward.Of(id).IsZero() })
}

// forwardOutput returns a function that finds an output of a forward pass by its id. The function
// returns nil for any other tensor. The *bool that it returns points to false, because no pass adds
// to these outputs.
func forwardOutput(f *moe.ForwardArgs) func(spec.TensorID) (*moe.Tensor, *bool) {
	return func(id spec.TensorID) (*moe.Tensor, *bool) {
		switch id {
		case spec.TensorO:
			return &f.O, new(bool)
		case spec.TensorH:
			return &f.H, new(bool)
		case spec.TensorSharedH:
			return &f.SharedH, new(bool)
		case spec.TensorScores:
			return &f.Scores, new(bool)
		case spec.TensorExpertIDs:
			return &f.ExpertIDs, new(bool)
		}
		return nil, nil
	}
}

// backwardOutput returns a function that finds an output of a backward pass by its id, and whether
// the pass adds to the output. The function returns nil for any other tensor.
func backwardOutput(b *moe.BackwardArgs) func(spec.TensorID) (*moe.Tensor, *bool) {
	return func(id spec.TensorID) (*moe.Tensor, *bool) {
		switch {
		case id == spec.TensorDX:
			return &b.DX, new(bool)
		case id == spec.TensorDScores:
			return &b.DScores, new(bool)
		case spec.Row(id).Role == spec.RoleWeightGradient:
			g := b.Gradient(spec.Row(id).Of)
			return &g.Tensor, &g.Accumulate
		}
		return nil, nil
	}
}

// forward returns a function that queues a forward pass with the present workspace of the bench.
func (b *bench) forward(f *moe.ForwardArgs, given bool) func(*moe.Call) error {
	return func(c *moe.Call) error {
		f.Workspace = b.trial.Args.Workspace
		if given {
			return c.ForwardExperts(b.trial.Stream(), *f)
		}
		return c.Forward(b.trial.Stream(), *f)
	}
}

func (b *bench) backward(g *moe.BackwardArgs, given bool) func(*moe.Call) error {
	return func(c *moe.Call) error {
		g.Workspace = b.trial.Back.Workspace
		if given {
			return c.BackwardExperts(b.trial.Stream(), *g)
		}
		return c.Backward(b.trial.Stream(), *g)
	}
}

// route chooses experts for every token in proportion to the histogram, with equal scores.
func (b *bench) route(tokens int) error {
	c := b.Config
	shares, sum, used := make(reference.Zipf, c.NumExperts), 0.0, 0
	for e, n := range b.Histogram {
		before := sum
		sum += float64(n)
		shares[e] = sum
		if sum > before { // false if adding 1 row to 2^53 rows is lost in rounding
			used++
		}
	}
	if used < c.TopK {
		return &moe.ArgError{Field: "Histogram", Got: fmt.Sprintf("%d experts with rows", used), Want: fmt.Sprintf("at least %d, the experts of a token", c.TopK)}
	}
	for e := range shares {
		shares[e] /= sum
	}
	random := rand.New(rand.NewPCG(seed, seed))
	var ids []int32
	scores := make([]float32, tokens*c.TopK)
	for range tokens {
		ids = append(ids, shares.Distinct(c.TopK, random.Float64)...)
	}
	for i := range scores {
		scores[i] = 1 / float32(c.TopK)
	}
	s, a := b.trial.Stream(), b.trial.Args
	if err := s.CopyToDevice(a.ExpertIDs.Ptr, num.Bytes(ids)); err != nil {
		return err
	}
	return s.CopyToDevice(a.Scores.Ptr, num.Bytes(scores))
}

// These constants limit the comparison with float64. It covers at least provenTokens tokens, and
// more until every expert has a token. It covers provenRows rows of each weight's gradient.
const (
	provenTokens = 64
	provenRows   = 128
)

// prove checks the cost model's layer against float64, forward and backward.
func (b *bench) prove(ctx context.Context) error {
	training, err := b.run(registry.Training)
	if err != nil {
		return err
	}
	if err := b.learn(ctx, training); err != nil {
		return err
	}
	saved, err := b.trial.Results(true)
	if err != nil {
		return err
	}
	check := b.trial.Check
	if b.Histogram != nil {
		check = b.trial.CheckExperts
	}
	rep, err := check(saved, provenTokens)
	if err == nil {
		err = rep.Check()
	}
	if err != nil {
		return err
	}
	if b.Backward {
		if err := b.proveBackward(ctx, saved); err != nil {
			return err
		}
	}
	return b.sameInputs()
}

func (b *bench) proveBackward(ctx context.Context, saved trial.Results) error {
	g, routed := b.trial.Back, b.Histogram == nil
	if !routed {
		for _, id := range spec.RouterWeights {
			if d := g.Gradient(id); d != nil {
				*d = moe.Gradient{}
			}
		}
	}
	if err := b.trial.PoisonGradients(g); err != nil {
		return err
	}
	if err := b.backward(&g, !routed)(b.base.call); err != nil {
		return err
	}
	if err := b.base.layer.Explain(b.trial.Stream().Synchronize(ctx)); err != nil {
		return err
	}
	rep, err := b.trial.CheckBackward(g, saved, trial.BackwardCheck{Routed: routed, Tokens: provenTokens, Rows: provenRows})
	if err != nil {
		return err
	}
	return rep.Check()
}

// tokensOf returns the number of tokens with which the bench runs.
func tokensOf(c moe.Config) int {
	if c.TokensHint > 0 {
		return c.TokensHint
	}
	return max(1, registry.RowsPerExpert(c)*c.NumExperts/c.TopK)
}
