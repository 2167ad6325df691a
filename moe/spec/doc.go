// Package spec describes a Mixture-of-Experts layer in numbers: its
// [Config], the shapes and bytes of its tensors, its operations, the time that
// no kernel can beat, and the configurations whose speed is known.
//
// It is a leaf: it knows no device and no kernel, and everything that speaks of
// a layer speaks in its terms. Package moe gives its names to users.
//
// Symbols: d = Hidden, n = Intermediate, E = Experts, K = TopK, T = tokens of
// one call, R = T·K rows (pairs of a token and one of its experts). The
// formulas are those of SonicMoE (arXiv 2512.14080).
package spec
