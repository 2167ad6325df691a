package safetensors_test

import (
	"bytes"
	"fmt"

	"sonicmoe/moe/checkpoint/safetensors"
)

func Example() {
	var file bytes.Buffer // usually an *os.File
	err := safetensors.Write(&file, map[string]string{"format": "pt"}, safetensors.Source{
		Name: "experts.w1", DType: "BF16", Shape: []int64{1, 2, 3},
		Data: bytes.NewReader([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	f, err := safetensors.New(bytes.NewReader(file.Bytes()), int64(file.Len()))
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, t := range f.Tensors() {
		part := make([]byte, 4)
		if _, err := f.ReadAt(t.Name, part, 8); err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(t, part)
	}
	// Output:
	// experts.w1 BF16 [1 2 3] [8 9 10 11]
}
