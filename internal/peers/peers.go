// Package peers lists the layers that tests and benchmarks measure, with the
// speeds of other implementations.
package peers

import (
	"fmt"
	"strings"

	"sonicmoe/internal/spec"
)

// Speed holds the TFLOPS of a forward and a backward pass. They count 6TKnd and 12TKnd
// operations for T tokens with K experts of width n, and tokens of width d. 0 means not
// measured.
type Speed struct{ Forward, Backward float64 }

// SonicVersion is the version of SonicMoE that was measured, on 2026-11-23.
const SonicVersion = "SonicMoE 0.1.2.post1"

// Row is a layer, with the measured speeds of other implementations.
type Row struct {
	// Name is the model's name, or the size in SonicMoE's paper followed by n, the width of an
	// expert.
	Name string
	// Tokens is T, the number of tokens of one call.
	Tokens int
	Config spec.Config
	// SonicForwardMS and SonicBackwardMS are times of SonicVersion, including its router, in
	// milliseconds. They are the sum of the kernels' times in replays of a CUDA graph, measured
	// on a rested chip: with pauses between short bursts. 0 means not measured.
	SonicForwardMS, SonicBackwardMS float64
	// CuBLAS is the speed of only the experts' products, computed as batched products of equal
	// size. It does not include routing, gather, activation and aggregation.
	CuBLAS Speed
	// Sonic is the speed that follows from SonicForwardMS and SonicBackwardMS. MoMoE,
	// ScatterMoE and Torch (torch._grouped_mm) are the speeds of the whole experts without the
	// router product, by wall time.
	Sonic, MoMoE, ScatterMoE, Torch Speed
}

// All lists the configurations that tests and benchmarks use, with the speeds of other
// implementations.
//
// All speeds were measured on one H200 (132 SMs, CUDA 13.0) in bf16 with SwiGLU. The routing is
// random and almost uniform, x is 0.5·N(0,1), and weights are 0.02·N(0,1). The L2 cache is not
// flushed, and a speed is the median of repeated runs. examples/bench/h200/speed.md has
// SonicMoE's speeds under sustained load.
func All() []Row {
	return []Row{
		row("1.4B n=256", 40960, 768, 256, 128, 8, 0.888, 1.6898, [10]float64{591, 594, 435, 458, 231, 195, 165, 200, 95, 240}),
		row("1.4B n=512", 40960, 768, 512, 64, 4, 0, 0, [10]float64{604, 627, 0, 0, 289, 236, 196, 249, 154, 316}),
		row("1.4B n=1024", 40960, 768, 1024, 32, 2, 0, 0, [10]float64{629, 653, 0, 0, 312, 260, 172, 303, 212, 411}),
		row("7B n=256", 24576, 1536, 256, 128, 8, 0.9934, 1.9079, [10]float64{610, 614, 467, 486, 271, 214, 185, 228, 97, 251}),
		row("7B n=512", 24576, 1536, 512, 64, 4, 0, 0, [10]float64{659, 636, 0, 0, 344, 252, 224, 299, 162, 349}),
		row("7B n=1024", 24576, 1536, 1024, 32, 2, 0.7895, 1.6546, [10]float64{664, 653, 588, 561, 376, 279, 236, 323, 239, 421}),
		row("Qwen3-Next-80B", 32768, 2048, 512, 512, 10, 0, 0, [10]float64{614, 541, 0, 0, 282, 218, 274, 287, 171, 335}),
		row("Qwen3-30B-A3B", 32768, 2048, 768, 128, 8, 3.9224, 8.497, [10]float64{658, 622, 631, 582, 424, 282, 339, 353, 235, 443}),
		row("OLMoE-1B-7B", 32768, 2048, 1024, 64, 8, 0, 0, [10]float64{697, 647, 0, 0, 474, 310, 371, 387, 282, 457}),
		row("30B n=256", 32768, 4096, 256, 256, 16, 0, 0, [10]float64{631, 609, 0, 0, 301, 211, 285, 273, 85, 276}),
		row("30B n=512", 32768, 4096, 512, 128, 8, 0, 0, [10]float64{641, 607, 0, 0, 403, 267, 322, 332, 182, 396}),
		row("30B n=1024", 32768, 4096, 1024, 64, 4, 4.9948, 11.283, [10]float64{663, 611, 660, 585, 478, 310, 377, 391, 288, 466}),
		row("120B n=512", 32768, 4096, 512, 256, 16, 0, 0, [10]float64{647, 651, 0, 0, 399, 257, 359, 343, 151, 349}),
		row("120B n=1024", 32768, 4096, 1024, 128, 8, 0, 0, [10]float64{638, 655, 0, 0, 475, 311, 388, 399, 285, 466}),
		row("120B n=2048", 32768, 4096, 2048, 64, 4, 0, 0, [10]float64{665, 635, 0, 0, 519, 322, 401, 435, 403, 533}),
		row("DeepSeek-V3", 16384, 7168, 2048, 256, 8, 0, 0, [10]float64{647, 591, 0, 0, 0, 0, 0, 0, 367, 434}),
	}
}

// row makes a Row. v holds five pairs (forward, backward) of speeds: CuBLAS, SonicMoE, MoMoE,
// ScatterMoE and torch.
func row(name string, tokens, d, n, e, k int, forwardMS, backwardMS float64, v [10]float64) Row {
	return Row{
		Name:           name,
		Tokens:         tokens,
		Config:         spec.Config{Hidden: d, Intermediate: n, NumExperts: e, TopK: k, TokensHint: tokens},
		SonicForwardMS: forwardMS, SonicBackwardMS: backwardMS,
		CuBLAS: Speed{v[0], v[1]}, Sonic: Speed{v[2], v[3]}, MoMoE: Speed{v[4], v[5]},
		ScatterMoE: Speed{v[6], v[7]}, Torch: Speed{v[8], v[9]},
	}
}

// Find returns the row with a name, and reports whether there is one.
func Find(name string) (Row, bool) {
	for _, r := range All() {
		if r.Name == name {
			return r, true
		}
	}
	return Row{}, false
}

// slice names four rows that stand for all: small and large, wide and narrow layers.
const slice = "7B n=256,30B n=1024,120B n=2048,Qwen3-30B-A3B"

// Select returns the rows with the names in a comma-separated list. "all" selects all rows, and
// "slice" selects four rows that stand for all.
func Select(names string) (list []Row, err error) {
	switch names {
	case "all":
		return All(), nil
	case "slice":
		names = slice
	}
	for name := range strings.SplitSeq(names, ",") {
		r, ok := Find(name)
		if !ok {
			return nil, fmt.Errorf("no layer is named %q", name)
		}
		list = append(list, r)
	}
	return list, nil
}
