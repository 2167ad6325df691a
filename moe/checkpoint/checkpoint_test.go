package checkpoint_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/published"
	"sonicmoe/internal/spec"
	"sonicmoe/moe/checkpoint"
)

// TestPublished checks the expert layer of each published model.
func TestPublished(t *testing.T) {
	const from = 3 // the first layer of DeepSeek-V3 that has experts
	want := map[string]struct {
		config string
		moe    int // number of layers with experts
		first  int
	}{
		"Mixtral 8x7B":         {"d=4096 n=14336 E=8 K=2 w1=concatenated logits=bf16", 32, 0},
		"Mixtral 8x22B":        {"d=6144 n=16384 E=8 K=2 w1=concatenated logits=bf16", 56, 0},
		"DBRX":                 {"d=6144 n=10752 E=16 K=4 w1=apart logits=bf16", 40, 0},
		"Phi-3.5-MoE":          {"d=4096 n=6400 E=16 K=2 w1=concatenated logits=bf16", 32, 0},
		"MiniMax-M1":           {"d=6144 n=9216 E=32 K=2 w1=concatenated logits=bf16", 80, 0},
		"Llama-4 Scout":        {"d=5120 n=8192 E=16 K=1 w1=concatenated logits=bf16 order=in-out score=sigmoid score-on-input shared=1", 48, 0},
		"Llama-4 Maverick":     {"d=5120 n=8192 E=128 K=1 w1=concatenated logits=bf16 order=in-out score=sigmoid score-on-input shared=1", 24, 1},
		"gpt-oss-20b":          {"d=2880 n=2880 E=32 K=4 w1=interleaved logits=bf16 order=in-out act=swiglu-oai alpha=1.702 limit=7 bias router-bias", 24, 0},
		"gpt-oss-120b":         {"d=2880 n=2880 E=128 K=4 w1=interleaved logits=bf16 order=in-out act=swiglu-oai alpha=1.702 limit=7 bias router-bias", 36, 0},
		"Qwen1.5-MoE-A2.7B":    {"d=2048 n=1408 E=60 K=4 w1=concatenated logits=bf16 score=softmax shared=4 shared-gate", 24, 0},
		"Qwen2-57B-A14B":       {"d=3584 n=2560 E=64 K=8 w1=concatenated logits=bf16 score=softmax shared=8 shared-gate", 28, 0},
		"DeepSeek-V2-Lite":     {"d=2048 n=1408 E=64 K=6 w1=concatenated logits=f32 score=softmax shared=2", 26, 1},
		"DeepSeek-V2":          {"d=5120 n=1536 E=160 K=6 w1=concatenated logits=f32 score=softmax groups=3/8 scale=16 shared=2", 59, 1},
		"DeepSeek-V3":          {"d=7168 n=2048 E=256 K=8 w1=concatenated logits=f32 score=sigmoid selection-bias groups=4/8 group-score=sum2 renorm=sum epsilon=1e-20 scale=2.5 shared=1", 58, from},
		"Kimi K2":              {"d=7168 n=2048 E=384 K=8 w1=concatenated logits=f32 score=sigmoid selection-bias renorm=sum epsilon=1e-20 scale=2.827 shared=1", 60, 1},
		"Kimi-Linear-48B-A3B":  {"d=2304 n=1024 E=256 K=8 w1=concatenated logits=f32 score=sigmoid selection-bias renorm=sum epsilon=1e-20 scale=2.446 shared=1", 26, 1},
		"OLMoE-1B-7B":          {"d=2048 n=1024 E=64 K=8 w1=concatenated logits=bf16 score=softmax", 16, 0},
		"Qwen3-30B-A3B":        {"d=2048 n=768 E=128 K=8 w1=concatenated logits=bf16", 48, 0},
		"Qwen3-235B-A22B":      {"d=4096 n=1536 E=128 K=8 w1=concatenated logits=bf16", 94, 0},
		"Qwen3-Next-80B-A3B":   {"d=2048 n=512 E=512 K=10 w1=concatenated logits=bf16 shared=1 shared-gate", 48, 0},
		"Qwen3-Coder-480B":     {"d=6144 n=2560 E=160 K=8 w1=concatenated logits=bf16", 62, 0},
		"Qwen3.5-397B-A17B":    {"d=4096 n=1024 E=512 K=10 w1=concatenated logits=bf16 shared=1 shared-gate", 60, 0},
		"GLM-4.5":              {"d=5120 n=1536 E=160 K=8 w1=concatenated logits=f32 score=sigmoid selection-bias renorm=sum epsilon=1e-20 scale=2.5 shared=1", 89, 3},
		"GLM-4.5-Air":          {"d=4096 n=1408 E=128 K=8 w1=concatenated logits=f32 score=sigmoid selection-bias renorm=sum epsilon=1e-20 shared=1", 45, 1},
		"MiniMax-M2":           {"d=3072 n=1536 E=256 K=8 w1=concatenated logits=f32 router=f32 score=sigmoid selection-bias renorm=sum", 62, 0},
		"Granite 3.1 3B-A800M": {"d=1536 n=512 E=40 K=8 w1=concatenated logits=bf16", 32, 0},
		"Granite 3.1 1B-A400M": {"d=1024 n=512 E=32 K=8 w1=concatenated logits=bf16", 24, 0},
		"Gemma-4 26B-A4B":      {"d=2816 n=704 E=128 K=8 w1=concatenated logits=bf16 act=geglu-tanh expert-scale", 30, 0},
		"Nemotron-3-Nano":      {"d=2688 n=1856 E=128 K=6 w1=concatenated logits=f32 act=relu2 score=sigmoid selection-bias renorm=sum epsilon=1e-20 scale=2.5 shared=2", 23, 1},
		"ERNIE-4.5-21B-A3B":    {"d=2560 n=1536 E=64 K=6 w1=concatenated logits=f32 router=f32 score=softmax selection-bias renorm=clamp epsilon=1e-12 shared=2", 27, 1},
		"Hunyuan-A13B":         {"d=4096 n=3072 E=64 K=8 w1=concatenated logits=f32 router=f32 shared=1", 32, 0},
	}
	list, err := published.Models()
	require.NoError(t, err)
	require.Len(t, list, len(want))
	for _, m := range list {
		w, ok := want[m.Name]
		require.True(t, ok, m.Name)
		assert.Equal(t, w.config, m.Config.String(), m.Name)
		assert.Len(t, m.MoE, w.moe, m.Name)
		assert.Equal(t, w.first, m.MoE[0], m.Name)
		assert.Empty(t, m.Unknown, m.Name)
		outside := m.Type == "phimoe" || m.Type == "gemma4_text"
		assert.Equal(t, outside, len(m.Outside) > 0, m.Name)
	}
}

