// Package safetensors reads and writes safetensors files, the format of PyTorch and
// Hugging Face models: named tensors in one file.
//
// A file is 8 bytes with the header's length (little endian), the header (a JSON
// object that maps each name to dtype, shape and place), and the data.
//
//	f, err := safetensors.Open(ctx, "model.safetensors")
//	...
//	w1, err := f.Tensor("experts.w1") // dtype and shape
//	...
//	_, err = f.ReadAt("experts.w1", buf, 0) // any part of the tensor
//
// [Open] reads only the header. It checks lengths, offsets and shapes against each
// other and against the file before it allocates or reads anything else. A damaged
// or hostile file gives an error that says what is wrong and where. The format
// demands that tensors cover the data without gap or overlap.
package safetensors
