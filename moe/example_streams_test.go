package moe_test

import (
	"context"
	"errors"
	"fmt"

	"sonicmoe/driver"
	"sonicmoe/driver/emulated"
	"sonicmoe/moe"
)

// Two passes of one layer run at the same time, each on its own stream. They share the layer and
// its weights, but each has its own Call, tensors and workspace.
func ExampleLayer_NewCall() {
	ctx := context.Background()
	dev, err := emulated.New(emulated.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer dev.Close()
	layer, err := moe.New(ctx, dev, moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 4, TopK: 2}, moe.WithoutCache())
	if err != nil {
		fmt.Println(err)
		return
	}
	memory := moe.NewArena(dev)
	defer memory.Free()
	weights := memory.Weights(layer)
	var streams [2]driver.Stream
	var passes [2]moe.ForwardArgs
	for i := range passes {
		stream, err := dev.NewStream()
		if err != nil {
			fmt.Println(err)
			return
		}
		defer stream.Close()
		f := memory.ForwardArgs(layer, 2+i) // two tokens, then three
		f.H, f.Weights, f.Workspace = moe.Tensor{}, weights, memory.Workspace(2+i, layer)
		if err := errors.Join(memory.Err(), exampleInputs(stream, f), stream.Synchronize(ctx)); err != nil {
			fmt.Println(err) // both passes read the weights: neither begins before they are written
			return
		}
		streams[i], passes[i] = stream, f
	}
	for i, f := range passes {
		if err := layer.NewCall().Forward(streams[i], f); err != nil {
			fmt.Println(err)
			return
		}
	}
	for i, f := range passes {
		ids := make([]int32, f.ExpertIDs.Shape.Elements())
		if err := moe.Read(streams[i], f.ExpertIDs, ids); err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(ids)
	}
	// Output:
	// [0 1 1 2]
	// [0 1 1 2 2 3]
}

// This example creates a layer with given tilings, such as another process's Layer.Tilings.
// Products without a given tiling keep the tiling of tuning or of the cost model.
func ExampleWithTilings() {
	dev, err := emulated.New(emulated.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer dev.Close()
	config := moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 4, TopK: 2}
	tilings := map[string]string{"down": "128x128 s6 p8 c1"}
	layer, err := moe.New(context.Background(), dev, config, moe.WithoutCache(), moe.WithTilings(tilings))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("down:", layer.Tilings()["down"], "up:", layer.Tilings()["up"])
	tilings["down"] = "128x128 s99 p8 c1"
	_, err = moe.New(context.Background(), dev, config, moe.WithoutCache(), moe.WithTilings(tilings))
	fmt.Println(err)
	// Output:
	// down: 128x128 s6 p8 c1 up: 128x128 s6 p8 c2
	// Tiles of down.Stages is 99, must be 3 to 6 for 128 columns
}
