// Package kernel has the kernels of an MoE layer's experts, and the lists of the kernels of a layer
// ([Kernels]) and of its shared experts ([SharedKernels]). The kernels of the experts' forward pass
// and dX have a file each here. The packages below this one have the other kernels: decode for
// small batches, dh, dw, bias and drouter. The packages under moe/internal/route have the router
// and the kernels that order rows.
//
// Notation: T tokens, d hidden, n intermediate, E experts, K experts a token, R = T·K rows,
// act(gate, up) the experts' activation, or act(x) without a gate.
//
// The forward pass is five launches:
//
//	Router     logits = X·Wrᵀ, top-K, scores of the K, counts of each CTA's tokens by expert
//	Plan       expert offsets, packed order of the rows, table of row pairs
//	Up         H = X[rows]·W1ᵀ + b1 and A = act(gate, up), rows gathered as loaded
//	Down       Y = A·W2ᵀ + b2
//	Aggregate  O[t] = Σ_k score·Y[row of (t,k)]
//
// Router also chooses the experts if [choose.InRouter] reports true. Otherwise the routing has two
// launches: Router with LogitsOnly, then FromLogits, which reads the logits that Forward keeps.
// With an FP32 router, Terms runs before the router's product, and in backward before ExtraRows.
//
// Package decode has another Up and Down for small batches. SmallBatchLogits or ChainLogits
// computes the logits, and another kernel chooses the experts. The bits are the same:
//
//	1 token, 3 launches         ChainLogits, SingleUp, which chooses, SingleDown, which sums over the experts
//	up to 8, 4 launches         ChainLogits, Up, which chooses and writes the table, Down, Aggregate
//	up to 64, 5 launches        SmallBatchLogits, Choose, which plans too, Up, Down, Aggregate
//	to choose.MaxByWarps, 6     SmallBatchLogits, ChooseRanges, Plan, Up, Down, Aggregate
//
// All four rows need a layer whose Router chooses the experts. The sums of SmallBatchLogits must
// fit the memory of Y, which is 2·K·d bytes a token. They are 4·E bytes a token. For the second row
// they are [choose.ChainBytes], up to 16·E bytes a token. The first two rows need
// [choose.ChoosesInProducts]: no FP32 router, and no scores on the input. The first row also needs
// [choose.HasSingle]: weights without InOut. Packed weights also need [decode.HasSingleUnits]. A
// pass that a row does not cover uses the next row. A pass that no row covers runs Router and Plan.
// If Router does not choose, it runs SmallBatchLogits, FromLogits and Plan.
//
// A layer of packed weights runs one more kernel after the plan. Unpack writes the values of the
// weights of experts with rows to the workspace, and the other kernels read them there. Kernels
// that read units (see package fragments) do not need Unpack. The first two rows of the table are
// for plain weights and for units. In a large batch without a list, Up runs at the same time as
// Unpack, if H is not kept and HasBeside reports true. Each SM then has one CTA of Up and one of
// Unpack, which has the registers that Up leaves free. The load role of Up waits for each expert's
// weights (gemm.Await). Up ends after Unpack, so Down waits only for Up.
//
// A layer with an adapter (LoRA) runs the kernels of large batches for every number of tokens.
// Small products, LoRA, multiply the rows by one factor. Up, Down, DH and DX go on with k-tiles of
// their results and the other factor (gemm.Extra). The factors' gradients are DW of smaller layers
// (package dw). The launches, where a pass has LoRA:
//
//	Pad                                 both passes, if the rank is no multiple of 8
//	LoRA A1, Up, LoRA A2, Down          forward
//	LoRA B2, DH                         backward, for every gradient
//	Plan, Scale, DW B2, DW A2           the gradients of B2 and A2, with the Plan of package dw
//	LoRA B1                             for the gradients of A1 and B1, and for DX
//	Plan, DW A1, LoRA A1, DW B1, DX     the gradients of A1 and B1, then dX~
//	Plan, Scale, Both B2, Sum           in the place of LoRA B2 and DW B2, if the rank is 16 or less
//	                                    (see dw.ReadsOnce)
//	Plan, Both B1, Sum                  in the place of LoRA B1 and DW B1, in the same layers
//	Unpad                               after each gradient of a factor, if the rank is no multiple of 8
//
// A layer with a table of adapters runs Adapt after each Up and each Down, of every batch. It adds
// the products of the tokens' adapters to H, A and Y. Up to 64 tokens have the launches of the
// third row of the table, and two of Adapt. A single token of plain weights has the launches of the
// first row, and one of AdaptSingle between SingleUp and SingleDown.
//
// If expert ids come from the caller, Count runs in place of the router, also for small batches. A
// list of tokens and experts has another Count, Plan and Aggregate, and ByToken, which finds the
// rows of each token. Rounding makes such a list after Router, with the kernels Keys, Cutoff and
// List of package rounding. That list is sorted, so that one kernel, PlanSorted, plans it.
//
// Shared experts are a layer with one expert, which every token has. They have three more launches:
// EveryToken, which plans, and the same Up and Down. Aggregate or SingleDown adds their rows last.
//
// These are the launches of the backward pass, in order. A pass launches a kernel only if its
// result is wanted:
//
//	Count, Plan     the rows again, with the (token, slot) pair of each row
//	Unpack          the values of packed weights, which have no gradients
//	DH              dA' = dO[rows]·W2; its epilogue computes dH, A' = score·A and parts of the scores' gradient
//	Dot             b2's part of the scores' gradient (package bias)
//	DScores         the gradients of the scores, and through the softmax of the chosen logits (package dh)
//	bias.Sum        db1 from the sums of dH's columns
//	Scores, DRouter  db2: the scores by expert, and their product with dO (packages bias and drouter)
//	Plan            the experts' splits, heavy experts first (package dw)
//	DW              dW2[e] = Σ_p dO[gather[p]]ᵀ·A'[p], then dW1[e] = Σ_p dH[p]ᵀ·X[gather[p]], rows gathered as loaded
//	DX              dX~ = dH·W1, with the router's part as a rank-1 term of each row
//	Losses          the gradients of the router's losses on the logits; LossSum adds the losses (package training)
//	DLogits         the logits' gradients, if scores are not a softmax over the chosen (package training)
//	RoundedDLogits  the gradients of all logits after rounding (package training)
//	ExtraRows       the part of dX from dense gradients of the logits (package drouter)
//	Sum             dX[t] = Σ_k dX~[row of (t,k)] plus the row of ExtraRows: Aggregate with weights of 1
//	DRouter, Sum    dW_r = dlogitsᵀ·X over ranges of tokens, and the sum of the ranges (package drouter)
//	ExpertSums      the gradients of the router's bias and of the experts' scales (package training)
//
// Between the passes of a training step, Loads counts the tokens that chose each expert, and
// BalanceBias moves the selection bias by these counts (package training).
//
// A product runs one CTA on each SM. For a single token and small experts, an SM has one CTA of the
// up-projection and one of the down-projection. The products of large batches have two math
// warpgroups and one load warpgroup, with 168 registers a thread. [sonicmoe/jit/pipeline.Run] has
// the reason for this limit. In clusters of two CTAs, each CTA loads half of the weights into both.
// The cost model of moe/internal/tiles always uses clusters for Up, and for Down, DH and DX if
// their sums are long.
//
// # Reading a kernel
//
// Begin with the packages that all kernels share: jit/kernel.go and moe/internal/registry (a
// kernel's parameters, launch and row in the list), jit/pipeline (roles, rings, barriers), jit/tile
// (fragments, descriptors, tensor maps, copies), jit/schedule (queues, tiles), moe/activation
// (act), moe/internal/weights (layouts of weights and biases, and their loads) and
// moe/internal/lanes (sums over a warp). The rest of each kernel is in at most five files, which
// are here in the order from operands to stores. gemm is jit/gemm; a name without a folder is in
// this package:
//
//	Up      up.go, gemm/product.go, gemm/load.go (Gather), gemm/await.go, gemm/math.go
//	Down    down.go, gemm/product.go, gemm/load.go (TMA), gemm/math.go, gemm/outlet.go
//	DX      dx.go, gemm/product.go, gemm/load.go (TMA), gemm/math.go, gemm/outlet.go
//	DH      dh/dh.go, gemm/product.go, gemm/load.go (Gather), gemm/math.go, dh/epilogue.go
//	DW      dw/dw.go, dw/load.go (with the queue), gemm/math.go, dw/math.go, gradient/gradient.go
//	Router  choose/router.go, gemm/math.go, choose/topk.go, choose/keys.go, order/count.go
//	Adapt   adapters.go, adaptmath.go
//	AdaptSingle adaptsingle.go, adapters.go, adaptmath.go
//	Decode  decode/up.go or decode/down.go, decode/product.go, decode/scheduler.go, gemm/math.go
//	SingleUp decode/singleup.go, decode/single.go, choose/choose.go, choose/topk.go, choose/keys.go
//	SingleDown decode/singledown.go, decode/single.go, decode/singleadapt.go
//	Plan    order/plan.go, order/entries.go, order/count.go
//	Aggregate aggregate.go
//	DRouter drouter/drouter.go, drouter/scatter.go, gemm/twoterm.go, gemm/math.go
//
// TestReading checks the list, and its length, against the lines that emit each kernel.
// gemm/tiling.go emits nothing: it has the constants.
//
// # Adding a product
//
// testdata/added/relu.go.txt adds one, and TestNewProductIsOneRow compiles it: its arguments, its
// kernel on jit/gemm, its space of tilings and cost, its row. A product that a layer launches is
// also in the Kernels list of its package, and package moe launches it. Tuning and examples/bench
// need nothing else: they read the row.
//
// # Glossary
//
// If CUTLASS has a word for something, the same word is used here.
//
//	row        a token at one of its experts. Packed rows are sorted by expert, as Plan orders them
//	gather     the token of each packed row, [R] u32. Plan writes it, and Choose of package choose in
//	           small batches. The load roles of Up, LoRA, DH and DW read it, and ByToken. Passes of
//	           package decode for up to 8 tokens have no gather: an entry of their table has the set
//	           of its tokens
//	inverse    the packed row of each pair of token and slot, [T, K] u32. Plan writes it, Choose in
//	           small batches, and Up of package decode up to 8 tokens. The sums over a token's
//	           experts read it, as do DScores and DLogits
//	tokenRows  the packed rows of each token of a list, [R] u32: token 0's, then token 1's. ByToken
//	           or PlanSorted writes it. The sums over a list's rows read it, as do the gradients of
//	           b2 and of rounded logits. starts, [T+1] u32, has each token's first index in it
//	slot       the number of an expert among the K experts of a token. The pair (token, slot), or
//	           token·K + slot, names a row before Plan sorts the rows
//	pairs      the pair of each packed row, [R] u32: the inverse of inverse. DH reads it, Up with
//	           scores on its input, ByToken and the gradients of b2 and of rounded logits
//	row pair   up to 256 packed rows of one expert, two row tiles: an entry of Plan's table
//	tile       128 rows (TileM) x TileN columns of a product's result
//	k-tile     64 elements of the sum (tile.K), four wgmma steps of 16: the depth of a stage
//	stage      one buffer of a ring, with a full and an empty mbarrier
//	ring       stages between a producer role and consumer roles. Reports show its name ("ab", "queue")
//	role       the task of some warpgroups of a CTA: "load" (the producer), "math" (the consumers)
//	stagger    the distance between the math warpgroups, one ring, so that one multiplies during
//	           the epilogue of the other
//	epilogue   the code that turns a tile's sums into stored results: activation, gradients, stores
//	sub-tile   64 x 64 of a tile: the unit of the epilogue's stores
//	atom       64 columns of an MN-major tile, which are contiguous in 128 bytes
//	K-major, MN-major
//	           an operand that is contiguous along the sum, or across it
//	group      GroupM row tiles that run together and share weights in the L2 cache (Triton's
//	           GROUP_SIZE_M): the p of a tiling's name. Groups of experts in a router are
//	           something else, see [sonicmoe/internal/spec.Config]
//	cluster    ClusterM CTAs that multicast weights to each other
//	tiling     TileN, stages, group and cluster of a product: a point of its search space
//	choice     a tiling for each product of a layer, from the cost model or from tuning. (The kernel
//	           Choose is something else: it chooses the experts of small batches)
//	block      64 columns of a tile or a gradient, as in an atom. In package decode: a unit of weights
//	           times the tokens that are multiplied at once
//	ticket     the number of a tile, drawn from a counter by a persistent CTA that is free
//	split      a part of a heavy expert's rows in a weight's gradient. Its partial sums are added in
//	           order
package kernel
