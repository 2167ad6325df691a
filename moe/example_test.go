package moe_test

import (
	"context"
	"errors"
	"fmt"

	"sonicmoe/driver"
	"sonicmoe/driver/emulated"
	"sonicmoe/moe"
)

// This example runs three tokens through a layer of four experts on the emulated device. For a GPU,
// use open.Device(ctx, "cuda").
//
// Token t is 1 in column t, and the router's weights send it to the experts t and t+1. All other
// weights are 1/16, so all experts give the same output.
func Example() {
	ctx := context.Background()
	dev, err := emulated.New(emulated.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer dev.Close()
	config := moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 4, TopK: 2}
	layer, err := moe.New(ctx, dev, config, moe.WithoutCache())
	if err != nil {
		fmt.Println(err)
		return
	}
	stream, err := dev.NewStream()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer stream.Close()
	const tokens = 3
	memory := moe.NewArena(dev)
	defer memory.Free()
	f := memory.ForwardArgs(layer, tokens)
	f.H = moe.Tensor{} // an inference pass
	f.Weights, f.Workspace = memory.Weights(layer), memory.Workspace(tokens, layer)
	if err := errors.Join(memory.Err(), exampleInputs(stream, f)); err != nil {
		fmt.Println(err)
		return
	}
	call := layer.NewCall() // one for each goroutine
	if err := call.Forward(stream, f); err != nil {
		fmt.Println(err)
		return
	}
	ids, o := make([]int32, tokens*config.TopK), make([]float32, tokens*config.Hidden)
	if err := errors.Join(moe.Read(stream, f.ExpertIDs, ids), moe.Read(stream, f.O, o)); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(config)
	fmt.Println("experts of each token:", ids)
	fmt.Printf("first output: %.4f\n", o[0])
	// Output:
	// d=128 n=64 E=4 K=2 w1=concatenated logits=bf16
	// experts of each token: [0 1 1 2 2 3]
	// first output: 0.0081
}

// exampleInputs fills in tokens and weights.
func exampleInputs(stream driver.Stream, f moe.ForwardArgs) error {
	d := int(f.X.Shape.Dims[1])
	x, router := make([]float32, f.X.Shape.Elements()), make([]float32, f.Router.Shape.Elements())
	for t := range int(f.X.Shape.Dims[0]) {
		x[t*d+t], router[t*d+t], router[(t+1)*d+t] = 1, 1, 0.5
	}
	w1, w2 := make([]float32, f.W1.Shape.Elements()), make([]float32, f.W2.Shape.Elements())
	for _, w := range [][]float32{w1, w2} {
		for i := range w {
			w[i] = 1. / 16
		}
	}
	return errors.Join(moe.Write(stream, f.X, x), moe.Write(stream, f.Router, router), moe.Write(stream, f.W1, w1), moe.Write(stream, f.W2, w2))
}
