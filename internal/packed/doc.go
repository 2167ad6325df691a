// Package packed computes, on the host, the numbers that packed expert weights stand for, in
// each format of [spec.Packings].
//
// A code c with a scale s stands for the FP32 product c·s, rounded to nearest even. A packed
// layer rounds this product once more, to the layer's Type, and computes with the result.
// Transformers' dequantisation of FP8 (integrations/finegrained_fp8.py) rounds at the same two
// points. If scales are powers of two, neither step rounds: the product is a bf16 number. The
// exceptions are products that are too large for bf16 and become infinite, and products below
// the smallest subnormal bf16.
//
// A zero point is subtracted from the code before the product. The difference is exact, and so
// is the FP32 product of the difference and a 16-bit scale. Such a weight is therefore rounded
// once, as in compressed-tensors, AWQ and GPTQ, whose dequantisations multiply in 16 bits.
//
// A global scale multiplies the scale in FP32, before the code. ModelOpt's
// NVFP4QTensor.dequantize does the same, with the name weight_scale_2 for W1Global. The product
// of an E2M1 and an E4M3 is a bf16 number. With the global scale the product must be rounded,
// unless the global scale is a power of two.
//
// Scales of E8M0 follow the OCP's standard, where byte 255 is NaN. Transformers' mxfp4.py
// computes 2^128 for this byte, but no published file contains it.
package packed
