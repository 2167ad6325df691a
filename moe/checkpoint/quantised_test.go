package checkpoint_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/moe/checkpoint"
)

// TestQuantised checks the descriptions of the formats of published models, from the fields of
// their config.json.
func TestQuantised(t *testing.T) {
	const loaded, refused = ": the files' weights are loaded as they are, with Config.Weights ", ": weights in this format can't be loaded, dequantise the files first"
	for _, tt := range []struct{ name, field, want string }{
		{"DeepSeek-V3", `"quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]}`, "fp8, blocks of 128 x 128" + loaded + `"fp8": the experts of a layer have 49248 bytes, 98304 in 16 bits`},
		{"gpt-oss", `"quantization_config": {"modules_to_not_convert": ["lm_head"], "quant_method": "mxfp4"}`, "mxfp4" + loaded + `"mxfp4": the experts of a layer have 26112 bytes, 98304 in 16 bits`},
		{"other blocks", `"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 128]}`, "fp8, blocks of 64 x 128: only blocks of 128 x 128 are supported" + refused},
		{"one scale a tensor", `"quantization_config": {"quant_method": "fp8", "weight_block_size": null}`, "fp8" + loaded + `"fp8-tensor"`},
		{"Kimi-K2-Thinking", `"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": {}}}`, "compressed-tensors, pack-quantized, 0 bits in groups of 0, asymmetric: only whole numbers (\"type\": \"int\") are supported" + refused},
		{"Kimi-K2-Thinking, whole", `"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "symmetric": true, "strategy": "group", "group_size": 32, "actorder": null}}}}`,
			"compressed-tensors, pack-quantized, 4 bits in groups of 32" + loaded + `"int4-g32": the experts of a layer have 27648 bytes, 98304 in 16 bits`},
		{"asymmetric", `"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "symmetric": false, "group_size": 32}}}}`, "compressed-tensors, pack-quantized, 4 bits in groups of 32, asymmetric" + loaded + `"uint4-g32": the experts of a layer have 29184 bytes`},
		{"act-order", `"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "symmetric": true, "group_size": 32, "actorder": "group"}}}}`, "compressed-tensors, pack-quantized, 4 bits in groups of 32: act-order is not supported" + refused},
		{"two schemes", `"quantization_config": {"quant_method": "compressed-tensors", "format": "mixed-precision", "config_groups": {"group_0": {}, "group_1": {}}}`, "config_groups has 2 schemes, only files with one are supported" + refused},
		{"NVFP4 of compressed-tensors", `"quantization_config": {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "config_groups": {"group_0": {}}}`, "compressed-tensors, nvfp4-pack-quantized" + loaded + `"nvfp4": the experts of a layer have 27744 bytes`},
		{"MXFP4 of compressed-tensors", `"quantization_config": {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized", "config_groups": {"group_0": {}}}`, "compressed-tensors, mxfp4-pack-quantized" + loaded + `"mxfp4"`},
		{"FP8 of compressed-tensors", `"quantization_config": {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float", "strategy": "tensor"}}}}`, "compressed-tensors, float-quantized" + loaded + `"fp8-tensor"`},
		{"FP8 with scales of rows", `"quantization_config": {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}}}`, "compressed-tensors, float-quantized: the files' weights are dequantised when they are loaded, the layer computes with 16 bits a weight: layers take FP8 with a scale for each block or tensor, not by \"channel\""},
		{"an old name", `"compression_config": {"format": "float-quantized", "config_groups": {"group_0": {}}}`, "compressed-tensors, float-quantized: only 8 bits are supported" + refused},
		{"AWQ", `"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}`, "awq, 4 bits in groups of 32" + loaded + `"uint4-g32-f16": the experts of a layer have 29184 bytes`},
		{"AWQ in groups of 64", `"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 64}`, "awq, 4 bits in groups of 64: the files' weights are dequantised when they are loaded, the layer computes with 16 bits a weight: layers take groups of 32 and 128, not of 64"},
		{"AWQ, another order", `"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemv"}`, "awq, 4 bits in groups of 32: of AWQ's versions only gemm is supported" + refused},
		{"AWQ, no zero points", `"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": false}`, "awq, 4 bits in groups of 32: of AWQ's formats only the one with zero points is supported" + refused},
		{"AWQ, a group across an edge", `"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}`, "awq, 4 bits in groups of 128: the files' weights are dequantised when they are loaded, the layer computes with 16 bits a weight: Config.Hidden is 64, must be a multiple of 128"},
		{"GPTQ", `"quantization_config": {"quant_method": "gptq", "bits": 4, "desc_act": false, "group_size": 32}`, "gptq, 4 bits in groups of 32" + loaded + `"uint4-g32-f16"`},
		{"GPTQ in act-order", `"quantization_config": {"quant_method": "gptq", "bits": 4, "desc_act": true, "group_size": 32}`, "gptq, 4 bits in groups of 32: act-order (desc_act) is not supported" + refused},
		{"GPTQ of 8 bits", `"quantization_config": {"quant_method": "gptq", "bits": 8, "group_size": 32}`, "gptq, 8 bits in groups of 32: only 4 bits are supported" + refused},
		{"GPTQ for Marlin", `"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32, "checkpoint_format": "marlin"}`, "of GPTQ's checkpoint formats only gptq and gptq_v2 are supported" + refused},
		{"HQQ", `"quantization_config": {"quant_method": "hqq"}`, "hqq: this method is not supported" + refused},
		{"bitsandbytes", `"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": true}`, "bitsandbytes, 4 bits: this method is not supported" + refused},
		{"bitsandbytes of 8 bits", `"quantization_config": {"load_in_8bit": true}`, "bitsandbytes, 8 bits: this method is not supported" + refused},
		{"NVFP4", `"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}`, "modelopt, NVFP4" + loaded + `"nvfp4": the experts of a layer have 27744 bytes`},
		{"a mixture of ModelOpt", `"quantization_config": {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}`, "modelopt, MIXED_PRECISION: of ModelOpt's formats only NVFP4 and FP8 are supported" + refused},
		{"no object", `"quantization_config": 2.5`, "quantization_config is 2.5: it has no known quant_method" + refused},
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
		{"awq", `"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 32}`, "uint4-g32-f16"},
		{"bitsandbytes", `"quantization_config": {"load_in_4bit": true}`, ""},
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
