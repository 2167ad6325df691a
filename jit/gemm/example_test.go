package gemm_test

import (
	"fmt"

	"sonicmoe/jit/gemm"
)

// ExampleTiling prints the shared memory that a product takes, which limits the depth of its ring.
func ExampleTiling() {
	const limit, epilogue = 227 << 10, 32 << 10 // an SM's bytes, and the bytes of two staged sub-tiles
	t := gemm.Tiling{TileN: 256, Stages: 8, GroupM: 8, ClusterM: 2}
	for t.SharedBytes(epilogue) > limit {
		t.Stages--
	}
	fmt.Println(t, t.StageBytes(), t.SharedBytes(epilogue))
	// Output:
	// 128x256 s4 p8 c2 49152 229888
}
