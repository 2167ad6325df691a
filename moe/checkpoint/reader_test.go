package checkpoint_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/moe/checkpoint"
)

// sigmoids returns the config.json of a model whose family is like DeepSeek-V3.
func sigmoids(kind, more string) string {
	return strings.Replace(with(v3, more), "deepseek_v3", kind, 1)
}

const gptOSS = `{"model_type": "gpt_oss", "hidden_size": 64, "intermediate_size": 32, "num_local_experts": 8, "num_experts_per_tok": 2,
	"num_hidden_layers": 4, "hidden_act": "silu", "swiglu_alpha": 1.702, "swiglu_limit": 5, "dtype": "bfloat16"%s}`

const dbrx = `{"model_type": "dbrx", "d_model": 64, "n_layers": 4, "moe_top_k": 4, "ffn_config": {"model_type": "ffn", "hidden_size": 6144, "ffn_hidden_size": 32,
	"moe_num_experts": 8, "moe_top_k": 2%s}}`

const step = `{"model_type": "step3p5", "hidden_size": 64, "moe_intermediate_size": 32, "n_routed_experts": 8, "num_experts_per_tok": 2, "share_expert_dim": 32,
	"num_hidden_layers": 2, "mlp_layer_types": ["dense", "sparse"], "dtype": "bfloat16"%s}`

// TestNull checks that null, NaN and Infinity have the same meaning as in transformers.
func TestNull(t *testing.T) {
	const scaled = `, "routed_scaling_factor": 2, "n_shared_experts": 1, "first_k_dense_replace": 1, "topk_group": 1`
	for _, tt := range []struct {
		name, json string
		want       string // part of the Config's text, or of the error
	}{
		{"no normalisation in DeepSeek-V3", sigmoids("deepseek_v3", scaled+`, "norm_topk_prob": null`), "score=sigmoid selection-bias scale=2 shared=1"},
		{"in A.X-K1", sigmoids("axk1", scaled+`, "norm_topk_prob": null`), "score=sigmoid selection-bias scale=2 shared=1"},
		{"in dots.llm1", sigmoids("dots1", scaled+`, "norm_topk_prob": null`), "score=sigmoid selection-bias scale=2 shared=1"},
		{"in Mistral 4", sigmoids("mistral4", scaled+`, "norm_topk_prob": null`), "score=softmax scale=2 shared=1"},
		{"in Kimi-Linear, by its own name", sigmoids("kimi_linear", scaled+`, "moe_renormalize": null`), "score=sigmoid selection-bias scale=2 shared=1"},
		{"in Ling, too", sigmoids("bailing_hybrid", scaled+`, "moe_renormalize": null`), "score=sigmoid selection-bias scale=2 shared=1"},
		{"not in GLM-4.5", sigmoids("glm4_moe", scaled+`, "norm_topk_prob": null`), "norm_topk_prob is null, must be true or false"},
		{"nor in Qwen3", with(qwen3, `, "norm_topk_prob": null`), "norm_topk_prob is null, must be true or false"},
		{"no scale in MiMo, nor a shared expert", sigmoids("mimo_v2_flash", `, "routed_scaling_factor": null, "n_shared_experts": null`), "renorm=sum epsilon=1e-20"},
		{"not in DeepSeek-V3", sigmoids("deepseek_v3", `, "routed_scaling_factor": null`), "routed_scaling_factor is null, must be a finite number"},
		{"no groups in A.X-K2", strings.Replace(sigmoids("axk2", `, "topk_group": null`), `"n_group": 1`, `"n_group": null`, 1), "selection-bias renorm=sum"},
		{"but groups in DeepSeek-V3", sigmoids("deepseek_v3", `, "n_group": null`), "n_group is null, must be a whole number"},
		{"a size", with(qwen3, `, "num_experts": null`), "num_experts is null, must be a whole number"},
		{"another name's", with(qwen3, `, "num_local_experts": null`), "E=8"},
		{"an activation", with(qwen3, `, "hidden_act": null`), "hidden_act is null, must be a string"},
		{"no layers that are dense", with(qwen3, `, "mlp_only_layers": null`), "E=8"},
		{"scores that nothing divides", with(dbrx, `, "moe_normalize_expert_weights": null`), "moe_normalize_expert_weights is null, must be 1"},
		{"no limits", with(step, `, "swiglu_limits": [null, 0], "swiglu_limits_shared": null`), "shared=1"},
		{"no number", sigmoids("deepseek_v3", `, "routed_scaling_factor": NaN`), "routed_scaling_factor is NaN, must be a finite number"},
		{"a limit", with(gptOSS, ""), "limit=5"},
		{"infinity", with(gptOSS, `, "swiglu_limit": Infinity`), "swiglu_limit is Infinity, must be a finite number"},
		{"as transformers 5 writes it", with(gptOSS, `, "swiglu_limit": {"__float__": "Infinity"}`), `swiglu_limit is {"__float__": "Infinity"}, must be a finite number`},
		{"minus infinity for a count", sigmoids("deepseek_v3", `, "n_shared_experts": -Infinity`), "n_shared_experts is -Infinity, must be a whole number"},
		{"in a switch of one position", with(qwen3, `, "shared_expert_intermediate_size": NaN`), "shared_expert_intermediate_size is NaN, must be 0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, err := checkpoint.Read([]byte(tt.json))
			if strings.Contains(tt.want, "must be") {
				require.ErrorContains(t, err, tt.want)
				return
			}
			require.NoError(t, err)
			assert.Contains(t, m.Config.String()+" ", tt.want+" ")
		})
	}
}

