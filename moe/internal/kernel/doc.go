// Package kernel holds the kernels of an MoE layer's experts and the list of what
// a layer launches, [Kernels], with that of its shared experts, [SharedKernels].
// Those of the forward pass and dX have a file each here; packages decode (few
// tokens), dh, dw, bias and drouter below have the others, moe/internal/route the
// router and what routing needs.
//
// Notation: T tokens, d hidden, n intermediate, E experts, K experts a token,
// R = T·K rows, act(gate, up) the experts' activation, act(x) without a gate.
//
// The forward pass is five launches:
//
//	Router     logits = X·Wrᵀ, top-K, scores of the K, counts for each CTA
//	Plan       expert offsets, packed order of the rows, table of row pairs
//	Up         H = X[rows]·W1ᵀ + b1 and A = act(gate, up), rows gathered as loaded
//	Down       Y = A·W2ᵀ + b2
//	Aggregate  O[t] = Σ_k score·Y[row of (t,k)]
//
// Router chooses where [choose.InRouter] says so; every other routing is two launches,
// Logits and Select, from the logits that Forward keeps.
// A router of FP32 weights has Terms before its product, in backward before ExtraRows.
//
// Of few tokens package decode makes Up and Down, and the router is FewLogits and
// whatever chooses from its sums; the bits are the same. Which that is depends on the
// layer and on what room there is where Y is to come, 2·K·d bytes a token:
//
//	1 token, 3 launches         ChainLogits, LoneUp, which chooses, LoneDown, which sums over the experts
//	up to 8, 4 launches         ChainLogits, Up, which chooses and makes the table, Down, Aggregate
//	up to 64, 5 launches        FewLogits, Choose, which plans too, Up, Down, Aggregate
//	to choose.MostByWarps, 6     FewLogits, ChooseRanges, Plan, Up, Down, Aggregate
//
// All four are for layers whose Router chooses and whose sums, 4·E bytes, have room there.
// The first two are for those of [choose.ChoosesInProducts], too: no FP32 router and no
// scores on the input; a lone token's wants weights in the order OutIn besides
// ([choose.HasLone]), the other one room for the sums of all chains
// ([choose.ChainBytes], up to 16·E). What is not for a layer, or not for so many tokens, falls
// to the line below, and behind the last to Router and Plan, or to FewLogits, Select and
// Plan where Router does not choose.
//
// With expert ids from elsewhere Count takes the router's place, of few tokens too. A
// list of tokens and experts has Count, Plan and Aggregate of its own, and ByToken, which
// finds each token's rows. Rounding makes such a list behind Router: Prefer (what experts
// rank tokens by), Allot (how many each gets), Take (which); as this list is sorted, one
// kernel, Sorted, plans it.
//
// Shared experts are a layer of one expert that every token goes to, three launches more:
// EveryToken's plan, and the same Up and Down; Aggregate, or LoneDown, adds their rows last.
//
// The backward pass, in the order of its launches, each only where its result is
// wanted:
//
//	Count, Plan  the rows again, with each one's (token, slot) pair
//	DH           dA' = dO[rows]·W2; in its epilogue dH, A' = score·A and parts of the scores' gradient
//	Dot          b2's part of the scores' gradient (package bias)
//	DScores      the scores' gradient, and through the softmax the chosen logits' (package dh)
//	Partials, Sum   of dH, then of dO: the biases' gradients (package bias)
//	Plan         the experts' splits, heavy experts first (package dw)
//	DW           dW2[e] = Σ_p dO[gather[p]]ᵀ·A'[p], then dW1[e] = Σ_p dH[p]ᵀ·X[gather[p]], rows gathered as loaded
//	DX           dX~ = dH·W1, with the router's part as a rank-1 term of each row
//	Losses       the gradients of the router's losses on the logits; LossSum the losses (package route)
//	DLogits      where scores are no softmax over the chosen: the logits' gradients from those of the scores (package route)
//	RoundedDLogits  all logits' gradients behind rounding (package route)
//	ExtraRows    what dense gradients of the logits add to the tokens' gradient (package drouter)
//	Sum          dX[t] = Σ_k dX~[row of (t,k)], and what ExtraRows made: Aggregate with weights of 1
//	DRouter      dW_r = dlogitsᵀ·X over ranges of tokens, Sum adds the ranges (package drouter)
//	ExpertSums   the gradients of the router's bias and of the experts' scales (package route)
//
// Between the passes of a training step, where they are asked for: Loads counts the
// tokens that chose each expert, BalanceBias moves the selection bias by them
// (package route).
//
// Products run one CTA an SM; of a lone token, where experts are small, one of either
// product. Those of many tokens have two math warpgroups and one that loads, 168
// registers a thread (see [sonicmoe/jit/pipeline.Run] for why not more). In clusters of two CTAs each loads half of the weights into both. The
// cost model of moe/internal/tiles always takes clusters for Up, and for Down and
// DH where their sums are long; narrow DX may have them.
//
// # Reading a kernel
//
// Rooms that all kernels share are read once: jit/kernel.go and
// moe/internal/registry (a kernel's parameters, launch and row in the list),
// jit/pipeline (roles, rings, barriers), jit/tile (fragments, descriptors, tensor
// maps), jit/schedule (queues, tiles), moe/activation (act),
// moe/internal/weights (how weights and biases lie, and their loads) and
// moe/internal/lanes (sums over a warp). With them,
// from the operands to the stores, in this order; gemm is jit/gemm, and a name
// without a folder is of this one. They are at most five:
//
//	Up      up.go, gemm/product.go, gemm/load.go (Gather), gemm/math.go
//	Down    down.go, gemm/product.go, gemm/load.go (LoadTMA), gemm/math.go
//	DX      dx.go, gemm/product.go, gemm/load.go (LoadTMA), gemm/math.go
//	DH      dh/dh.go, gemm/product.go, gemm/load.go (Gather), gemm/math.go, dh/epilogue.go
//	DW      dw/dw.go, dw/load.go (the queue, too), gemm/math.go, dw/math.go, gradient/gradient.go
//	Router  choose/router.go, gemm/math.go, choose/topk.go, choose/keys.go, order/count.go
//	Decode  decode/up.go or decode/down.go, decode/product.go, decode/turns.go, gemm/math.go
//	LoneUp  decode/loneup.go, decode/lone.go, choose/choose.go, choose/topk.go, choose/keys.go
//	LoneDown decode/lonedown.go, decode/lone.go
//	DRouter drouter/drouter.go, drouter/scatter.go, gemm/twoterm.go, gemm/math.go
//
// TestReading holds the list, and its length, against the lines that emit each
// kernel. Of gemm's tiling.go, which emits nothing, come the constants.
//
// # Adding a product
//
// moe/internal/registry/relu_test.go is one: its arguments, its emission by
// jit/gemm, its space and cost, its row. One that a layer is to launch is listed in
// [Kernels] as well and launched by package moe. Tuning takes the pass to hold it by
// from its row, and examples/bench its name.
//
// # Glossary
//
// Words are CUTLASS's where it has one.
//
//	row        a token at one of its experts. Packed rows are sorted by expert, as Plan orders them
//	slot       which of a token's K experts: (token, slot), or token·K + slot, is a row before
//	           Plan sorts them, and what Pairs has of a packed row
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
//	           (Triton's GROUP_SIZE_M): the p of a tiling's name. A router's groups, of
//	           experts, are [sonicmoe/internal/spec.Config]'s
//	cluster    ClusterM CTAs that multicast weights to each other
//	tiling     TileN, stages, group and cluster of a product: a point of its search space,
//	           as autotune calls it, which knows no products
//	choice     a tiling for each product of a layer, of the cost model or of tuning. (Choose, the
//	           kernel, has few tokens choose their experts.)
//	block      64 columns of a tile or of a gradient, an atom's; in package decode a unit of
//	           weights times the tokens that are multiplied at once
//	ticket     the number of a tile, drawn from a counter by a persistent CTA that is free
//	split      part of a heavy expert's rows in a weight's gradient, whose partial sums are
//	           added in order
package kernel
