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

// A training step's two passes: the first saves H, the second gives the
// gradient of X and adds that of W2 to an FP32 main gradient. W1 and the router
// are frozen: no buffers, no work.
//
// The layer is that of the package's example; dO is 1 everywhere. By hand: gate
// and up are 1/16, so A = silu(1/16)/16 = 0.00201, and the scores of a token's
// two experts, which give the same, add up to 1. With dA' = 128/16 = 8, dX is
// 64/16·8·(silu'(1/16)/16 + silu(1/16)) = 2.094.
func ExampleCall_Backward() {
	dev, err := emulated.New(emulated.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer dev.Close()
	layer, err := moe.New(context.Background(), dev, moe.Config{Hidden: 128, Intermediate: 64, Experts: 4, TopK: 2}, moe.WithCache(nil))
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
	fmt.Printf("dX of token 0:   %.3f\n", reference.FromBF16(dx[0]))
	fmt.Printf("dW2 of expert 1: %.5f\n", dw2[1*128*64])
	// Output:
	// dX of token 0:   2.094
	// dW2 of expert 1: 0.00201
}

// exampleStep runs both passes over three tokens, and gives dX and dW2.
func exampleStep(dev driver.Device, stream driver.Stream, layer *moe.Layer) (dx []uint16, dw2 []float32, err error) {
	const tokens = 3
	f, err := exampleBuffers(dev, stream, layer, tokens)
	if err != nil {
		return nil, nil, err
	}
	s, g := layer.Config().Shapes(tokens), layer.Config().Gradients(tokens, moe.F32)
	b := moe.Backward{X: f.X, Router: f.Router, W1: f.W1, W2: f.W2, Scores: f.Scores, Experts: f.Experts}
	b.H.Shape, b.DO.Shape, b.DX.Shape, b.DW2.Shape = s.H, g.DO, g.DX, g.DW2
	b.AccumulateDW2 = true
	for _, t := range []*moe.Tensor{&b.H, &b.DO, &b.DX, &b.DW2} {
		if t.Ptr, err = dev.Alloc(t.Shape.Bytes()); err != nil {
			return nil, nil, err
		}
	}
	// One workspace does for both passes, and for all layers of a model.
	b.Workspace.Bytes = layer.Sizes(tokens).BackwardWorkspace
	if b.Workspace.Ptr, err = dev.Alloc(b.Workspace.Bytes); err != nil {
		return nil, nil, err
	}
	f.H, f.Workspace = b.H, b.Workspace
	if err := stream.Fill32(b.DO.Ptr, 0x3f803f80, b.DO.Shape.Bytes()/4); err != nil {
		return nil, nil, err
	}
	if err := stream.Fill32(b.DW2.Ptr, 0, b.DW2.Shape.Bytes()/4); err != nil {
		return nil, nil, err
	}
	call := layer.NewCall()
	if err := call.Forward(stream, f); err != nil {
		return nil, nil, err
	}
	if err := call.Backward(stream, b); err != nil {
		return nil, nil, err
	}
	dx, dw2 = make([]uint16, b.DX.Shape.Elements()), make([]float32, b.DW2.Shape.Elements())
	if err := stream.CopyToHost(trial.Bytes(dx), b.DX.Ptr); err != nil {
		return nil, nil, err
	}
	return dx, dw2, stream.CopyToHost(trial.Bytes(dw2), b.DW2.Ptr)
}
