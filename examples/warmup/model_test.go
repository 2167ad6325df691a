package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/moe"
)

// The sizes of each family as its models' config.json gives them, beside
// fields that must not be taken for them.
func TestModels(t *testing.T) {
	for name, c := range map[string]struct {
		json string
		want moe.Config
	}{
		"Qwen3-30B-A3B": {`{"model_type":"qwen3_moe","hidden_act":"silu","hidden_size":2048,"intermediate_size":6144,"moe_intermediate_size":768,"num_experts":128,"num_experts_per_tok":8}`,
			moe.Config{Hidden: 2048, Intermediate: 768, NumExperts: 128, TopK: 8}},
		"Qwen3-Next-80B": {`{"model_type":"qwen3_next","hidden_size":2048,"intermediate_size":5120,"moe_intermediate_size":512,"shared_expert_intermediate_size":512,"num_experts":512,"num_experts_per_tok":10}`,
			moe.Config{Hidden: 2048, Intermediate: 512, NumExperts: 512, TopK: 10}},
		"Qwen3.5-397B": {`{"model_type":"qwen3_5_moe","text_config":{"model_type":"qwen3_5_moe_text","hidden_size":4096,"moe_intermediate_size":1024,"num_experts":512,"num_experts_per_tok":10},"vision_config":{"hidden_size":1152,"intermediate_size":4304}}`,
			moe.Config{Hidden: 4096, Intermediate: 1024, NumExperts: 512, TopK: 10}},
		"Mixtral 8x7B": {`{"model_type":"mixtral","hidden_act":"silu","hidden_size":4096,"intermediate_size":14336,"num_local_experts":8,"num_experts_per_tok":2}`,
			moe.Config{Hidden: 4096, Intermediate: 14336, NumExperts: 8, TopK: 2}},
		"DeepSeek-V3": {`{"model_type":"deepseek_v3","hidden_act":"silu","hidden_size":7168,"intermediate_size":18432,"moe_intermediate_size":2048,"n_routed_experts":256,"n_shared_experts":1,"num_experts_per_tok":8,"topk_group":4}`,
			moe.Config{Hidden: 7168, Intermediate: 2048, NumExperts: 256, TopK: 8}},
		"DeepSeek-V2-Lite": {`{"model_type":"deepseek_v2","hidden_size":2048,"intermediate_size":10944,"moe_intermediate_size":1408,"n_routed_experts":64,"num_experts_per_tok":6}`,
			moe.Config{Hidden: 2048, Intermediate: 1408, NumExperts: 64, TopK: 6}},
		"OLMoE-1B-7B": {`{"model_type":"olmoe","hidden_size":2048,"intermediate_size":1024,"num_experts":64,"num_experts_per_tok":8}`,
			moe.Config{Hidden: 2048, Intermediate: 1024, NumExperts: 64, TopK: 8}},
		"gpt-oss-20b": {`{"model_type":"gpt_oss","hidden_act":"silu","hidden_size":2880,"intermediate_size":2880,"num_local_experts":32,"num_experts_per_tok":4,"experts_per_token":4}`,
			moe.Config{Hidden: 2880, Intermediate: 2880, NumExperts: 32, TopK: 4}},
		"GLM-4.5-Air": {`{"model_type":"glm4_moe","hidden_act":"silu","hidden_size":4096,"intermediate_size":10944,"moe_intermediate_size":1408,"n_routed_experts":128,"n_shared_experts":1,"num_experts_per_tok":8}`,
			moe.Config{Hidden: 4096, Intermediate: 1408, NumExperts: 128, TopK: 8}},
		"Kimi K2": {`{"model_type":"kimi_k2","hidden_size":7168,"intermediate_size":18432,"moe_intermediate_size":2048,"n_routed_experts":384,"num_experts_per_tok":8}`,
			moe.Config{Hidden: 7168, Intermediate: 2048, NumExperts: 384, TopK: 8}},
		"Kimi K2.5": {`{"model_type":"kimi_k25","vision_config":{"hidden_size":1152},"text_config":{"model_type":"kimi_k2","hidden_size":7168,"moe_intermediate_size":2048,"n_routed_experts":384,"num_experts_per_tok":8}}`,
			moe.Config{Hidden: 7168, Intermediate: 2048, NumExperts: 384, TopK: 8}},
		"Kimi-Linear": {`{"model_type":"kimi_linear","hidden_size":2304,"intermediate_size":9216,"moe_intermediate_size":1024,"num_experts":256,"num_experts_per_token":8}`,
			moe.Config{Hidden: 2304, Intermediate: 1024, NumExperts: 256, TopK: 8}},
		"MiniMax-M2": {`{"model_type":"minimax_m2","hidden_act":"silu","hidden_size":3072,"intermediate_size":1536,"num_local_experts":256,"num_experts_per_tok":8}`,
			moe.Config{Hidden: 3072, Intermediate: 1536, NumExperts: 256, TopK: 8}},
		"Granite 3.1 3B": {`{"model_type":"granitemoe","hidden_size":1536,"intermediate_size":512,"num_local_experts":40,"num_experts_per_tok":8}`,
			moe.Config{Hidden: 1536, Intermediate: 512, NumExperts: 40, TopK: 8}},
		"DBRX": {`{"model_type":"dbrx","d_model":6144,"ffn_config":{"ffn_hidden_size":10752,"moe_num_experts":16,"moe_top_k":4}}`,
			moe.Config{Hidden: 6144, Intermediate: 10752, NumExperts: 16, TopK: 4}},
		"Llama-4 Scout": {`{"model_type":"llama4","text_config":{"model_type":"llama4_text","hidden_size":5120,"intermediate_size":8192,"intermediate_size_mlp":16384,"num_local_experts":16,"num_experts_per_tok":1}}`,
			moe.Config{Hidden: 5120, Intermediate: 8192, NumExperts: 16, TopK: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := parseModel([]byte(c.json))
			require.NoError(t, err)
			assert.Equal(t, c.want, l.config)
			assert.NoError(t, l.config.Check())
			assert.True(t, l.anyHint)
			for _, note := range l.notes {
				assert.NotContains(t, note, "check the sizes")
			}
		})
	}
}

