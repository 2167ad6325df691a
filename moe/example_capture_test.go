package moe_test

import (
	"context"
	"errors"
	"fmt"

	"sonicmoe/driver"
	"sonicmoe/driver/emulated"
	"sonicmoe/moe"
)

// examplePass returns a layer on the emulated device and a pass over three tokens, with its inputs
// and weights. done frees all of it.
func examplePass() (layer *moe.Layer, stream driver.Stream, f moe.ForwardArgs, done func(), err error) {
	dev, err := emulated.New(emulated.Options{})
	if err != nil {
		return nil, nil, f, nil, err
	}
	memory := moe.NewArena(dev)
	done = func() { _ = errors.Join(memory.Free(), dev.Close()) }
	layer, err = moe.New(context.Background(), dev, moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 4, TopK: 2}, moe.WithoutCache())
	if err != nil {
		return nil, nil, f, done, err
	}
	if stream, err = dev.NewStream(); err != nil {
		return nil, nil, f, done, err
	}
	f = memory.ForwardArgs(layer, 3)
	f.H = moe.Tensor{} // an inference pass
	f.Weights, f.Workspace = memory.Weights(layer), memory.Workspace(3, layer)
	return layer, stream, f, done, errors.Join(memory.Err(), exampleInputs(stream, f))
}

// This example captures a pass once and launches it as a graph, which is one call of the driver for
// each pass. The graph reads and writes the buffers of the capture, with their content at the
// launch.
func ExampleCall_Forward_graph() {
	layer, stream, f, done, err := examplePass()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer done()
	if err := errors.Join(stream.BeginCapture(), layer.NewCall().Forward(stream, f)); err != nil {
		fmt.Println(err)
		return
	}
	graph, err := stream.EndCapture()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer graph.Close()
	x, o := make([]float32, f.X.Shape.Elements()), make([]float32, f.O.Shape.Elements())
	for _, scale := range []float32{1, 0} {
		for i := range 3 {
			x[128*i+i] = scale // token i
		}
		if err := errors.Join(moe.Write(stream, f.X, x), graph.Launch(stream), moe.Read(stream, f.O, o)); err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("first output: %.4f\n", o[0])
	}
	// Output:
	// first output: 0.0081
	// first output: 0.0000
}

// Route only chooses experts, and ForwardExperts runs given experts. Between the two calls, the
// caller may change the choice: here each token uses only its first expert.
func ExampleCall_ForwardExperts() {
	layer, stream, f, done, err := examplePass()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer done()
	call := layer.NewCall()
	scores, ids, o := make([]float32, 6), make([]int32, 6), make([]float32, f.O.Shape.Elements())
	if err := errors.Join(call.Route(stream, f), moe.Read(stream, f.Scores, scores), moe.Read(stream, f.ExpertIDs, ids)); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("the router's: %v, %.4f\n", ids, scores)
	for i := 0; i < len(scores); i += 2 {
		scores[i], scores[i+1] = 2, 0 // the first expert counts twice, and the second not at all
	}
	if err := errors.Join(moe.Write(stream, f.Scores, scores), call.ForwardExperts(stream, f), moe.Read(stream, f.O, o)); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("first output: %.4f\n", o[0])
	// Output:
	// the router's: [0 1 1 2 2 3], [0.6225 0.3775 0.6225 0.3775 0.6225 0.3775]
	// first output: 0.0161
}