const qwen3 = `{"model_type": "qwen3_moe", "hidden_size": 64, "moe_intermediate_size": 32, "num_experts": 8,
	"num_experts_per_tok": 2, "norm_topk_prob": true, "hidden_act": "silu", "num_hidden_layers": 4, "dtype": "bfloat16"%s}`

const v3 = `{"model_type": "deepseek_v3", "hidden_size": 64, "moe_intermediate_size": 32, "n_routed_experts": 8, "num_experts_per_tok": 2, "num_hidden_layers": 4, "n_group": 1%s}`

var (
	nested    = regexp.MustCompile(`[\[{][^\[\]{}]*[\]}]`)
	fieldName = regexp.MustCompile(`"(\w+)":`)
)

// with adds fields to the text of a config.json. If a field is present already, its value changes.
func with(model, more string) string {
	outer := more
	for nested.MatchString(outer) {
		outer = nested.ReplaceAllString(outer, "")
	}
	for _, name := range fieldName.FindAllStringSubmatch(outer, -1) {
		model = regexp.MustCompile(`"`+name[1]+`": [^\[{,}%]+(,\s*)?`).ReplaceAllString(model, "")
	}
	return strings.Replace(fmt.Sprintf(model, more), ", , ", ", ", 1)
}

func TestRead(t *testing.T) {
	for _, tt := range []struct {
		name, json string
		check      func(t *testing.T, m checkpoint.Model)
	}{
		{"nothing to say", with(qwen3, ""), func(t *testing.T, m checkpoint.Model) {
			assert.Empty(t, m.Assumed)
			assert.Empty(t, m.Unknown)
			assert.Equal(t, []int{0, 1, 2, 3}, m.MoE)
		}},
		{"an unknown field is named", with(qwen3, `, "num_zero_experts": 3, "router_aux_loss_coef": 0.1`), func(t *testing.T, m checkpoint.Model) {
			assert.Equal(t, []string{"num_zero_experts = 3"}, m.Unknown)
		}},
		{"dense layers", with(qwen3, `, "decoder_sparse_step": 2, "mlp_only_layers": [3]`), func(t *testing.T, m checkpoint.Model) {
			assert.Equal(t, []int{1}, m.MoE)
		}},
		{"layers by word", strings.Replace(strings.Replace(with(v3, `, "mlp_layer_types": ["dense", "sparse", "sparse"], "first_k_dense_replace": 1`), `"num_hidden_layers": 4, `, "", 1), "deepseek_v3", "deepseek_v32", 1), func(t *testing.T, m checkpoint.Model) {
			assert.Equal(t, []int{1, 2}, m.MoE)
			assert.Equal(t, 3, m.Layers)
			assert.Empty(t, m.Unknown)
		}},
		{"layers of a hybrid by word", `{"model_type": "nemotron_h", "hidden_size": 64, "moe_intermediate_size": 32, "moe_shared_expert_intermediate_size": 64, "n_routed_experts": 8,
			"num_experts_per_tok": 2, "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"]}`, func(t *testing.T, m checkpoint.Model) {
			assert.Equal(t, []int{1}, m.MoE)
			assert.Equal(t, 4, m.Layers)
		}},
		{"a model with pictures has no norm switch", strings.NewReplacer("qwen3_moe", "qwen3_vl_moe_text", `"norm_topk_prob": true, `, "").Replace(with(qwen3, "")), func(t *testing.T, m checkpoint.Model) {
			assert.Equal(t, spec.SoftmaxTopK, m.Config.Score)
			assert.Empty(t, m.Assumed)
		}},
		{"listed layers of Llama-4", `{"model_type": "llama4", "text_config": {"model_type": "llama4_text", "hidden_size": 64, "intermediate_size": 32, "num_local_experts": 4, "num_experts_per_tok": 1,
			"num_hidden_layers": 4, "moe_layers": [1, 3], "interleave_moe_layer_step": 1}}`, func(t *testing.T, m checkpoint.Model) {
			assert.Equal(t, []int{1, 3}, m.MoE)
			assert.Empty(t, m.Unknown)
		}},
		{"defaults are said", strings.Replace(strings.Replace(with(qwen3, ""), `"norm_topk_prob": true, `, "", 1), `"bfloat16"`, `"float32"`, 1), func(t *testing.T, m checkpoint.Model) {
			assert.Equal(t, spec.SoftmaxAll, m.Config.Score)
			assert.Equal(t, []string{`dtype is "float32": the layer computes in bfloat16`, "norm_topk_prob is not there: false, the default of transformers"}, m.Assumed)
		}},
		{"fp16", strings.Replace(with(qwen3, ""), `"bfloat16"`, `"float16"`, 1), func(t *testing.T, m checkpoint.Model) {
			assert.Equal(t, spec.F16, m.Config.Type)
			assert.Equal(t, spec.F16, m.Config.Logits)
		}},
		{"a byte order mark, and Python's numbers", "\ufeff" + with(qwen3, `, "time_step_limit": [0, Infinity], "x": -Infinity, "y": NaN, "z": "NaN \" Infinity"`), func(t *testing.T, m checkpoint.Model) {
			assert.Equal(t, 8, m.Config.NumExperts)
		}},
		{"AFMoE", `{"model_type": "afmoe", "hidden_size": 64, "moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2, "num_shared_experts": 1,
			"num_dense_layers": 2, "route_scale": 2.5, "num_hidden_layers": 4}`, func(t *testing.T, m checkpoint.Model) {
			assert.Equal(t, "d=64 n=32 E=8 K=2 w1=concatenated logits=bf16 score=sigmoid selection-bias renorm=sum epsilon=1e-20 scale=2.5 shared=1", m.Config.String())
			assert.Equal(t, []int{2, 3}, m.MoE)
		}},
		{"LFM2 without its switches", `{"model_type": "lfm2_moe", "hidden_size": 64, "moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2,
			"use_expert_bias": false, "norm_topk_prob": false, "num_dense_layers": 0, "num_hidden_layers": 4}`, func(t *testing.T, m checkpoint.Model) {
			assert.Equal(t, "d=64 n=32 E=8 K=2 w1=concatenated logits=bf16 score=sigmoid", m.Config.String())
			assert.Len(t, m.MoE, 4)
		}},
		{"Cohere with sigmoids", `{"model_type": "cohere2_moe", "hidden_size": 64, "intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2, "expert_selection_fn": "sigmoid",
			"num_shared_experts": 2, "shared_expert_combination_strategy": "sum", "first_k_dense_replace": 1, "num_hidden_layers": 4}`, func(t *testing.T, m checkpoint.Model) {
			assert.Equal(t, "d=64 n=32 E=8 K=2 w1=concatenated logits=bf16 score=sigmoid renorm=sum shared=2", m.Config.String())
			assert.Equal(t, []int{1, 2, 3}, m.MoE)
		}},
		{"a text model by its outer name", strings.Replace(with(v3, `, "first_k_dense_replace": 2`), "deepseek_v3", "glm4v_moe", 1), func(t *testing.T, m checkpoint.Model) {
			assert.Equal(t, 1.0, m.Config.Scale())
			assert.Equal(t, []int{2, 3}, m.MoE)
		}},
		{"dots.llm1 norms only where it says so", strings.Replace(with(v3, ""), "deepseek_v3", "dots1", 1), func(t *testing.T, m checkpoint.Model) {
			assert.Equal(t, spec.NoRenorm, m.Config.Renormalize)
		}},
		{"a model in a model", `{"model_type": "whole", "hidden_size": 7, "text_config": ` + with(qwen3, "") + `}`, func(t *testing.T, m checkpoint.Model) {
			assert.Equal(t, 64, m.Config.Hidden)
			assert.Equal(t, "qwen3_moe", m.Type)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, err := checkpoint.Read([]byte(tt.json))
			require.NoError(t, err)
			tt.check(t, m)
		})
	}
}

