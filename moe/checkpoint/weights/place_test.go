package weights

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/internal/spec"
)

// load opens layer 3 of the model and reads all of its weights.
func load(t *testing.T, dir string) error {
	l, err := Open(t.Context(), dir, 3)
	if err != nil {
		return err
	}
	defer l.Close()
	for _, id := range spec.Weights {
		if _, err := l.Tensor(t.Context(), id); err != nil {
			return err
		}
	}
	return nil
}

const (
	mixtral = `{"model_type": "mixtral", ` + sizes + `"intermediate_size": 16, "num_local_experts": 2}`
	phimoe  = `{"model_type": "phimoe", ` + sizes + `"intermediate_size": 16, "num_local_experts": 2}`
	block3  = "model.layers.3.mlp"
)

// TestEachElementOnce checks that Open refuses tensors that would leave elements of a weight unset,
// or set elements twice, and that the error names the tensors.
func TestEachElementOnce(t *testing.T) {
	router := bf16(block3+".gate.weight", e, d)
	good := slices.Clip(append(experts(block3, "w1", "w3", "w2"), router))
	at := func(name string, shape ...int64) saved { return bf16(block3+".experts."+name, shape...) }
	without := func(drop string, more ...saved) []saved {
		return append(slices.DeleteFunc(slices.Clone(good), func(s saved) bool { return s.name == block3+".experts."+drop }), more...)
	}
	for name, c := range map[string]struct {
		config string
		of     []saved
		want   string
	}{
		"all is well": {mixtral, good, ""},
		"expert 0 is there as 00 too, 1 is not": {mixtral, without("1.w2.weight", at("00.w2.weight", d, n)),
			`tensors "model.layers.3.mlp.experts.0.w2.weight" and "model.layers.3.mlp.experts.00.w2.weight" are the same part of W2, must be one`},
		"gate by two names, up of 1 missing": {mixtral, without("1.w3.weight", at("0.gate_proj.weight", n, d)),
			`tensors "model.layers.3.mlp.experts.0.gate_proj.weight" and "model.layers.3.mlp.experts.0.w1.weight" are the same part of W1`},
		"all in one beside single ones": {mixtral, append(good, at("down_proj", e, d, n)), "are the same part of W2, must be one"},
		"two routers":                   {mixtral, append(good, bf16(block3+".router.weight", e, d)), "are the same part of Router, must be one"},
		"scales of plain weights":       {mixtral, append(good, saved{block3 + ".experts.down_proj_scales", "U8", []int64{e, d, 1}}), `tensor "model.layers.3.mlp.experts.down_proj_scales" is MXFP4 and "model.layers.3.mlp.experts.0.w1.weight" is not`},
		"a missing piece":               {mixtral, without("1.w3.weight"), "the files have 1536 elements of W1, must have 2048 (bf16 [2 32 32]): expert 1 lacks a tensor"},
		"gate and up apart, no up":      {mixtral, []saved{router, bf16("model.layers.3.moe.gate_proj.weight", e, n, d), bf16("model.layers.3.moe.down_proj.weight", e, d, n)}, "has the extents [2 16 32], must be [2 32 32]"},
		"another packing":               {mixtral, append(good, at("0.w1.qweight", n, 4)), `tensors "model.layers.3.mlp.experts.0.w1.qweight" and "model.layers.3.mlp.experts.0.w1.weight" are the same part of W1, must be one`},
		"nothing but another packing":   {mixtral, []saved{at("0.w1.qqweight", n, 4)}, `tensor "model.layers.3.mlp.experts.0.w1.qqweight" is of layer 3's experts`},
		"two stacks of layers":          {mixtral, append(good, bf16("draft.layers.3.mlp.gate.weight", e, d)), "layer 3 has experts in 2 stacks of layers, must have them in one: draft.layers, model.layers"},
		"stacks that are other parts'": {mixtral, append(good, bf16("mtp.layers.3.mlp.gate.weight", e, d), bf16("model.mtp.layers.3.mlp.gate.weight", e, d), bf16("talker.model.layers.3.mlp.gate.weight", e, d),
			bf16("vision_tower.blocks.3.mlp.experts.0.w1.weight", e, d), bf16("model.sam_model.blocks.3.mlp.lin1.weight", e, d)), ""},
		"a bias beside a router of its own":  {phimoe, append(good, at("0.w1.bias", n)), `tensor "model.layers.3.mlp.experts.0.w1.bias" is of layer 3's experts, but no weight of the layer`},
		"a scale beside a router of its own": {phimoe, append(good, at("0.w1.weight_scale", 1)), `experts.0.w1.weight" is BF16 and has scales, tensor "model.layers.3.mlp.experts.0.w1.weight_scale": must be F8_E4M3`},
		"a shared expert that config.json has not": {`{"model_type": "granitemoehybrid", ` + sizes + `"intermediate_size": 16, "num_local_experts": 2, "shared_intermediate_size": 0}`,
			append(good, bf16("model.layers.3.shared_mlp.input_linear.weight", 2*n, d)), `shared_mlp.input_linear.weight" is the layer's SharedW1, which d=32 n=16`},
		"a router of its own": {phimoe, good, ""},
		"single experts where a square could lie either way": {`{"model_type": "llama4", "text_config": {"model_type": "llama4_text", ` + sizes + `"intermediate_size": 32, "num_local_experts": 2}}`,
			[]saved{router, at("gate_up_proj", e, d, 64), at("0.down_proj.weight", d, 32), at("1.down_proj.weight", d, 32), bf16(block3+".shared_expert.gate_proj.weight", 32, d),
				bf16(block3+".shared_expert.up_proj.weight", 32, d), bf16(block3+".shared_expert.down_proj.weight", d, 32)}, `experts.0.down_proj.weight" has one expert, must have all`},
	} {
		t.Run(name, func(t *testing.T) {
			err := load(t, write(t, c.config, c.of...))
			if c.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.want)
			}
		})
	}
}

