package adapter_test

import (
	"context"
	"fmt"

	"sonicmoe/driver/open"
	"sonicmoe/moe"
	"sonicmoe/moe/checkpoint/adapter"
)

// An adapter that PEFT saved becomes the factors of a layer on a device.
func ExampleOpen() {
	ctx := context.Background()
	f, err := adapter.Open(ctx, "testdata/peft")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer f.Close()
	c, err := f.Config(moe.Config{Hidden: 48, Intermediate: 16, NumExperts: 3, TopK: 2})
	fmt.Println(f.Layout, f.Layers(), c, err)
	dev, err := open.Device(ctx, "emulated")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer dev.Close()
	layer, err := moe.New(ctx, dev, c, moe.WithoutBackward())
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
	memory := moe.NewArena(dev)
	defer memory.Free()
	w := memory.Weights(layer)
	fmt.Println(memory.Err(), f.Load(stream, 1, c, w))
	factor := make([]float32, 3*8*16)
	fmt.Println(moe.Read(stream, w.LoraA2, factor), factor[:2], factor[4*16:][:2])
	// Output:
	// peft [0 1] d=48 n=16 E=3 K=2 w1=concatenated logits=bf16 lora=8 lora-alpha=8.485281374238571 rslora <nil>
	// <nil> <nil>
	// <nil> [-0.12402344 -0.21679688] [0 0]
}
