package moe_test

import (
	"context"
	"errors"
	"fmt"

	"sonicmoe/driver"
	"sonicmoe/driver/emulated"
	"sonicmoe/moe"
)

// This example runs the two passes of a training step. The first saves H. The second computes the
// gradient of X, and adds the gradient of W2 to an FP32 main gradient. W1 and the router are
// frozen: their gradients have no buffers and cost nothing.
//
// The layer is the layer of the package's example, and dO is 1 everywhere. A calculation by hand:
// gate and up are 1/16, so A = silu(1/16)/16 = 0.00201. A token's two experts give the same output,
// and their scores add up to 1. With dA' = 128/16 = 8, dX is 64/16·8·(silu'(1/16)/16 + silu(1/16))
// = 2.094.
func ExampleCall_Backward() {
	dev, err := emulated.New(emulated.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer dev.Close()
	layer, err := moe.New(context.Background(), dev, moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 4, TopK: 2}, moe.WithoutCache())
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
	dx, dw2, err := exampleStep(dev, stream, layer)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("dX of token 0:   %.3f\n", dx[0])
	fmt.Printf("dW2 of expert 1: %.5f\n", dw2[1*128*64])
	// Output:
	// dX of token 0:   2.094
	// dW2 of expert 1: 0.00201
}

// exampleStep runs both passes over three tokens, and returns dX and dW2.
func exampleStep(dev driver.Device, stream driver.Stream, layer *moe.Layer) (dx, dw2 []float32, err error) {
	const tokens = 3
	memory := moe.NewArena(dev)
	defer memory.Free()
	f := memory.ForwardArgs(layer, tokens)
	// One workspace is enough for both passes, and for all layers of a model.
	f.Weights, f.Workspace = memory.Weights(layer), memory.Workspace(tokens, layer)
	b := f.BackwardArgs() // the same buffers, without gradients so far
	b.DO, b.DX = memory.Like(f.O), memory.Like(f.X)
	b.DW2 = moe.Gradient{Tensor: memory.Gradients(layer, moe.F32).DW2.Tensor, Accumulate: true}
	if err := errors.Join(memory.Err(), exampleInputs(stream, f)); err != nil {
		return nil, nil, err
	}
	do, call := make([]float32, b.DO.Shape.Elements()), layer.NewCall()
	for i := range do {
		do[i] = 1
	}
	dx, dw2 = make([]float32, b.DX.Shape.Elements()), make([]float32, b.DW2.Shape.Elements())
	return dx, dw2, errors.Join(
		moe.Write(stream, b.DO, do), moe.Write(stream, b.DW2.Tensor, dw2), // all of DW2 becomes 0
		call.Forward(stream, f), call.Backward(stream, b),
		moe.Read(stream, b.DX, dx), moe.Read(stream, b.DW2.Tensor, dw2))
}