func TestModelsRefused(t *testing.T) {
	for json, say := range map[string]string{
		`{"model_type":"llama","hidden_size":4096,"intermediate_size":14336}`:                                                                                 "is it a Mixture-of-Experts model?",
		`{"model_type":"gemma4","hidden_activation":"gelu_pytorch_tanh","hidden_size":2816,"moe_intermediate_size":704,"num_experts":128,"top_k_experts":8}`:  "these kernels are SwiGLU",
		`{"model_type":"nemotron_h","mlp_hidden_act":"relu2","hidden_size":2688,"moe_intermediate_size":1856,"n_routed_experts":128,"num_experts_per_tok":6}`: "relu2",
		`{"model_type":"x","num_experts":"many"}`:  `num_experts is "many", want a positive number`,
		`{"model_type":"x","num_experts":[64,32]}`: "want a positive number",
		`{"model_type":"x","num_experts":-3}`:      "want a positive number",
		`{"hidden_act":["gelu"],"hidden_size":128,"moe_intermediate_size":64,"num_experts":4,"num_experts_per_tok":2}`: `hidden_act is ["gelu"], want a name`,
		strings.Repeat(`{"text_config":`, 6) + `{}` + strings.Repeat(`}`, 6):                                           "deeper than 4 objects",
		`[]`:    "cannot unmarshal",
		`{"a":`: "unexpected end",
		`{"num_experts":8,"hidden_size":128,"moe_intermediate_size":64,"num_experts_per_tok":null}`: "experts of a token",
	} {
		_, err := parseModel([]byte(json))
		assert.ErrorContains(t, err, say, json)
	}
	l, err := parseModel([]byte(`{"model_type":"new_one","hidden_size":128,"moe_intermediate_size":64,"num_experts":4,"num_experts_per_tok":2}`))
	require.NoError(t, err)
	require.Len(t, l.notes, 1)
	assert.Contains(t, l.notes[0], "check the sizes")
}

func TestLayersFile(t *testing.T) {
	dir := t.TempDir()
	write := func(text string) string {
		path := filepath.Join(dir, "layers.json")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	layers, err := readLayers(write(`{"layers":[{"name":"mine","hidden":128,"intermediate":64,"experts":4,"topK":2},
		{"hidden":256,"intermediate":64,"experts":4,"topK":2,"gateUp":"interleaved","logits":"f32","tokensHint":0}]}`))
	require.NoError(t, err)
	assert.Equal(t, []layer{
		{name: "mine", config: moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 4, TopK: 2}, anyHint: true},
		{name: "layer 1", config: moe.Config{Hidden: 256, Intermediate: 64, NumExperts: 4, TopK: 2, GateUp: moe.Interleaved, Logits: moe.LogitsF32}},
	}, layers)
	for text, say := range map[string]string{
		`{"layers":[]}`:                      "no layers",
		`{"layers":[{"hiden":128}]}`:         "hiden",
		`{"layers":[{"gateUp":"sideways"}]}`: "layer 0: gate-up order",
		`{"layers":[{"logits":"f64"}]}`:      "logits",
		`{`:                                  "unexpected EOF",
	} {
		_, err := readLayers(write(text))
		assert.ErrorContains(t, err, say)
	}
	_, err = readLayers(filepath.Join(dir, "none"))
	assert.ErrorIs(t, err, os.ErrNotExist)
}

// Files that never end, or are larger than anything that people write, take no
// memory; text behind the JSON is not passed over.
func TestTextIsBounded(t *testing.T) {
	large := filepath.Join(t.TempDir(), "large.json")
	require.NoError(t, os.WriteFile(large, append(bytes.Repeat([]byte(" "), maxText), '{', '}'), 0o600))
	paths := []string{large}
	if _, err := os.Stat("/dev/zero"); err == nil {
		paths = append(paths, "/dev/zero")
	}
	for _, path := range paths {
		_, err := readModel(path)
		require.ErrorContains(t, err, "more than 1048576 bytes")
		_, err = readLayers(path)
		require.ErrorContains(t, err, "more than 1048576 bytes")
	}
	_, err := parseLayers([]byte(`{"layers":[{"hidden":128,"intermediate":64,"experts":4,"topK":2}]}{"layers":[]}`))
	require.ErrorContains(t, err, "after the end")
}