func TestReadRefuses(t *testing.T) {
	deep := strings.Repeat(`{"text_config": `, 9000) + "{}" + strings.Repeat("}", 9000)
	for _, tt := range []struct{ name, json, want string }{
		{"no JSON", "model", "config.json: invalid character"},
		{"unknown model", `{"model_type": "new_moe"}`, `model_type "new_moe" is not known (the table of models in README.md lists those that are), and it has none of num_local_experts, num_experts, n_routed_experts, moe_num_experts: a dense model has no expert layer`},
		{"unknown model with experts", `{"model_type": "new_moe", "num_experts": 8}`, `model_type "new_moe" is not known (the table of models in README.md lists those that are)`},
		{"a model that is known and not covered", `{"model_type": "zaya"}`, `model_type "zaya" is refused: its router is a network with a state`},
		{"no model", `{}`, `config.json has no model_type, and it has none of num_local_experts`},
		{"no size", `{"model_type": "mixtral", "hidden_size": 64}`, "mixtral: config.json has no intermediate_size"},
		{"wrong size", with(qwen3, `, "moe_intermediate_size": "wide"`), `qwen3_moe: moe_intermediate_size is "wide", must be a whole number`},
		{"half a size", with(qwen3, `, "moe_intermediate_size": 32.5`), `moe_intermediate_size is 32.5, must be a whole number`},
		{"negative size", with(qwen3, `, "num_experts": -8`), `num_experts is -8, must be above 0`},
		{"a size that no layer has", with(qwen3, `, "hidden_size": 100`), "Config.Hidden is 100, must be a multiple of 16"},
		{"more than there are", with(qwen3, `, "num_experts_per_tok": 9`), "Config.TopK is 9"},
		{"activation", with(qwen3, `, "hidden_act": "mish"`), `hidden_act is "mish", which no activation here is`},
		{"activation of another type", with(qwen3, `, "hidden_act": 3`), `hidden_act is 3, must be a string`},
		{"a shared expert where there is none", with(qwen3, `, "shared_expert_intermediate_size": 48`), "shared_expert_intermediate_size is 48, must be 0"},
		{"shared width", strings.Replace(with(qwen3, `, "shared_expert_intermediate_size": 48`), "qwen3_moe", "qwen2_moe", 1), "the shared experts are 48 wide, must be a multiple of an expert's 32"},
		{"scoring", with(v3, `, "scoring_func": "softmax"`), `deepseek_v3: scoring_func is softmax, must be "sigmoid", which is all that this family's layer computes`},
		{"bias", with(v3, `, "mlp_bias": true`), "mlp_bias is true, must be false"},
		{"latent experts", `{"model_type": "nemotron_h", "hidden_size": 64, "moe_intermediate_size": 32, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_latent_size": 16}`, "moe_latent_size is 16: its experts have another width than its tokens"},
		{"Gemma without experts", `{"model_type": "gemma4_text"}`, "enable_moe_block is false: the model has no experts"},
		{"no layer with experts", with(qwen3, `, "decoder_sparse_step": 5`), "none of its 4 layers has experts"},
		{"layers of different kinds", `{"model_type": "hunyuan_v1_moe", "hidden_size": 64, "intermediate_size": 32, "num_experts": 8, "moe_topk": [2, 4], "num_hidden_layers": 2}`, "moe_topk is [2, 4], must be a whole number"},
		{"shared experts averaged", `{"model_type": "cohere2_moe", "hidden_size": 64, "intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2, "num_shared_experts": 1,
			"shared_expert_combination_strategy": "average", "num_hidden_layers": 2}`, `shared_expert_combination_strategy is average, must be "sum"`},
		{"logits capped", `{"model_type": "laguna", "hidden_size": 64, "moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2, "shared_expert_intermediate_size": 32,
			"moe_router_logit_softcapping": 30, "num_hidden_layers": 2}`, "moe_router_logit_softcapping is 30, must be 0"},
		{"limits after the activation", `{"model_type": "step3p5", "hidden_size": 64, "moe_intermediate_size": 32, "n_routed_experts": 8, "num_experts_per_tok": 2, "share_expert_dim": 32,
			"swiglu_limits": [0, 7], "mlp_layer_types": ["dense", "sparse"]}`, "swiglu_limits is 7, must be 0"},
		{"a field twice", `{"model_type": "mixtral", "num_local_experts": 8, "num_local_\u0065xperts": 4}`, "config.json has the field num_local_experts twice, must have it once"},
		{"a field of a part twice", `{"a": [1, {"x": 1}, {"x": 2}], "text_config": {"model_type": "mixtral", "rope": [{"k": {"type": 1}}, {"k": {"type": 1, "type": 2}}]}}`,
			"config.json has the field text_config.rope.k.type twice, must have it once"},
		{"too deep", deep, "models in models 4 deep, must be at most 3"},
		{"too long", strings.Repeat(" ", 1<<20+1), "config.json has 1048577 bytes, must be at most 1048576"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := checkpoint.Read([]byte(tt.json))
			require.ErrorContains(t, err, tt.want)
		})
	}
}