// TestFiles checks models without an index, or with a damaged index.
func TestFiles(t *testing.T) {
	const index = "model.safetensors.index.json"
	dir := write(t, mixtral, append(experts(block3, "w1", "w3", "w2"), bf16(block3+".gate.weight", e, d))...)
	for text, want := range map[string]string{
		`[]`:                   index + ": must be an object whose weight_map has the file of each tensor",
		`{"weight_map": null}`: "must be an object whose weight_map",
		`{"weight_map": [1]}`:  "must be an object whose weight_map",
		`{"weight_map": `:      index + ": unexpected end",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, index), []byte(text), 0o600))
		require.ErrorContains(t, load(t, dir), want)
	}
	require.NoError(t, os.Remove(filepath.Join(dir, index)))
	require.NoError(t, load(t, dir))
	data, err := os.ReadFile(filepath.Join(dir, "model-0.safetensors"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "other.safetensors"), data, 0o600))
	require.ErrorContains(t, load(t, dir), " is in model-0.safetensors and in other.safetensors, must be in one")
}

// TestMXFP4Types checks that MXFP4 is read only from tensors of bytes, and only if all experts of a
// layer are in MXFP4.
func TestMXFP4Types(t *testing.T) {
	const at = block3 + ".experts."
	u8 := func(name string, shape ...int64) saved { return saved{at + name, "U8", shape} }
	good := []saved{bf16(block3+".router.weight", e, d), bf16(block3+".router.bias", e), bf16(at+"gate_up_proj_bias", e, 64), bf16(at+"down_proj_bias", e, d),
		u8("gate_up_proj_blocks", e, 64, 1, 16), u8("gate_up_proj_scales", e, 64, 1), u8("down_proj_blocks", e, d, 1, 16), u8("down_proj_scales", e, d, 1)}
	for _, tt := range []struct {
		name  string
		of    int // index of the tensor to change
		other saved
		want  string
	}{
		{"bytes", 5, u8("gate_up_proj_scales", e, 64, 1), ""},
		{"scales of their own type", 5, saved{at + "gate_up_proj_scales", "F8_E8M0", []int64{e, 64, 1}}, ""},
		{"wide scales", 5, bf16(at+"gate_up_proj_scales", e, 64, 1), `tensor "model.layers.3.mlp.experts.gate_up_proj_scales": is BF16, must be U8 or F8_E8M0`},
		{"scales of another type", 5, saved{at + "gate_up_proj_scales", "F8_E4M3", []int64{e, 64, 1}}, "is F8_E4M3, must be U8 or F8_E8M0"},
		{"wide blocks", 4, bf16(at+"gate_up_proj_blocks", e, 64, 1, 16), `gate_up_proj_blocks": is BF16, must be U8`},
		{"blocks of another type", 6, saved{at + "down_proj_blocks", "I8", []int64{e, d, 1, 16}}, "is I8, must be U8"},
		{"one plain weight", 6, bf16(at+"down_proj", e, 32, d), `tensor "model.layers.3.mlp.experts.gate_up_proj_blocks" is MXFP4 and "model.layers.3.mlp.experts.down_proj" is not`},
		{"no scales", 7, bf16("model.layers.3.norm", 4), `is without tensor "model.layers.3.mlp.experts.down_proj_scales", its scales`},
		{"no blocks", 6, bf16("model.layers.3.norm", 4), `down_proj_scales" is there without its blocks`},
		{"scales twice", 1, saved{"model.layers.3.experts.down_proj_scales", "U8", []int64{e, d, 1}}, "are both the scales of W2, must be one"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			list := slices.Clone(good)
			list[tt.of] = tt.other
			if tt.name == "scales twice" {
				list = append(list, good[1])
			}
			dir := write(t, gptOSS, list...)
			err := load(t, dir)
			if tt.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tt.want)
		})
	}
}
