// Package bias has the kernels of backward that only layers with biases need. They compute b2's
// part of the scores' gradients, and the gradients of the biases:
//
//	dS[t,k] += dO[t] · b2[e]
//	db1[e] = Σ_p dH[p]          over the expert's packed rows p
//	db2[e] = Σ_p s_p · dO[t_p]  where s_p is the row's score and t_p its token
//
// If a token has an expert more than once, the scores of these slots are added before they are
// rounded.
//
// None of the kernels gathers the rows of dO again. dO·b2 is computed for all experts, by the
// router's product with b2 in place of the router's weights. db1 adds up sums of dH's columns,
// which kernel dH writes next to its tiles. db2 = Sᵀ·dO is the product of the router's gradient,
// where S [T, E] has each token's scores by expert in place of the logits' gradients.
//
// In the forward pass the sums start from the biases: see [sonicmoe/jit/gemm.FromRow].
package bias

import "sonicmoe/internal/spec"

// Has reports whether a layer has biases.
func Has(c spec.Config) bool { return c.Bias }

func hasLists(c spec.Config) bool { return c.Bias && c.HasLists() }
