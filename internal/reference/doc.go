// Package reference is the mathematics of a Mixture-of-Experts layer in
// float64, to judge kernels by. It runs on the host, in plain Go, and knows no
// device.
//
// A [Layer] computes whatever a [spec.Config] can say, in two ways. [Unrounded]
// is the mathematics: 16-bit inputs, float64 from there to the end. [Rounded]
// rounds where the kernels round, and nowhere else: logits to the layer's
// format, scores to FP32, and H, A, Y and O once each to the layer's type, A from
// the accumulator and not from the rounded H. A kernel's result is held to
// [VsUnrounded] and [VsRounded] by [Compare], with relative norms: an absolute
// tolerance accepts anything at small scales.
//
// Layers too large to compute whole are judged by some of their tokens:
// [SampleTokens] picks tokens that touch every expert in use, and Route and
// Experts compute only those, in parallel, with each weight decoded once.
//
// [Layer.Gradients] is the backward pass in the same manner: Tokens gives the
// gradients of tokens and scores for some tokens or all, W1, W2, B1 and B2 those
// of some rows of weights, Router that of the router's weights, and so on.
//
// Feed Experts the scores and experts that are under test, and judge those
// apart by Route: routed again without rounding, two logits that bf16 makes
// equal may change places.
//
// [Normal] gives random tensors, the same on every machine, at gigabytes a second.
package reference
