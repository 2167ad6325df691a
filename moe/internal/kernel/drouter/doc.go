// Package drouter has the router's part of the backward pass: [DRouter] and [Sum]
// are the gradient of its weights, [ExtraRows] what dense gradients of the logits
// add to the tokens'. Both products have an FP32 factor, see
// [sonicmoe/jit/gemm.TwoTerm].
package drouter
