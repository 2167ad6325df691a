// Package safetensors reads and writes safetensors files: named tensors in one
// file, as PyTorch and Hugging Face models are stored.
//
// A file is 8 bytes with the header's length (little endian), the header (a
// JSON object that maps each name to dtype, shape and place), and the data.
//
//	f, err := safetensors.Open("model.safetensors")
//	...
//	w1, err := f.Tensor("experts.w1") // dtype and shape
//	...
//	_, err = f.ReadAt("experts.w1", buf, 0) // any part of it, into your own buffer
//
// [Open] reads the header alone. It trusts nothing: lengths, offsets and
// shapes are checked against each other and against the file before anything
// is allocated or read, so a damaged or hostile file gives an [*Error] that says
// what is wrong and where. As the format demands, tensors cover the data
// without gap or overlap.
package safetensors
