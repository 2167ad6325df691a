// Package gemm emits the warp-specialised matrix product of Hopper kernels.
// CUTLASS calls such a kernel persistent, warp-specialised and cooperative.
//
// One CTA of 384 threads runs on each SM. Its three warpgroups have two roles. The
// load role fills a ring of shared-memory stages. A stage holds a tile of A (128
// rows) and a tile of B (TileN rows), each 64 deep. TMA loads both
// ([Product.TMA]), or cp.async gathers A's rows ([Product.Gather]). Two math
// warpgroups of 64 rows each multiply every stage ([MainLoop]). The second
// warpgroup starts one ring later than the first ([Stagger]), so that one
// multiplies while the other is in its [Epilogue]. The epilogue stores through
// shared memory and TMA ([Store]). The load role draws tiles from a shared counter
// and publishes them to both roles through a queue.
//
// [Product] combines these parts for grouped products, whose rows of A are sorted
// by expert. Other products (sums over rows, a router, two-term factors) combine
// the same parts differently.
package gemm
