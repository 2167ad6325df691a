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
// Of the backward pass, the gradients of the weights:
//
//	DWPlan      the experts' splits, heavy experts first
//	DW          dW2[e] = Σ_p dO[gather[p]]ᵀ·A'[p] and dW1[e] = Σ_p dH[p]ᵀ·X[gather[p]], rows gathered as loaded
//	DRouter     dW_r = dlogitsᵀ·X over ranges of tokens, DRouterSum adds the ranges
//	ExtraRows   what dense gradients of the logits add to the tokens' gradient
package kernel
