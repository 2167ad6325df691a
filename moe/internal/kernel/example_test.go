package kernel_test

import (
	"fmt"

	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/jit/gemm"
	"sonicmoe/moe/internal/kernel"
)

// The cost model picks a tiling for each product. The kernel is built with the tiling, and
// tells what its launches need.
func Example() {
	c := spec.Config{Hidden: 1536, Intermediate: 256, NumExperts: 128, TopK: 8, TokensHint: 24576}
	choice := kernel.Choose(c, driver.H200())
	for _, p := range kernel.Kernels.Products() {
		fmt.Println(p, choice[p.ID])
	}
	down, err := kernel.Down{Config: c, Tiling: choice[spec.ProductDown]}.Build()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(down.Name, down.Threads == gemm.Threads, down.SharedBytes <= driver.H200().SharedBytesPerCTA)
	// Output:
	// up 128x256 s4 p8 c2
	// down 128x256 s4 p8 c1
	// dh 128x128 s6 p8 c1
	// dw2 128x256 s4 p1 c1
	// dw1 128x256 s4 p1 c1
	// dx 128x256 s4 p8 c1
	// moe_down true true
}
