package gemm_test

import (
	"fmt"

	"sonicmoe/jit/gemm"
)

// A tiling knows the shared memory of its product, which limits the depth of its ring.
func ExampleTiling() {
	const limit, epilogue = 227 << 10, 32 << 10 // an SM's bytes, and those of two staged tiles of 64 columns
	t := gemm.Tiling{TileN: 256, Stages: 8, GroupM: 8, ClusterM: 2}
	for t.SharedBytes(epilogue) > limit {
		t.Stages--
	}
	fmt.Println(t, t.StageBytes(), t.SharedBytes(epilogue))
	// Output:
	// 128x256 s4 p8 c2 49152 229888
}
