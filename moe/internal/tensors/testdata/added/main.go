// Command added shows what package moe does with a weight that a test added to the
// table of tensors.
package main

import (
	"context"
	"fmt"
	"os"

	"sonicmoe/driver/emulated"
	"sonicmoe/moe"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	var id moe.TensorID
	for _, w := range moe.WeightIDs() {
		if w.String() == "B1Scale" {
			id = w
		}
	}
	dev, err := emulated.New(emulated.Options{})
	if err != nil {
		return err
	}
	defer dev.Close()
	c := moe.Config{Hidden: 64, Intermediate: 64, NumExperts: 4, TopK: 2, Bias: true}
	costs, err := moe.Estimate(c, moe.Workload{Tokens: 8})
	if err != nil {
		return err
	}
	layer, err := moe.New(ctx, dev, c)
	if err != nil {
		return err
	}
	memory := moe.NewArena(dev)
	f, g := memory.ForwardArgs(layer, 8), memory.Gradients(layer, moe.BF16)
	f.Weights, f.Workspace = memory.Weights(layer), memory.Workspace(8, layer)
	if err := memory.Err(); err != nil {
		return err
	}
	fmt.Println("estimate:", costs.Weights)
	fmt.Println("arena:", f.Weight(id).Shape, g.Gradient(id).Shape)
	stream, err := dev.NewStream()
	if err != nil {
		return err
	}
	call := layer.NewCall()
	fmt.Println("given:", call.Forward(stream, f))
	weight := *f.Weight(id)
	f.Weight(id).Ptr = f.O.Ptr
	fmt.Println("overlapping:", call.Forward(stream, f) != nil)
	*f.Weight(id) = moe.Tensor{}
	fmt.Println("absent:", call.Forward(stream, f))
	weight.Shape.Type = moe.BF16
	*f.Weight(id) = weight
	fmt.Println("of another type:", call.Forward(stream, f))
	return nil
}
