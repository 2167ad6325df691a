// Package weights reads the expert layers of models as they are published: a
// folder with config.json and safetensors files, one or many with an index.
//
//	l, err := weights.Open("Qwen3-30B-A3B", 7)
//	...
//	w1, err := l.Tensor("W1") // bytes of l.Config.Shapes(0).W1
//
// Tensors are found by the names that each family gives them, expert by expert
// or stacked. They are put together as the layer's Config lays them out, and
// brought to its types; gpt-oss's MXFP4 blocks are dequantised. A tensor of the
// layer that has no place in the Config is an error, not left out, and so is one
// that gives again what another gives.
package weights
