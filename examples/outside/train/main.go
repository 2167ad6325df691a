// Command train fits two residual layers to a function, from a module of its
// own, as yours would be: x1 = x0 + MoE(x0), x2 = x1 + MoE(x1).
//
// The idea: forward saves little, backward takes the same buffers and gives the
// gradients that are named, and a coefficient adds the load-balancing loss. The
// device computes the layers; this program adds, differentiates the loss and
// steps on the host, with FP32 main weights.
//
//	go run ./train
package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"

	"sonicmoe/driver"
	"sonicmoe/driver/open"
	"sonicmoe/moe"
)

const (
	tokens  = 32
	d, n    = 128, 64
	experts = 4
	steps   = 12
	rate    = 1
	balance = 0.001
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "train:", err)
		os.Exit(1)
	}
}

// block is one layer of the model, its buffers, and its weights as they learn.
type block struct {
	call    *moe.Call
	stream  driver.Stream
	forward moe.Forward
	moe.Backward
	params []param
	losses [2]float32 // balance and z
}

// param is a weight, its gradient, and its value in FP32.
type param struct {
	weight moe.Tensor
	moe.Gradient
	value []float32
}

// newBlock makes one, with random weights of the size that keeps activations.
func newBlock(memory *moe.Arena, stream driver.Stream, layer *moe.Layer, workspace moe.Buffer, random *rand.Rand) (*block, error) {
	f := memory.Forward(layer, tokens)
	f.Weights, f.Workspace, f.Logits = memory.Weights(layer), workspace, memory.Tensor(layer.Shapes(tokens).Logits)
	b := f.Backward()
	b.DO, b.DX, b.WeightGradients = memory.Like(f.O), memory.Like(f.X), memory.Gradients(layer, moe.F32)
	b.Balance, b.RouterLosses = balance, memory.Tensor(layer.Config().Gradients(tokens, moe.F32).RouterLosses)
	k := &block{call: layer.NewCall(), stream: stream, forward: f, Backward: b, params: []param{
		{weight: f.Router, Gradient: b.DRouter}, {weight: f.W1, Gradient: b.DW1}, {weight: f.W2, Gradient: b.DW2}}}
	err := memory.Err()
	for i := range k.params {
		p := &k.params[i]
		p.value = make([]float32, p.weight.Shape.Elements())
		in := float64(p.weight.Shape.Dims[p.weight.Shape.Rank-1])
		for j := range p.value {
			p.value[j] = float32(random.NormFloat64() / math.Sqrt(in))
		}
		err = errors.Join(err, moe.Write(stream, p.weight, p.value))
	}
	return k, err
}

// up gives x + MoE(x).
func (k *block) up(x []float32) ([]float32, error) {
	o := make([]float32, len(x))
	err := errors.Join(moe.Write(k.stream, k.X, x), k.call.Forward(k.stream, k.forward), moe.Read(k.stream, k.forward.O, o))
	return add(o, x), err
}

// down gives the gradient of x from that of x + MoE(x), and leaves the weights'.
func (k *block) down(g []float32) ([]float32, error) {
	dx := make([]float32, len(g))
	err := errors.Join(moe.Write(k.stream, k.DO, g), k.call.Backward(k.stream, k.Backward),
		moe.Read(k.stream, k.DX, dx), moe.Read(k.stream, k.RouterLosses, k.losses[:]))
	return add(dx, g), err
}

// step goes down the gradients.
func (k *block) step() error {
	for _, p := range k.params {
		g := make([]float32, len(p.value))
		if err := moe.Read(k.stream, p.Tensor, g); err != nil {
			return err
		}
		for i := range g {
			p.value[i] -= rate * g[i]
		}
		if err := moe.Write(k.stream, p.weight, p.value); err != nil {
			return err
		}
	}
	return nil
}

func run(ctx context.Context) error {
	dev, err := open.Device(ctx, "emulated") // or "cuda"
	if err != nil {
		return err
	}
	defer dev.Close()
	layer, err := moe.New(ctx, dev, moe.Config{Hidden: d, Intermediate: n, NumExperts: experts, TopK: 2})
	if err != nil {
		return err
	}
	stream, err := dev.NewStream()
	if err != nil {
		return err
	}
	defer stream.Close()
	memory := moe.NewArena(dev)
	defer memory.Free()
	random := rand.New(rand.NewPCG(1, 2))
	workspace := memory.Workspace(tokens, layer) // one does for both blocks
	first, err1 := newBlock(memory, stream, layer, workspace, random)
	second, err2 := newBlock(memory, stream, layer, workspace, random)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	x, want := data(random)
	for s := range steps {
		loss, err := step(first, second, x, want)
		if err != nil {
			return err
		}
		fmt.Printf("step %2d: loss %.4f, balance %.3f and %.3f\n", s, loss, first.losses[0], second.losses[0])
	}
	return nil
}

// step is a pass forward, one backward, and a step of all weights. The loss is
// the mean square of what is missing.
func step(first, second *block, x, want []float32) (loss float64, err error) {
	x1, err1 := first.up(x)
	x2, err2 := second.up(x1)
	g := make([]float32, len(x2))
	for i := range g {
		e := x2[i] - want[i]
		g[i] = 2 * e / float32(len(g))
		loss += float64(e*e) / float64(len(g))
	}
	g, err3 := second.down(g)
	_, err4 := first.down(g)
	return loss, errors.Join(err1, err2, err3, err4, first.step(), second.step())
}

// data are random tokens, and what the model is to make of them.
func data(random *rand.Rand) (x, want []float32) {
	x, want = make([]float32, tokens*d), make([]float32, tokens*d)
	for i := range x {
		x[i] = float32(random.NormFloat64())
		want[i] = x[i] + float32(math.Sin(float64(2*x[i])))
	}
	return x, want
}

func add(to, from []float32) []float32 {
	for i, v := range from {
		to[i] += v
	}
	return to
}
