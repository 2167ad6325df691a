package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/open"
	"sonicmoe/examples/internal/command"
	"sonicmoe/internal/drivertest"
	"sonicmoe/moe"
	"sonicmoe/moe/checkpoint"
	"sonicmoe/moe/checkpoint/safetensors"
)

// TestModelOfEveryWeight checks that all weights of a model are loaded from its files and have
// gradients. All results must have the same bits as a direct call of the library with the same
// tensors.
func TestModelOfEveryWeight(t *testing.T) {
	for kind, c := range map[string]struct {
		config string
		names  map[string]string // for each weight, the part of its name in the model's files that follows the layer's number
	}{
		"qwen2_moe": {
			`"moe_intermediate_size": 64, "num_experts": 4, "norm_topk_prob": false, "shared_expert_intermediate_size": 128, "decoder_sparse_step": 1, "mlp_only_layers": []`,
			map[string]string{
				"Router": "gate.weight", "W1": "experts.gate_up_proj", "W2": "experts.down_proj",
				"SharedW1": "shared_expert.gate_proj.weight", "SharedW3": "shared_expert.up_proj.weight",
				"SharedW2": "shared_expert.down_proj.weight", "SharedGate": "shared_expert_gate.weight",
			},
		},
		"deepseek_v3": {
			`"moe_intermediate_size": 64, "n_routed_experts": 4, "n_shared_experts": 1, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 0,
				"norm_topk_prob": true, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1`,
			map[string]string{
				"Router": "gate.weight", "SelectionBias": "gate.e_score_correction_bias", "W1": "experts.gate_up_proj", "W2": "experts.down_proj",
				"SharedW1": "shared_experts.gate_proj.weight", "SharedW3": "shared_experts.up_proj.weight", "SharedW2": "shared_experts.down_proj.weight",
			},
		},
		"gpt_oss": {
			`"intermediate_size": 64, "num_local_experts": 4, "swiglu_limit": 7.0`,
			map[string]string{
				"Router": "router.weight", "RouterBias": "router.bias", "W1": "experts.gate_up_proj", "B1": "experts.gate_up_proj_bias",
				"W2": "experts.down_proj", "B2": "experts.down_proj_bias",
			},
		},
	} {
		t.Run(kind, func(t *testing.T) {
			text := fmt.Sprintf(`{"model_type": %q, "hidden_size": 128, "num_experts_per_tok": 2, "hidden_act": "silu", "num_hidden_layers": 2, %s}`, kind, c.config)
			checkModel(t, text, c.names)
		})
	}
}

func checkModel(t *testing.T, text string, names map[string]string) {
	const tokens = 9
	model, err := checkpoint.Read([]byte(text))
	require.NoError(t, err)
	dev, err := open.Device(context.Background(), drivertest.Name())
	require.NoError(t, err)
	defer dev.Close()
	layer, err := moe.New(context.Background(), dev, model.Config)
	require.NoError(t, err)
	stream, err := dev.NewStream()
	require.NoError(t, err)
	defer stream.Close()
	memory := moe.NewArena(dev)
	defer memory.Free()

	f := memory.ForwardArgs(layer, tokens)
	f.Weights, f.Workspace = memory.Weights(layer), memory.Workspace(tokens, layer)
	back := f.BackwardArgs()
	back.DO, back.DX, back.WeightGradients = memory.Like(f.O), memory.Like(f.X), memory.Gradients(layer, moe.BF16)
	require.NoError(t, memory.Err())

	p, dir, random := newPaths(t), t.TempDir(), rand.New(rand.NewPCG(7, 0))
	var files []safetensors.Source
	for _, id := range moe.WeightIDs() {
		w, file := *f.Weight(id), names[id.String()]
		require.Equal(t, file == "", w.IsZero(), "%v: %v", layer.Config(), id)
		if w.IsZero() {
			continue
		}
		scale := 1.0
		if s := w.Shape; s.Rank > 1 {
			scale = 0.125
		}
		files = append(files, written(t, random, stream, w, "model.layers.1.mlp."+file, scale))
	}
	writeFile(t, filepath.Join(dir, "model.safetensors"), files...)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(text), 0o600))
	writeFile(t, p.input, written(t, random, stream, f.X, nameX, 1), written(t, random, stream, back.DO, nameDO, 1))
	call := layer.NewCall()
	require.NoError(t, call.Forward(stream, f))
	require.NoError(t, call.Backward(stream, back))

	var stdout, stderr bytes.Buffer
	args := []string{"-model", dir, "-layer", "1", "-input", p.input, "-output", p.output, "-device", drivertest.Name()}
	require.Equal(t, command.Done, exit(args, &stdout, &stderr), stderr.String())
	out, err := safetensors.Open(t.Context(), p.output)
	require.NoError(t, err)
	defer out.Close()
	compared := 0
	same := func(name string, want moe.Tensor) {
		section, err := out.Section(name)
		require.NoError(t, err)
		got, err := io.ReadAll(section)
		require.NoError(t, err)
		bits := make([]byte, want.Shape.Bytes())
		require.NoError(t, stream.CopyToHost(bits, want.Ptr))
		assert.True(t, bytes.Equal(bits, got), "%s differs", name)
		assert.NotEqual(t, make([]byte, len(bits)), bits, "%s is nothing but zeros", name)
		compared++
	}
	same(nameO, f.O)
	same(nameDX, back.DX)
	j := job{config: layer.Config()}
	for _, id := range moe.WeightIDs() {
		if g := back.Gradient(id); g != nil && !g.IsZero() {
			same(gradientOf+j.fileName(id), g.Tensor)
		}
	}
	assert.Equal(t, compared+3, len(out.Tensors()), "scores, experts and dscores are the others")
}

// written fills a tensor on the device with random values that bf16 can hold. It returns the
// tensor for a file.
func written(t *testing.T, random *rand.Rand, s driver.Stream, to moe.Tensor, name string, scale float64) safetensors.Source {
	var data []byte
	for range to.Shape.Elements() {
		bits := math.Float32bits(float32(float64(random.IntN(256)-128) / 128 * scale))
		if to.Shape.Type == moe.F32 {
			data = binary.LittleEndian.AppendUint32(data, bits)
		} else {
			data = binary.LittleEndian.AppendUint16(data, uint16(bits>>16))
		}
	}
	require.NoError(t, s.CopyToDevice(to.Ptr, data))
	var shape []int
	for _, d := range to.Shape.Dims[:to.Shape.Rank] {
		shape = append(shape, int(d))
	}
	return fileTensor(name, dtypes[to.Shape.Type], bytes.NewReader(data), shape...)
}
