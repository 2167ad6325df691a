package weights_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"

	"sonicmoe/driver/open"
	"sonicmoe/moe"
	"sonicmoe/moe/checkpoint/safetensors"
	"sonicmoe/moe/checkpoint/weights"
)

// A layer in a model's folder becomes a moe.Layer, with its weights on a device.
func ExampleOpen() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "model")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	if err := writeModel(dir); err != nil {
		fmt.Println(err)
		return
	}

	files, err := weights.Open(ctx, dir, 1) // the second layer
	if err != nil {
		fmt.Println(err)
		return
	}
	defer files.Close()
	fmt.Println(files.Config)
	dev, err := open.Device(ctx, "emulated")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer dev.Close()
	layer, err := moe.New(ctx, dev, files.Config, moe.WithoutBackward())
	if err != nil {
		fmt.Println(err)
		return
	}
	stream, err := dev.NewStream()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer stream.Close()
	memory := moe.NewArena(dev)
	defer memory.Free()
	w := memory.Weights(layer)
	fmt.Println(memory.Err(), files.Load(ctx, stream, w))
	router := make([]float32, 4)
	fmt.Println(moe.Read(stream, moe.Tensor{Ptr: w.Router.Ptr, Shape: moe.Shape{Type: moe.BF16, Rank: 1, Dims: [3]int64{4}}}, router), router)
	// Output:
	// d=64 n=64 E=2 K=1 w1=concatenated logits=bf16
	// <nil> <nil>
	// <nil> [1 1 1 1]
}

// writeModel writes a small Mixtral whose weights are all 1.
func writeModel(dir string) error {
	const d, n, e = 64, 64, 2
	config := `{"model_type": "mixtral", "hidden_size": 64, "intermediate_size": 64, "num_local_experts": 2, "num_experts_per_tok": 1, "num_hidden_layers": 2, "hidden_act": "silu", "dtype": "bfloat16"}`
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o600); err != nil {
		return err
	}
	const block = "model.layers.1.block_sparse_moe."
	ones := func(name string, rows, columns int64) safetensors.Source {
		return safetensors.Source{Name: block + name, DType: "BF16", Shape: []int64{rows, columns}, Data: bytes.NewReader(bytes.Repeat([]byte{0x80, 0x3f}, int(rows*columns)))}
	}
	tensors := []safetensors.Source{ones("gate.weight", e, d)}
	for i := range e {
		at := fmt.Sprintf("experts.%d.", i)
		tensors = append(tensors, ones(at+"w1.weight", n, d), ones(at+"w3.weight", n, d), ones(at+"w2.weight", d, n))
	}
	var file bytes.Buffer
	if err := safetensors.Write(&file, nil, tensors...); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "model.safetensors"), file.Bytes(), 0o600)
}
