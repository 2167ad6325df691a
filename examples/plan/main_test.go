package main

import (
	"bytes"
	"fmt"
	"image/png"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/examples/internal/hostile"
)

func TestPublished(t *testing.T) {
	var out bytes.Buffer
	file := filepath.Join(t.TempDir(), "plan.png")
	start := time.Now()
	require.NoError(t, run(t.Context(), []string{"-plot", file}, &out, io.Discard))
	assert.Less(t, time.Since(start), 5*time.Second) // the command takes 0.1 s of one core
	lines := strings.Split(out.String(), "\n")
	require.Greater(t, len(lines), 5+31)
	row := func(name string) []string {
		for _, l := range lines {
			if rest, ok := strings.CutPrefix(strings.TrimSpace(l), name+"  "); ok {
				return strings.Fields(rest)
			}
		}
		require.Fail(t, "no row", name)
		return nil
	}
	// The last of the ten columns has the saved bytes of a token, 2d + 4Kn. Column 11 has the
	// padding in percent of tiles of 64, 128 and 256 rows.
	qwen := row("Qwen3-30B-A3B")
	// 48 layers of 1152 MiB are 54 GiB.
	assert.Equal(t, []string{"2048", "768", "128", "8", "0", "1152", "48", "54", "1", "28672"}, qwen[:10])
	assert.Equal(t, "3/6/12", qwen[11])
	assert.Equal(t, "24/48/100", row("Llama-4 Maverick")[11])
	// DeepSeek-V3 has 58 layers with experts, of 22.6 GB each: 9.3 times 141 GB.
	assert.Equal(t, []string{"58", "1223", "10"}, row("DeepSeek-V3")[6:9])
	assert.Contains(t, out.String(), "Phi-3.5-MoE: outside the layer: the router is SparseMixer")

	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	picture, err := png.Decode(f)
	require.NoError(t, err)
	assert.Greater(t, picture.Bounds().Dy(), 600)
}

func TestOwnModel(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "mine")
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"model_type": "mixtral", "hidden_size": 1024,
		"intermediate_size": 512, "num_local_experts": 8, "num_experts_per_tok": 2, "num_hidden_layers": 2, "hidden_act": "silu", "expert_choice": true}`), 0o600))
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"-tokens", "512", dir, "olmoe-1b-7b"}, &out, io.Discard))
	text := out.String()
	assert.Contains(t, text, "512 tokens a call")
	assert.Contains(t, text, "mixtral mine  1024   512   8  2")
	assert.Contains(t, text, "OLMoE-1B-7B")
	assert.Contains(t, text, "mixtral mine: assumed: dtype is not there: bfloat16")
	assert.Contains(t, text, "mixtral mine: not understood: expert_choice = true")
}

// TestQuantisedModels checks that the weights of quantised models are counted in their packed
// form: codes, scales, biases and router of a layer.
func TestQuantisedModels(t *testing.T) {
	for _, tt := range []struct {
		name, config string
		experts      int64 // bytes of the experts' weights
		more         int64 // bytes of the other weights
	}{
		{"gpt-oss-20b", `"model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_local_experts": 32, "num_experts_per_tok": 4, "num_hidden_layers": 24,
			"swiglu_limit": 7.0, "quantization_config": {"quant_method": "mxfp4"}`, 32 * 3 * 2880 * 2880 * 17 / 32, 2*32*3*2880 + 2*32*2880 + 4*32},
		{"Qwen3-30B-A3B-FP8", `"model_type": "qwen3_moe", "hidden_size": 2048, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
			"norm_topk_prob": true, "hidden_act": "silu", "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}`, 128 * 3 * (2048*768 + 16*6*4), 2 * 128 * 2048},
		{"Qwen3-30B-A3B-NVFP4", `"model_type": "qwen3_moe", "hidden_size": 2048, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
			"norm_topk_prob": true, "hidden_act": "silu", "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}`, 128 * 3 * (2048*768*9/16 + 4), 2 * 128 * 2048},
		{"Qwen3-30B-A3B-AWQ", `"model_type": "qwen3_moe", "hidden_size": 2048, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
			"norm_topk_prob": true, "hidden_act": "silu", "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": true}`,
			128 * 3 * 2048 * 768 / 128 * 67, 2 * 128 * 2048},
	} {
		dir := filepath.Join(t.TempDir(), tt.name)
		require.NoError(t, os.Mkdir(dir, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"dtype": "bfloat16", `+tt.config+`}`), 0o600))
		var out bytes.Buffer
		require.NoError(t, run(t.Context(), []string{dir}, &out, io.Discard))
		assert.Contains(t, out.String(), fmt.Sprintf("the experts of a layer have %d bytes, ", tt.experts), tt.name)
		assert.Contains(t, out.String(), "packed weights arranged for small batches are a second copy: ", tt.name)
		if tt.name == "gpt-oss-20b" {
			assert.Contains(t, out.String(), fmt.Sprintf("a second copy: %d bytes a layer, 10 GiB in all", tt.experts*2944/2880+16)) // columns in blocks of 128, and a count of refused values
		}
		line := strings.Split(out.String(), "\n")[5]
		assert.Equal(t, fmt.Sprint((tt.experts+tt.more)>>20), strings.Fields(line)[7], line)
	}
}

func TestRefuses(t *testing.T) {
	empty := t.TempDir()
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"GPT-9"}, `"GPT-9" is neither a file nor one of Mixtral 8x7B, `},
		{[]string{empty}, "config.json: no such file"},
		{[]string{"-plot", "plan.gif"}, "must be .png or .svg"},
		{[]string{"-tokens", "-1"}, "Workload.Tokens is -1"},
	} {
		require.ErrorContains(t, run(t.Context(), tt.args, &bytes.Buffer{}, io.Discard), tt.want)
	}
	var out bytes.Buffer
	require.Error(t, run(t.Context(), []string{"-h"}, &out, io.Discard))
	assert.Contains(t, out.String(), "prints the costs of expert layers")
}

func TestFilesAreBounded(t *testing.T) {
	hostile.Refuses(t, func(path string) error { return run(t.Context(), []string{path}, io.Discard, io.Discard) })
}
