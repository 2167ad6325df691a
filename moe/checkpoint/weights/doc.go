// Package weights reads the expert layers of published models. A model is a folder with config.json
// and safetensors files: one file, or many with an index.
//
//	l, err := weights.Open(ctx, "Qwen3-30B-A3B", 7)
//	...
//	layer, err := moe.New(ctx, dev, l.Config)
//	...
//	w := memory.Weights(layer) // memory is a moe.Arena
//	...
//	err = l.Load(ctx, stream, w)
//
// Open finds tensors by the names that each family of models gives them. A tensor may have one
// expert or all experts. Load puts the tensors together in the layout of the layer's Config and
// converts them to its types.
//
// Quantised weights of the following formats are loaded as they are, and Config.Weights has the
// format:
//
//	FP8            weight with weight_scale_inv or weight_scale: a scale for each block of
//	               128 x 128 (DeepSeek-V3, Qwen3), or for each matrix
//	MXFP4          gpt-oss's blocks and scales; compressed-tensors' weight_packed, weight_scale
//	NVFP4          ModelOpt's weight, weight_scale, weight_scale_2; compressed-tensors'
//	               weight_packed, weight_scale, weight_global_scale
//	INT4           compressed-tensors' weight_packed, weight_scale, weight_zero_point
//	               (Kimi-K2-Thinking); AWQ's and GPTQ's qweight, scales, qzeros; in groups
//	               of 32 or 128
//
// For AWQ and GPTQ, Load changes the order of the numbers, not their values. It adds 1 to the zero
// points of GPTQ's first format. compressed-tensors divides by its global scales, and Load takes
// their reciprocals instead. Because of this, one weight in more than 10,000 rounds to the
// neighbouring bf16.
//
// Load dequantises the weights, with one rounding, in two cases: if the caller sets Config.Weights
// to "", for a layer whose weights have gradients, and if the layer cannot take the format. In the
// second case Model.Quantised says why. Load always dequantises shared experts. For a model in
// another format, and for GPTQ with act-order, Open or Load returns an error that names the format.
//
// [Layer.Store] writes a layer to one file, as Load loads it. [OpenStored] opens the file. Loading
// such a file needs no search for tensors, no change of order and no dequantisation.
//
// A tensor of the layer that has no place in the Config is an error. So is a tensor that gives the
// same part of a weight as another tensor.
package weights
