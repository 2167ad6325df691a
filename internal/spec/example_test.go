package spec_test

import (
	"fmt"

	"sonicmoe/internal/spec"
)

func Example() {
	layer := spec.Config{Hidden: 1536, Intermediate: 256, NumExperts: 128, TopK: 8}
	if err := layer.Check(); err != nil {
		fmt.Println(err)
		return
	}
	const tokens = 24576
	fmt.Println(layer)
	fmt.Println("W1", layer.Shapes(tokens).W1)
	for _, m := range spec.SavedByMethod(layer, tokens)[:2] {
		fmt.Printf("%s keeps %d MiB\n", m.Method, m.Bytes()>>20)
	}
	least := spec.H200.Roofline(spec.ForwardWork(layer, tokens))
	fmt.Printf("forward takes at least %.2f ms\n", least.Seconds()*1e3)
	layer.Hidden = 100
	fmt.Println(layer.Check())
	// Output:
	// d=1536 n=256 E=128 K=8 w1=concatenated logits=bf16
	// W1 bf16 [128 512 1536]
	// SonicMoE keeps 267 MiB
	// MoMoE keeps 843 MiB
	// forward takes at least 0.76 ms
	// Config.Hidden is 100, must be a multiple of 16, at least 16
}
