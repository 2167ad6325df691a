// Package weights reads the expert layers of published models: a folder with
// config.json and safetensors files, one file or many with an index.
//
//	l, err := weights.Open(ctx, "Qwen3-30B-A3B", 7)
//	...
//	layer, err := moe.New(ctx, dev, l.Config)
//	...
//	w := memory.Weights(layer) // memory is a moe.Arena
//	...
//	err = l.Load(ctx, stream, w)
//
// Open finds tensors by the names that each family of models gives them, expert by
// expert or stacked. Load puts them together in the layout of the layer's Config and
// converts them to its types.
//
// Quantised weights of these formats are loaded as they are, and Config.Weights has the
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
// Load changes the order of AWQ's and GPTQ's numbers, not the numbers. It adds 1 to the zero
// points of GPTQ's first format. It takes the reciprocals of compressed-tensors' global
// scales, by which that library divides: one weight in more than 10,000 then rounds to the
// neighbouring bf16.
//
// Load dequantises the weights, with one rounding, if the caller sets Config.Weights to "",
// for a layer whose weights have gradients, and if the layer cannot take them:
// Model.Assumed says why. It always dequantises shared experts. A model in another format is
// an error that names the format, as is act-order of GPTQ.
//
// [Layer.Store] writes a layer as it is loaded to one file, and [OpenStored] opens it: the
// weights then need no search, no change of order and no dequantisation.
//
// A tensor of the layer that has no place in the Config is an error, and so is a
// tensor that gives the same part of a weight as another.
package weights
