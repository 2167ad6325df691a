package main

import (
	"context"
	"math"
	"math/rand/v2"

	"sonicmoe/internal/reference"
)

// model predicts the next byte from the bytes before it:
//
//	x = Σ_i table[i][the symbol i places back]
//	x = x + MoE(RMSnorm(x))          in each block
//	logits = RMSnorm(x) · weightᵀ
//
// Everything except the MoE layer runs on the host in float64.
type model struct {
	size   size
	embed  embedding
	blocks []*block
	final  norm
	head   head
}

// block is an MoE layer with its norm. block holds the FP32 weights of the router, and its
// field experts holds the experts' weights.
type block struct {
	norm    norm
	router  *param // [E, d]
	experts experts

	x, rounded []uint16 // the layer's input and the router's weights in the latest pass, as bf16 bits
	ids        []int32
}

// experts is the MoE layer of one block, with the experts' weights.
type experts interface {
	// Forward returns the output for the tokens x [T, d] and the router's weights [E, d], both
	// as bf16 bits. It keeps the inputs for Backward. learning reports whether a Backward
	// follows. Only such a pass uses token rounding.
	Forward(ctx context.Context, x, router []uint16, learning bool) (output, error)
	// Backward must follow a Forward. The parameter do [T, d] is the gradient of Forward's output.
	// dlogits [T, E] holds the gradients of the logits from other losses. Backward adds to the
	// gradients of the experts' weights, which Step resets.
	Backward(ctx context.Context, do, dlogits []float64) (gradients, error)
	// Step updates the experts' weights.
	Step(ctx context.Context, a adam) error
}

// output is the output O [T, d] of a layer, and each token's expert ids [T, K].
type output struct {
	o   []float64
	ids []int32
}

// gradients holds the gradients of x [T, d] and of the router's weights [E, d].
type gradients struct{ x, router []float64 }

// makeExperts creates the layer of one block with the first weights of its experts, as bf16 bits.
type makeExperts func(w reference.Weights) (experts, error)

// newModel creates a model with random weights that depend only on the seed.
func newModel(s size, symbols int, seed uint64, create makeExperts) (*model, error) {
	r := rand.New(rand.NewPCG(seed, 1))
	d := s.layer.Hidden
	m := &model{
		size:  s,
		embed: embedding{table: normal(r, s.context*symbols*d, 1/math.Sqrt(float64(s.context))), context: s.context, symbols: symbols, d: d},
		final: norm{gain: ones(d)},
		head:  head{weight: normal(r, symbols*d, 1/math.Sqrt(float64(d))), d: d},
	}
	for range s.blocks {
		b := &block{norm: norm{gain: ones(d)}, router: normal(r, s.layer.NumExperts*d, 1/math.Sqrt(float64(d)))}
		var err error
		if b.experts, err = create(drawWeights(r, s.layer)); err != nil {
			return nil, err
		}
		m.blocks = append(m.blocks, b)
	}
	return m, nil
}

func normal(r *rand.Rand, n int, deviation float64) *param {
	w := make([]float64, n)
	for i := range w {
		w[i] = deviation * r.NormFloat64()
	}
	return newParam(w)
}

func ones(n int) *param {
	w := make([]float64, n)
	for i := range w {
		w[i] = 1
	}
	return newParam(w)
}

// forward returns the mean cross entropy of a batch, in nats. learning reports whether a
// backward follows.
func (m *model) forward(ctx context.Context, b batch, learning bool) (float64, error) {
	x, err := m.hidden(ctx, b, learning)
	if err != nil {
		return 0, err
	}
	return m.head.forward(x, b.next), nil
}

// hidden returns the input of the head, [T, d].
func (m *model) hidden(ctx context.Context, b batch, learning bool) ([]float64, error) {
	x := m.embed.forward(b)
	for _, block := range m.blocks {
		o, err := block.forward(ctx, x, learning)
		if err != nil {
			return nil, err
		}
		addScaled(o, 1, x)
		x = o
	}
	return m.final.forward(x), nil
}

// backward adds the gradients of the latest batch: the gradient of the cross entropy times
// scale, and the gradient of each block's balance loss times scale and weight.
func (m *model) backward(ctx context.Context, scale, weight float64) error {
	dx := m.final.backward(m.head.backward(scale))
	for i := len(m.blocks) - 1; i >= 0; i-- {
		through, err := m.blocks[i].backward(ctx, dx, scale*weight)
		if err != nil {
			return err
		}
		addScaled(dx, 1, through)
	}
	m.embed.backward(dx)
	return nil
}

// step updates all weights.
func (m *model) step(ctx context.Context, a adam) error {
	params := []*param{m.embed.table, m.final.gain, m.head.weight}
	for _, b := range m.blocks {
		params = append(params, b.norm.gain, b.router)
		if err := b.experts.Step(ctx, a); err != nil {
			return err
		}
	}
	for _, p := range params {
		p.update(a)
	}
	return nil
}

// forward returns MoE(norm(x)).
func (b *block) forward(ctx context.Context, x []float64, learning bool) ([]float64, error) {
	b.x, b.rounded = narrow(b.norm.forward(x)), narrow(b.router.w)
	out, err := b.experts.Forward(ctx, b.x, b.rounded, learning)
	b.ids = out.ids
	return out.o, err
}

// backward returns the gradient of forward's input. The gradient of the balance loss, times
// weight, is passed to the layer as the gradient of the logits.
func (b *block) backward(ctx context.Context, do []float64, weight float64) ([]float64, error) {
	var dlogits []float64
	if weight != 0 {
		d, experts := len(b.norm.gain.w), len(b.router.w)/len(b.norm.gain.w)
		// The layer keeps only the logits of the chosen experts, so all logits are computed
		// again.
		logits := timesTransposed(widen(b.x), widen(b.rounded), len(b.x)/d, experts, d)
		dlogits = newBalance(logits, b.ids, experts).gradient(weight)
	}
	g, err := b.experts.Backward(ctx, do, dlogits)
	if err != nil {
		return nil, err
	}
	addScaled(b.router.grad, 1, g.router)
	return b.norm.backward(g.x), nil
}
