// Package kernel holds the kernels of an MoE layer's experts and the one list of
// all that a layer launches, [Kernels]. Those of the forward pass and dX have a
// file each here; kernel/dh, kernel/dw and kernel/drouter are the others of the
// backward pass, moe/route the router and what routing needs.
//
// The forward pass is five launches. Notation: T tokens, d hidden, n
// intermediate, E experts, K experts a token, R = T·K rows.
//
//	Router     logits = X·Wrᵀ, top-K, scores of the K, counts for each CTA
//	Plan       expert offsets, packed order of the rows, table of row pairs
//	Up         H = X[rows]·W1ᵀ and A = silu(gate)·up, rows gathered as loaded
//	Down       Y = A·W2ᵀ
//	Aggregate  O[t] = Σ_k score·Y[row of (t,k)]
//
// Of few tokens package decode makes Up and Down, with the same bits.
//
// Shared experts are a layer of one expert that every token goes to, of the same
// kernels behind EveryToken's plan; Aggregate adds their rows last.
//
// With expert ids from elsewhere Count takes the router's place. Where losses of
// the router are asked for, Losses and LossSum follow it. With few tokens the
// kernels of package decode take the place of Up and Down.
//
// The backward pass runs Count and Plan again, with each row's (token, slot)
// pair, then:
//
//	DH          dA' = dO[rows]·W2; in its epilogue dH, A' = score·A and parts of the scores' gradient
//	Scores      the scores' gradient, and through the softmax the chosen logits' (package dh)
//	Plan        the experts' splits, heavy experts first (package dw)
//	DW          dW2[e] = Σ_p dO[gather[p]]ᵀ·A'[p] and dW1[e] = Σ_p dH[p]ᵀ·X[gather[p]], rows gathered as loaded
//	DX          dX~ = dH·W1, with the router's part as a rank-1 term of each row
//	Aggregate   dX[t] = Σ_k dX~[row of (t,k)], and what ExtraRows made
//	DRouter     dW_r = dlogitsᵀ·X over ranges of tokens, Sum adds the ranges (package drouter)
//	ExtraRows   what dense gradients of the logits add to the tokens' gradient (package drouter)
//
// Products run one CTA an SM: two math warpgroups and one that loads, 168
// registers a thread (see [sonicmoe/jit/pipeline.Run] for why not more). In
// clusters of two CTAs each loads half of the weights into both. Up always runs
// so; Down, DH and narrow DX may, and the cost model of moe/tiles takes clusters
// for Down and DH where their sums are long.
//
// # Reading a kernel
//
// From the operands to the stores, in this order; gemm is jit/gemm, and
// moe/weights says how the weights lie in memory:
//
//	Up      up.go, gemm/product.go (roles), gemm/load.go (Gather), gemm/mainloop.go, gemm/store.go
//	Down    down.go, gemm/product.go, gemm/load.go (LoadTMA), gemm/mainloop.go, gemm/store.go
//	DX      dx.go, gemm/product.go, gemm/load.go (LoadTMA), gemm/mainloop.go, gemm/store.go
//	DH      dh/dh.go, gemm/product.go, gemm/load.go (Gather), gemm/mainloop.go, dh/epilogue.go
//	DW      dw/dw.go, dw/items.go (the queue), dw/load.go, dw/math.go, dw/store.go; dw/join.go adds splits
//	Router  route/router.go, gemm/mainloop.go, route/topk.go, route/topkkey.go, route/sortnet.go
//
// # Glossary
//
// Words are CUTLASS's where it has one.
//
//	row        a (token, expert) pair. Packed rows are sorted by expert, as Plan orders them
//	row pair   256 packed rows of one expert, two row tiles: an entry of Plan's table
//	tile       128 rows (TileM) x TileN columns of a product's result
//	k-tile     64 elements of the sum (tile.K), four wgmma steps of 16: what a stage holds
//	stage      one buffer of a ring, with a full and an empty mbarrier
//	ring       stages between a producer role and consumer roles, named in reports ("ab", "queue")
//	role       what some warpgroups of a CTA do: "load" (the producer), "math" (the consumers)
//	stagger    the math warpgroups' distance, a ring, so that one multiplies under the other's epilogue
//	epilogue   what a math warpgroup does with a tile's sums: activation, gradients, stores
//	sub-tile   64 x 64 of a tile, what the epilogue stores at a time
//	atom       64 columns of an MN-major tile, which lie side by side in 128 bytes
//	K-major, MN-major
//	           an operand whose neighbours in memory lie along the sum, or across it
//	group      GroupM row tiles that run together and share weights in the L2 cache
//	           (Triton's GROUP_SIZE_M)
//	cluster    ClusterM CTAs that multicast weights to each other
//	tiling     TileN, stages, group and cluster of a product: a point of its search space
//	ticket     the number of a tile, drawn from a counter by a persistent CTA that is free
//	split      part of a heavy expert's rows in a weight's gradient, whose partial sums are
//	           added in order (not [sonicmoe/jit/gemm.Split], an FP32 factor as two bf16 terms)
package kernel
