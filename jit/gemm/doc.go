// Package gemm emits the warp-specialised matrix product of Hopper kernels. CUTLASS calls such a
// kernel persistent, warp-specialised and cooperative.
//
// One CTA of 384 threads runs on each SM. Its three warpgroups have two roles. The third is the
// load role, which fills a ring of shared-memory stages. A stage holds a tile of A (128 rows) and a
// tile of B (TileN rows), each 64 deep in k. TMA loads both tiles ([Product.TMA]), or cp.async
// gathers the rows of A ([Product.Gather]). The first two warpgroups are the math role: each
// multiplies 64 rows of every stage ([MainLoop]). The second math warpgroup starts one ring later
// than the first ([Stagger]), so that one multiplies while the other is in its [Epilogue]. The
// epilogue stores through shared memory and TMA: each math warpgroup issues its own stores
// ([Store]), or a warp of the load role issues them ([Outlet]). The load role draws tiles from a
// counter that all CTAs share, and publishes them to both roles through a queue in shared memory.
//
// [Product] combines these parts for grouped products, whose rows of A are sorted by expert. Other
// products (sums over rows, a router, factors in two terms) combine the same parts differently.
package gemm
