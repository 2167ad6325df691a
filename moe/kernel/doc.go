// Package kernel holds the kernels of the MoE layer, one file each, with the
// tile points they can be built for and the cost model that picks one.
//
// The forward pass is five launches. Notation: T tokens, d hidden, n
// intermediate, E experts, K experts a token, R = T·K rows.
//
//	Router     logits = X·Wrᵀ, top-K, softmax over the K, counts for each CTA
//	Plan       expert offsets, packed order of the rows, table of row blocks
//	Up         H = X[rows]·W1ᵀ and A = silu(gate)·up, rows gathered as loaded
//	Down       Y = A·W2ᵀ
//	Aggregate  O[t] = Σ_k score·Y[row of (t,k)]
//
// With expert ids from elsewhere Count takes the router's place.
//
// The backward pass runs Count and Plan again, with each row's (token, slot)
// pair, then:
//
//	DH          dA' = dO[rows]·W2; in its epilogue dH, A' = score·A and parts of the scores' gradient
//	DScores     the scores' gradient, and through the softmax the chosen logits'
//	DWPlan      the experts' splits, heavy experts first
//	DW          dW2[e] = Σ_p dO[gather[p]]ᵀ·A'[p] and dW1[e] = Σ_p dH[p]ᵀ·X[gather[p]], rows gathered as loaded
//	DX          dX~ = dH·W1, with the router's part as a rank-1 term of each row
//	Aggregate   dX[t] = Σ_k dX~[row of (t,k)], and what ExtraRows made
//	DRouter     dW_r = dlogitsᵀ·X over ranges of tokens, DRouterSum adds the ranges
//	ExtraRows   what dense gradients of the logits add to the tokens' gradient
//
// Products run one CTA an SM: two warpgroups multiply, one loads, 168 registers
// a thread (see pipeline.Run for why not more). In clusters of two CTAs (by default Up
// and Down, and DH where the sum is long) each loads half of the weights into both.
package kernel
