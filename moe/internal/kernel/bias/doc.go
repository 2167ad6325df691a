// Package bias has the kernels of backward that only layers with biases need:
// the part of the scores' gradients that b2 has, and the biases' own gradients,
//
//	dS[t,k] += dO[t] · b2[e]
//	db1[e] = Σ_p dH[p]          over the expert's packed rows p
//	db2[e] = Σ_p s_p · dO[t_p]  s the row's score, t its token
//
// where of a token that has an expert more than once the scores are added, and then they
// are rounded. None of the kernels reads the gathered rows again, which took 6 % of
// backward: dO · b2 is the router's product with b2 for weights, of all experts; db1 adds
// up what dH sums beside its tiles; and db2 = Sᵀ·dO, with a token's scores by expert in
// the place that gradients of logits have in the router's gradient.
//
// Forward's sums start from the biases: see gemm.Config.Row, and of gate and up that
// touch gemm.TileEpilogue.
package bias

import "sonicmoe/internal/spec"

// Has reports whether a layer has biases.
func Has(c spec.Config) bool { return c.Bias }

func hasLists(c spec.Config) bool { return c.Bias && c.HasLists() }
