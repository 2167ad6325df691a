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
// converts them to its types. It loads the MXFP4 blocks of gpt-oss, and FP8 with a scale for
// each block of 128 x 128, as in the files of DeepSeek-V3, and symmetric INT4 of
// compressed-tensors, as in Kimi-K2-Thinking's, as they are: Config.Weights then
// has the format. It dequantises them if the caller sets Config.Weights to "", for a layer
// whose weights have gradients, and if the layer cannot take them: Model.Assumed says why.
// A model in another quantised format is an error that names the format.
//
// A tensor of the layer that has no place in the Config is an error, and so is a
// tensor that gives the same part of a weight as another.
package weights
