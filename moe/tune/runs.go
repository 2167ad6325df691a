package tune

import (
	"context"
	"fmt"
	"math/rand/v2"

	"sonicmoe/moe"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/num"
	"sonicmoe/moe/reference"
	"sonicmoe/moe/trial"
)

// named is a tensor with its name.
type named struct {
	name string
	moe.Tensor
}

// run is a pass that shows a product's work.
type run struct {
	name string
	do   func(*moe.Call) error
	// outputs are compared; before is what their words hold ahead of the pass.
	outputs []named
	before  uint32
	// kernel is the product's kernel in the pass, as observers know it.
	kernel string
}

const poison = 0xffffffff

// runs are the passes that together use every kernel of a product. The first
// has the one that is timed. A product that has none here is an error.
func (b *bench) runs(product string) ([]run, error) {
	a, g := b.trial.Args, b.trial.Back
	switch product {
	case "up":
		outputs := []named{{"O", a.O}, {"H", a.H}}
		if b.Histogram == nil {
			outputs = append(outputs, named{"Scores", a.Scores}, named{"ExpertIDs", a.ExpertIDs})
		}
		return []run{
			{"training", b.forward(a), outputs, poison, "up"},
			{"inference", b.forward(b.trial.Inference()), []named{{"O", a.O}}, poison, "up-inference"},
		}, nil
	case "down":
		return []run{{"training", b.forward(a), []named{{"O", a.O}}, poison, "down"}}, nil
	case "dh":
		return []run{{"backward", b.backward(g, b.Histogram == nil),
			[]named{{"DX", g.DX}, {"DScores", g.DScores}, {"DW1", g.DW1.Tensor}, {"DW2", g.DW2.Tensor}}, poison, "dh"}}, nil
	case "dx":
		only := wanting(g, moe.WeightGradients{})
		only.DX = g.DX
		var list []run
		if b.Histogram == nil {
			list = append(list, run{"backward to X", b.backward(only, true), []named{{"DX", g.DX}}, poison, "dx"})
		}
		return append(list, run{"backward of the experts to X", b.backward(only, false), []named{{"DX", g.DX}}, poison, "dx-given"}), nil
	case "dw1", "dw2":
		return b.weightRuns(product), nil
	}
	return nil, fmt.Errorf("no pass is known that shows the work of product %q", product)
}

// weightRuns are the four ways of writing the gradient of W1 or W2.
func (b *bench) weightRuns(product string) []run {
	g, shapes := b.trial.Back, b.Config.Gradients(b.trial.Tokens, moe.F32)
	var list []run
	for _, way := range []struct {
		name      string // of the kernel, behind the product's
		f32, adds bool
	}{{"", false, false}, {"-f32", true, false}, {"-add", false, true}, {"-add-f32", true, true}} {
		var w moe.WeightGradients
		var out named
		before := uint32(poison)
		if way.adds {
			before = 0
		}
		if product == "dw1" {
			out = named{"DW1", g.DW1.Tensor}
			if way.f32 {
				out.Tensor = moe.Tensor{Ptr: b.wide, Shape: shapes.DW1}
			}
			w.DW1 = moe.Gradient{Tensor: out.Tensor, Accumulate: way.adds}
		} else {
			out = named{"DW2", g.DW2.Tensor}
			if way.f32 {
				out.Tensor = moe.Tensor{Ptr: b.wide, Shape: shapes.DW2}
			}
			w.DW2 = moe.Gradient{Tensor: out.Tensor, Accumulate: way.adds}
		}
		list = append(list, run{product + way.name, b.backward(wanting(g, w), false), []named{out}, before, product + way.name})
	}
	return list
}

// wanting is a backward pass for the weights' gradients alone.
func wanting(g moe.Backward, w moe.WeightGradients) moe.Backward {
	g.DX, g.DScores, g.DLogits = moe.Tensor{}, moe.Tensor{}, moe.Tensor{}
	g.WeightGradients = w
	return g
}

// forward is a pass with the buffers, whose workspace is today's.
func (b *bench) forward(f moe.Forward) func(*moe.Call) error {
	return func(c *moe.Call) error {
		f.Workspace = b.trial.Args.Workspace
		if b.Histogram == nil {
			return c.Forward(b.trial.Stream(), f)
		}
		return c.ForwardExperts(b.trial.Stream(), f)
	}
}

func (b *bench) backward(g moe.Backward, routed bool) func(*moe.Call) error {
	return func(c *moe.Call) error {
		g.Workspace = b.trial.Back.Workspace
		if routed {
			return c.Backward(b.trial.Stream(), g)
		}
		g.DRouter = moe.Gradient{}
		return c.BackwardExperts(b.trial.Stream(), g)
	}
}

// route gives every token experts by the histogram's shares, and equal scores.
func (b *bench) route(tokens int) error {
	c := b.Config
	shares, sum, used := make(reference.Zipf, c.NumExperts), 0.0, 0
	for e, n := range b.Histogram {
		sum += float64(n)
		shares[e] = sum
		if n > 0 {
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
	runs, err := b.runs("up")
	if err != nil {
		return err
	}
	if err := b.learn(ctx, runs[0]); err != nil {
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
		g.DRouter = moe.Gradient{}
	}
	if err := b.trial.PoisonGradients(g); err != nil {
		return err
	}
	if err := b.backward(g, routed)(b.base.call); err != nil {
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
