// Package reference computes a Mixture-of-Experts layer in float64 on the host. Tests compare
// the results of kernels with it.
//
// A [Layer] computes every [spec.Config] in two ways. [Unrounded] computes everything after the
// 16-bit inputs in float64. [Rounded] rounds at the points where the kernels round, and nowhere
// else. Logits are rounded to the layer's logit format, and scores to FP32. H, A, Y and O are
// each rounded once to the layer's type, and A is computed from the accumulator instead of the
// rounded H.
//
// [Compare] checks a kernel's result against the bounds [VsUnrounded] and [VsRounded]. The
// errors are relative norms, because an absolute tolerance accepts any result whose values are
// small.
//
// A layer that is too large to compute whole is checked on some tokens. [SampleTokens] picks
// tokens such that every expert with tokens is checked. [Layer.Route] and [Layer.Experts] then
// compute only these tokens, in parallel, and decode each weight once.
//
// [Layer.Gradients] does the same for the backward pass. [Gradients.Tokens] returns the
// gradients of X and of the scores for some tokens or for all. W1, W2, B1 and B2 return the
// gradients of some rows of the weights, Router returns the gradient of the router's weights,
// and so on.
//
// Call Experts with the scores and experts of the kernels under test, and check the routing
// separately with Route. The reason is that two logits that are equal in bf16 may differ in
// float64, so an unrounded Route may choose other experts.
//
// [Normal] returns random tensors that are the same on every machine.
package reference
