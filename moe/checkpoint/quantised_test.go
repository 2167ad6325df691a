package checkpoint_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/moe/checkpoint"
)

// TestQuantised checks the words for the formats of published models, as their
// config.json names them.
func TestQuantised(t *testing.T) {
	const loaded, refused = ": the files' weights are loaded as they are, with Config.Weights ", ": weights in it can't be loaded, dequantise the files before"
	for _, tt := range []struct{ name, field, want string }{
		{"DeepSeek-V3", `"quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]}`, "fp8, blocks of 128 x 128" + loaded + `"fp8": the experts of a layer have 49216 bytes, 98304 in 16 bits`},
		{"gpt-oss", `"quantization_config": {"modules_to_not_convert": ["lm_head"], "quant_method": "mxfp4"}`, "mxfp4" + loaded + `"mxfp4": the experts of a layer have 26112 bytes, 98304 in 16 bits`},
		{"other blocks", `"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 128]}`, "fp8, blocks of 64 x 128" + refused},
		{"one scale a tensor", `"quantization_config": {"quant_method": "fp8", "weight_block_size": null}`, "fp8" + refused},
		{"Kimi-K2-Thinking", `"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": {}}}`, "compressed-tensors, pack-quantized" + refused},
		{"Kimi-K2-Thinking, whole", `"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "symmetric": true, "strategy": "group", "group_size": 32, "actorder": null}}}}`,
			"compressed-tensors, pack-quantized, 4 bits in groups of 32" + loaded + `"int4-g32": the experts of a layer have 27648 bytes, 98304 in 16 bits`},
		{"asymmetric", `"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "symmetric": false, "group_size": 32}}}}`, "compressed-tensors, pack-quantized" + refused},
		{"an old name", `"compression_config": {"format": "float-quantized", "config_groups": {"group_0": {}}}`, "compressed-tensors, float-quantized" + refused},
		{"AWQ", `"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"}`, "awq, 4 bits" + refused},
		{"GPTQ", `"quantization_config": {"quant_method": "gptq", "bits": 4, "desc_act": false}`, "gptq, 4 bits" + refused},
		{"bitsandbytes", `"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": true}`, "bitsandbytes, 4 bits" + refused},
		{"bitsandbytes of 8 bits", `"quantization_config": {"load_in_8bit": true}`, "bitsandbytes, 8 bits" + refused},
		{"NVFP4", `"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}`, "modelopt, NVFP4" + refused},
		{"no object", `"quantization_config": 2.5`, "quantization_config is 2.5" + refused},
		{"null", `"quantization_config": null`, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, err := checkpoint.Read([]byte(with(qwen3, ", "+tt.field)))
			require.NoError(t, err)
			if tt.want == "" {
				assert.Empty(t, m.Quantised)
			}
			assert.Contains(t, m.Quantised, tt.want)
			assert.Empty(t, m.Unknown)
		})
	}
	for _, tt := range []struct{ name, field, want string }{
		{"mxfp4", `"quantization_config": {"quant_method": "mxfp4"}`, "mxfp4"},
		{"fp8", `"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}`, "fp8"},
		{"awq", `"quantization_config": {"quant_method": "awq", "bits": 4}`, ""},
		{"fp16", `"quantization_config": {"quant_method": "mxfp4"}`, ""},
	} {
		text := with(qwen3, ", "+tt.field)
		if tt.name == "fp16" {
			text = strings.Replace(text, "bfloat16", "float16", 1)
		}
		m, err := checkpoint.Read([]byte(text))
		require.NoError(t, err)
		assert.Equal(t, tt.want, m.Packed().Weights, tt.name)
		assert.Empty(t, m.Config.Weights, tt.name)
	}
	m, err := checkpoint.Read([]byte(`{"quantization_config": {"quant_method": "gptq", "bits": 4}, "text_config": ` + with(qwen3, "") + `}`))
	require.NoError(t, err)
	assert.Contains(t, m.Quantised, "gptq, 4 bits", "around the text model")
}
