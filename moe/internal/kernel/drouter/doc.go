// Package drouter has the router's part of the backward pass. [DRouter] and [Sum] are the
// gradient of the router's weights. [ExtraRows] is the part of the tokens' gradient that
// comes from dense gradients of the logits. Both products have an FP32 factor, see
// [sonicmoe/jit/gemm.TwoTerm].
package drouter