// TestAround checks which fields outside the text model's object count. These are model_type and
// dtype, and only if the object does not have them. Errors name the other fields.
func TestAround(t *testing.T) {
	text := func(more string) string { return sigmoids("glm4v_moe_text", more) }
	around := func(fields, text string) string {
		return `{"model_type": "glm4v_moe", ` + fields + `"text_config": ` + text + `}`
	}
	for _, tt := range []struct {
		name, json, config string
		unknown            []string
	}{
		{"switches", around(`"norm_topk_prob": false, "routed_scaling_factor": 7, "n_shared_experts": 5, "hidden_size": 128, `, text("")), "d=64 n=32 E=8 K=2 w1=concatenated logits=f32 score=sigmoid selection-bias renorm=sum epsilon=1e-20 shared=1",
			[]string{"n_shared_experts = 5, around the text model's fields", "norm_topk_prob = false, around the text model's fields", "routed_scaling_factor = 7, around the text model's fields"}},
		{"the same ones", around(`"n_routed_experts": 8.0, "vision_config": {"hidden_act": "gelu"}, `, text("")), "E=8", nil},
		{"dtype", around(`"torch_dtype": "float16", `, text("")), "type=f16", nil},
		{"dtype that both have", around(`"dtype": "float16", `, text(`, "torch_dtype": "bfloat16"`)), "logits=f32 score=sigmoid selection-bias renorm=sum epsilon=1e-20 shared=1", nil},
		{"dtype that is null inside", around(`"dtype": "float16", `, text(`, "dtype": null`)), "type=f16", nil},
		{"the model_type of a part without one", around("", strings.Replace(text(""), "glm4v_moe_text", "", 1)), "E=8", nil},
		{"a part that is null", strings.Replace(with(qwen3, ""), "{", `{"text_config": null, `, 1), "E=8", nil},
		{"DBRX's sizes", with(dbrx, ""), "d=64 n=32 E=8 K=2 w1=apart logits=bf16", []string{"moe_top_k = 4, around the text model's fields"}},
		{"another's ffn_config", with(qwen3, `, "ffn_config": {"num_experts": 4}`), "E=8", []string{`ffn_config = {"num_experts": 4}`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, err := checkpoint.Read([]byte(tt.json))
			require.NoError(t, err)
			assert.Contains(t, m.Config.String(), tt.config)
			assert.Equal(t, tt.unknown, m.Unknown)
		})
	}
	_, err := checkpoint.Read([]byte(around(`"n_routed_experts": 8, `, strings.Replace(text(""), `"n_routed_experts": 8, `, "", 1))))
	assert.ErrorContains(t, err, "has no num_local_experts or num_experts or n_routed_experts or moe_num_experts among the text model's fields: the n_routed_experts around them is not its")
}

