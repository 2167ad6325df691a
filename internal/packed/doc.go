// Package packed has the numbers of packed expert weights: the meaning of each row of
// [spec.Packings], on the host.
//
// A code c with a scale s is the FP32 product c·s, rounded to nearest even. A packed layer
// computes with that product rounded once more, to the layer's Type. Transformers'
// dequantisation of FP8 (integrations/finegrained_fp8.py) rounds at the same two points.
// With scales that are powers of two, neither rounds: the bf16 is exact, unless the product
// is too large for bf16 and becomes infinite, or is below the smallest subnormal bf16.
//
// A zero point is subtracted from the code, which is exact, as is the FP32 product of the
// difference and a scale of 16 bits. So a weight has one rounding, as in compressed-tensors,
// AWQ and GPTQ, whose dequantisations multiply in 16 bits.
//
// A global scale multiplies the scale in FP32, before the code. ModelOpt's
// NVFP4QTensor.dequantize computes so, with W1Global as weight_scale_2. An E2M1 times an
// E4M3 fits a bf16, but the rounded product with the global scale does not, unless the
// global scale is a power of two.
//
// Scales of E8M0 follow the OCP's formats: byte 255 is NaN. Transformers' mxfp4.py computes
// 2^128 for it, which no published file has.
package packed
