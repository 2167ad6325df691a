package tune

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"

	"sonicmoe/driver"
	"sonicmoe/internal/reference"
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/num"
)

// named is a tensor with its name.
type named struct {
	name string
	moe.Tensor
}

// run is a pass that shows the work of a product's kernel.
type run struct {
	registry.Pass
	// kernel is that kernel, as observers know it.
	kernel string
	do     func(*moe.Call) error
	// outputs are compared; before is what their words hold ahead of the pass.
	outputs []named
	before  uint32
}

const poison = 0xffffffff

// runs are the passes that together use every kernel of a product. The first
// has the one that is timed. A product that has none is an error.
func (b *bench) runs(product string) ([]run, error) {
	p, err := b.kernels.FindProduct(product)
	if err != nil {
		return nil, err
	}
	var list []run
	for _, k := range b.kernels.OfProduct(p) {
		if k.Pass().RoutedOnly && b.Histogram != nil {
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

// run is a pass as the bench runs it.
func (b *bench) run(p registry.Pass) (run, error) {
	r := run{Pass: p, before: poison}
	if p.Accumulate {
		r.before = 0
	}
	given := p.Given || b.Histogram != nil
	all, wanted, wide := any(&b.trial.Args), any(nil), int64(0)
	if p.Backward {
		g := b.trial.Args.Backward()
		g.DO = b.trial.Back.DO
		r.do, all, wanted = b.backward(&g, given), &b.trial.Back, &g
	} else {
		f := b.trial.Args
		f.H, f.SharedH = moe.Tensor{}, moe.Tensor{}
		r.do, wanted = b.forward(&f, given), &f
	}
	for _, name := range b.outputs(p, given) {
		from, _ := output(all, name)
		if from == nil || from.IsZero() {
			return run{}, fmt.Errorf("%q has no output %q", p.Name, name)
		}
		to, accumulate := output(wanted, name)
		*to = *from
		if p.F32 {
			to.Ptr, to.Shape.Type = b.wide+driver.DevicePtr(wide), moe.F32
			wide += to.Shape.Bytes()
		}
		if p.Accumulate {
			*accumulate = true
		}
		r.outputs = append(r.outputs, named{name, *to})
	}
	if len(r.outputs) == 0 {
		return run{}, fmt.Errorf("%q has no outputs", p.Name)
	}
	return r, nil
}

// outputs are those of a pass that a layer of this configuration has: of biases
// where there are any, and with one the other that its kernel writes beside it.
func (b *bench) outputs(p registry.Pass, given bool) (list []string) {
	apart, c := b.Config.GateUp == moe.Apart, b.Config
	for _, name := range p.Outputs {
		switch {
		case given && (name == "Scores" || name == "ExpertIDs"):
			continue // inputs then
		case name == "DB1" && !c.Bias:
			continue
		}
		list = append(list, name)
		switch {
		case name == "H" && c.SharedExperts > 0:
			list = append(list, "SharedH")
		case name == "DW1" && apart:
			list = append(list, "DW3")
		case name == "DB1" && apart:
			list = append(list, "DB3")
		}
	}
	return list
}

// output is the tensor, or the gradient's with its Accumulate, of that name
// among the fields of a moe.Forward or moe.Backward; nil where there is none.
func output(of any, name string) (t *moe.Tensor, accumulate *bool) {
	field := reflect.ValueOf(of).Elem().FieldByName(name)
	if !field.IsValid() {
		return nil, nil
	}
	switch v := field.Addr().Interface().(type) {
	case *moe.Tensor:
		return v, new(bool)
	case *moe.Gradient:
		return &v.Tensor, &v.Accumulate
	}
	return nil, nil
}

// forward is a pass with the buffers, whose workspace is today's.
func (b *bench) forward(f *moe.Forward, given bool) func(*moe.Call) error {
	return func(c *moe.Call) error {
		f.Workspace = b.trial.Args.Workspace
		if given {
			return c.ForwardExperts(b.trial.Stream(), *f)
		}
		return c.Forward(b.trial.Stream(), *f)
	}
}

func (b *bench) backward(g *moe.Backward, given bool) func(*moe.Call) error {
	return func(c *moe.Call) error {
		g.Workspace = b.trial.Back.Workspace
		if given {
			return c.BackwardExperts(b.trial.Stream(), *g)
		}
		return c.Backward(b.trial.Stream(), *g)
	}
}

// route gives every token experts by the histogram's shares, and equal scores.
func (b *bench) route(tokens int) error {
	c := b.Config
	shares, sum, used := make(reference.Zipf, c.NumExperts), 0.0, 0
	for e, n := range b.Histogram {
		before := sum
		sum += float64(n)
		shares[e] = sum
		if sum > before { // 1 row beside 2^53 is none
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

// How much of the cost model's layer is held against float64: tokens at least,
// as many as touch every expert, and rows of each weight's gradient.
const (
	provenTokens = 64
	provenRows   = 128
)

// prove holds the cost model's layer against float64, forward and backward.
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
		g.DRouter, g.DRouterBias, g.DExpertScale = moe.Gradient{}, moe.Gradient{}, moe.Gradient{}
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

// tokensOf is how many tokens the tensors have.
func tokensOf(c moe.Config) int {
	if c.TokensHint > 0 {
		return c.TokensHint
	}
	return max(1, registry.RowsPerExpert(c)*c.NumExperts/c.TopK)
}
