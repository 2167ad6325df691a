// Package packed has the numbers of packed expert weights: the meaning of each row of
// [spec.Packings], on the host.
//
// A code c with a scale s is the FP32 product c·s, rounded to nearest even. A packed layer
// computes with that product rounded once more, to bf16. Transformers' dequantisation of
// FP8 (integrations/finegrained_fp8.py) rounds at the same two points. With scales that are
// powers of two, neither rounds: the bf16 is exact, unless the product is too large for
// bf16 and becomes infinite, or is below the smallest subnormal bf16.
//
// Scales of E8M0 follow the OCP's formats: byte 255 is NaN. Transformers' mxfp4.py computes
// 2^128 for it, which no published file has.
package packed
