package moe_test

import (
	"context"
	"fmt"

	"sonicmoe/driver"
	"sonicmoe/driver/emulated"
	"sonicmoe/moe"
	"sonicmoe/moe/reference"
	"sonicmoe/moe/trial"
)

// Three tokens through a layer of four experts, on the emulated device; for a
// GPU take open.Device(ctx, "cuda").
//
// Token t is 1 in column t, and the router's weights send it to the experts t
// and t+1. All other weights are 1/16, so every expert gives the same.
func Example() {
	ctx := context.Background()
	dev, err := emulated.New(emulated.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer dev.Close()
	config := moe.Config{Hidden: 128, Intermediate: 64, Experts: 4, TopK: 2}
	layer, err := moe.New(ctx, dev, config, moe.WithCache(nil))
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
	buffers, err := exampleBuffers(dev, stream, layer, tokens)
	if err != nil {
		fmt.Println(err)
		return
	}
	call := layer.NewCall() // one for each goroutine
	if err := call.Forward(stream, buffers); err != nil {
		fmt.Println(err)
		return
	}
	if err := stream.Synchronize(ctx); err != nil {
		fmt.Println(err)
		return
	}
	ids, o := make([]int32, tokens*config.TopK), make([]uint16, tokens*config.Hidden)
	if err := stream.CopyToHost(trial.Bytes(ids), buffers.Experts.Ptr); err != nil {
		fmt.Println(err)
		return
	}
	if err := stream.CopyToHost(trial.Bytes(o), buffers.O.Ptr); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(config)
	fmt.Println("experts of each token:", ids)
	fmt.Printf("first output: %.4f\n", reference.FromBF16(o[0]))
	// Output:
	// d=128 n=64 E=4 K=2 w1=concatenated logits=bf16
	// experts of each token: [0 1 1 2 2 3]
	// first output: 0.0081
}

// exampleBuffers allocates and fills what a pass needs: all buffers are the
// caller's. They go with the device.
func exampleBuffers(dev driver.Device, stream driver.Stream, layer *moe.Layer, tokens int) (f moe.Forward, err error) {
	const one, half, sixteenth = 0x3f80, 0x3f00, 0x3d80 // as bf16
	d, s, sizes := layer.Config().Hidden, layer.Config().Shapes(tokens), layer.Sizes(tokens)
	f.X.Shape, f.Router.Shape, f.W1.Shape, f.W2.Shape = s.X, s.Router, s.W1, s.W2
	f.O.Shape, f.Scores.Shape, f.Experts.Shape = s.O, s.Scores, s.Experts // no H: inference
	for _, t := range []*moe.Tensor{&f.X, &f.Router, &f.W1, &f.W2, &f.O, &f.Scores, &f.Experts} {
		if t.Ptr, err = dev.Alloc(t.Shape.Bytes()); err != nil {
			return f, err
		}
	}
	f.Workspace.Bytes = sizes.Workspace
	if f.Workspace.Ptr, err = dev.Alloc(sizes.Workspace); err != nil {
		return f, err
	}
	x, router := make([]uint16, s.X.Elements()), make([]uint16, s.Router.Elements())
	for t := range tokens {
		x[t*d+t], router[t*d+t], router[(t+1)*d+t] = one, one, half
	}
	if err := stream.CopyToDevice(f.X.Ptr, trial.Bytes(x)); err != nil {
		return f, err
	}
	if err := stream.CopyToDevice(f.Router.Ptr, trial.Bytes(router)); err != nil {
		return f, err
	}
	for _, w := range []moe.Tensor{f.W1, f.W2} {
		if err := stream.Fill32(w.Ptr, sixteenth<<16|sixteenth, w.Shape.Bytes()/4); err != nil {
			return f, err
		}
	}
	return f, nil
}
