// Package gemm is the warp-specialised matrix product of Hopper kernels: what
// CUTLASS calls a persistent, warp-specialised, cooperative kernel.
//
// A CTA of 384 threads, one on each SM, has three warpgroups in two roles. The
// load role fills a ring of shared-memory stages, each a tile of A (128 rows)
// and one of B (TileN rows), 64 deep: by TMA alone ([Product.LoadTMA]), or with
// A's rows gathered by cp.async ([Gather]). Two math warpgroups of 64 rows each
// multiply every stage ([MainLoop]), the second one ring behind the first
// ([Stagger]), so that one multiplies while the other is in its [Epilogue],
// which stores through shared memory and TMA ([Store]). A queue of tiles,
// drawn by the load role, feeds both.
//
// [Product] is all of it for grouped products, whose rows of A are sorted by
// expert. Other products (sums over rows, a router, two-term factors) are built
// from the same parts.
package gemm
