// Package reference computes a Mixture-of-Experts layer in float64, on the host, to
// check kernels against.
//
// A [Layer] computes every [spec.Config], in two ways. [Unrounded]
// is the mathematics: 16-bit inputs, float64 from there to the end. [Rounded]
// rounds where the kernels round, and nowhere else: logits to the layer's
// format, scores to FP32, and H, A, Y and O once each to the layer's type, A from
// the accumulator and not from the rounded H. [Compare] checks a kernel's result
// against the bounds [VsUnrounded] and [VsRounded], with relative norms: an absolute
// tolerance accepts anything at small scales.
//
// Layers too large to compute whole are checked on some tokens: [SampleTokens]
// picks tokens that touch every expert in use, and Route and Experts compute only
// these tokens, in parallel, with each weight decoded once.
//
// [Layer.Gradients] computes the backward pass in the same way: Tokens the gradients
// of X and the scores for some tokens or all, W1, W2, B1 and B2 the gradients of
// some rows of the weights, Router the gradient of the router's weights, and so on.
//
// Call Experts with the scores and experts under test, and check these separately
// with Route: a routing without rounding may order two logits differently that are
// equal in bf16.
//
// [Normal] returns random tensors, the same on every machine.
package reference