// TestPerLayerConfig checks that per_layer_config may change parts of the model other than expert
// layers, and nothing else.
func TestPerLayerConfig(t *testing.T) {
	for _, tt := range []struct {
		name, model, layers string
		want                string // part of the error
		unknown             []string
	}{
		{"fewer experts", gptOSS, `{"1": {"num_local_experts": 4}}`, "per_layer_config has num_local_experts of layer 1 as 4: layers that differ in it are no one Config's", nil},
		{"a name of the same", gptOSS, `{"1": {"num_experts": 4}}`, "per_layer_config has num_experts of layer 1 as 4", nil},
		{"no experts", gptOSS, `{"3": {"skip": ["mlp"]}}`, `per_layer_config skips "mlp" of layer 3, may skip its attention only`, nil},
		{"a word for a list", gptOSS, `{"3": {"skip": "attention"}}`, `per_layer_config has skip of layer 3 as "attention", must be a list of a layer's parts`, nil},
		{"a list of layers", gptOSS, `[{"num_local_experts": 4}]`, "per_layer_config is [{", nil},
		{"the experts that all have", gptOSS, `{"1": {"num_local_experts": 8.0}}`, "", nil},
		{"no attention", gptOSS, `{"3": {"skip": ["self_attn"]}, "2": {"skip": []}}`, "", nil},
		{"heads of attention", step, `{"0": {"num_attention_heads": 96, "head_dim": 32}}`, "", nil},
		{"what nobody reads", gptOSS, `{"1": {"num_zero_experts": 4, "num_heads": 1}, "2": {"num_zero_experts": 5}}`, "", []string{"num_zero_experts = 4, in layer 1"}},
		{"nothing", gptOSS, `null`, "", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, err := checkpoint.Read([]byte(with(tt.model, `, "per_layer_config": `+tt.layers)))
			if tt.want != "" {
				require.ErrorContains(t, err, tt.want)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, tt.unknown, m.Unknown)
		})
	}
}

// TestUnknownFields checks that Unknown names a field that may belong to the layer, in upper or
// lower case. It must not name fields of the loss, of attention and of other parts.
func TestUnknownFields(t *testing.T) {
	const mixtral = `{"model_type": "mixtral", "hidden_size": 64, "intermediate_size": 32, "num_local_experts": 8, "num_experts_per_tok": 2, "num_hidden_layers": 3, %q: %s}`
	for value, names := range map[string][]string{
		"2.5": {"routed_scaling_factor", "route_scale", "route_norm", "use_routing_bias", "use_bias", "ffn_bias", "gate_bias", "activation_limit", "block_configs", "layer_overrides", "Num_Experts", "MoE_Layer_Freq",
			"num_vision_experts", "audio_expert_scale", "expert_attention_scale", "linear_router_scale", "expert_token_capacity", "mtp_num_experts", "swish_limit", "hidden_activation"},
		"true": {"use_bias", "mlp_bias"},
	} {
		for _, name := range names {
			m, err := checkpoint.Read([]byte(fmt.Sprintf(mixtral, name, value)))
			require.NoError(t, err, name)
			assert.Equal(t, []string{name + " = " + value}, m.Unknown)
		}
	}
	for value, names := range map[string][]string{
		"2.5": {"router_aux_loss_coef", "output_router_logits", "router_z_loss_coef", "attention_bias", "qkv_bias", "rope_scaling", "logits_scaling", "time_step_limit", "image_token_id", "vision_config", "quantization_config", "use_conv_bias",
			"num_nextn_predict_layers", "experts_implementation", "expert_dropout", "lm_head_bias", "attention_dropout"},
		"false": {"use_bias", "mlp_bias"},
		"null":  {"num_zero_experts", "per_layer_config"},
	} {
		for _, name := range names {
			m, err := checkpoint.Read([]byte(fmt.Sprintf(mixtral, name, value)))
			require.NoError(t, err, name)
			assert.Empty(t, m.Unknown)
		}
	}
}

// TestNoConfig checks the errors for texts that are not a config.json.
func TestNoConfig(t *testing.T) {
	for _, tt := range []struct{ name, json, want string }{
		{"a list", `[1]`, "config.json is a JSON array, must be an object"},
		{"null", `null`, "config.json is null, must be an object"},
		{"a text model that is a list", `{"text_config": [1]}`, "config.json: text_config is a JSON array, must be an object"},
		{"a number for a name", `{"model_type": 3}`, "model_type is 3, must be a string"},
		{"layers without end", strings.Replace(with(qwen3, ""), `"num_hidden_layers": 4`, `"num_hidden_layers": 3000000000`, 1), "qwen3_moe: the model has 3000000000 layers, must have at most 4096"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := checkpoint.Read([]byte(tt.json))
			require.EqualError(t, err, tt.want)
		})
	}
}
