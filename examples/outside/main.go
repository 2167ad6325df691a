// Command outside trains one layer from a module of its own. A replace line in its go.mod says
// where sonicmoe is.
//
// The device computes the layer's forward and backward pass. The program computes the loss and
// the update of the weights on the host.
//
//	cd examples/outside && go run .
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
	tokens = 32
	d, n   = 128, 64
	steps  = 10
	rate   = 4
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "outside:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	dev, err := open.Device(ctx, "emulated") // or "cuda"
	if err != nil {
		return err
	}
	defer dev.Close()
	layer, err := moe.New(ctx, dev, moe.Config{Hidden: d, Intermediate: n, NumExperts: 4, TopK: 2})
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
	f := memory.ForwardArgs(layer, tokens)
	f.Weights, f.Workspace = memory.Weights(layer), memory.Workspace(tokens, layer)
	b := f.BackwardArgs()
	b.DO, b.WeightGradients = memory.Like(f.O), memory.Gradients(layer, moe.F32)
	if err := memory.Err(); err != nil {
		return err
	}

	random := rand.New(rand.NewPCG(1, 2))
	params := []*param{{weight: f.Router, grad: b.DRouter.Tensor}, {weight: f.W1, grad: b.DW1.Tensor}, {weight: f.W2, grad: b.DW2.Tensor}}
	for _, p := range params {
		inputs := p.weight.Shape.Dims[p.weight.Shape.Rank-1]
		p.value = normal(random, p.weight.Shape.Elements(), 1/math.Sqrt(float64(inputs)))
		err = errors.Join(err, moe.Write(stream, p.weight, p.value))
	}
	x, o, do := normal(random, tokens*d, 1), make([]float32, tokens*d), make([]float32, tokens*d)
	if err = errors.Join(err, moe.Write(stream, f.X, x)); err != nil {
		return err
	}
	call := layer.NewCall()
	for step := range steps {
		if err := errors.Join(call.Forward(stream, f), moe.Read(stream, f.O, o)); err != nil {
			return err
		}
		var loss float64
		for i := range o { // the target that the layer learns is a sine
			e := o[i] - float32(math.Sin(float64(x[i])))
			loss += float64(e*e) / float64(len(o))
			do[i] = 2 * e / float32(len(o))
		}
		fmt.Printf("step %d: loss %.4f\n", step, loss)
		err := errors.Join(moe.Write(stream, b.DO, do), call.Backward(stream, b))
		for _, p := range params {
			err = errors.Join(err, p.step(stream))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// param is a weight with its gradient, and the weight's value in FP32.
type param struct {
	weight, grad moe.Tensor
	value        []float32
}

// step moves the weight against its gradient, and copies it to the device.
func (p *param) step(s driver.Stream) error {
	g := make([]float32, len(p.value))
	if err := moe.Read(s, p.grad, g); err != nil {
		return err
	}
	for i := range g {
		p.value[i] -= rate * g[i]
	}
	return moe.Write(s, p.weight, p.value)
}

func normal(random *rand.Rand, n int64, deviation float64) []float32 {
	values := make([]float32, n)
	for i := range values {
		values[i] = float32(deviation * random.NormFloat64())
	}
	return values
}
