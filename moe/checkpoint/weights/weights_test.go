package weights

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/num"
	"sonicmoe/internal/packed"
	"sonicmoe/internal/spec"
	"sonicmoe/moe/checkpoint/safetensors"
)

// saved is a tensor that a test writes to a file.
type saved struct {
	name  string
	dtype string
	shape []int64
}

// bytes returns the tensor's content: consecutive numbers that start at a value derived
// from the name, so that no two tensors of a test are equal.
func (s saved) bytes() []byte {
	n, _ := safetensors.Tensor{DType: s.dtype, Shape: s.shape}.Bytes()
	out, at := make([]byte, n), byte(len(s.name))
	for _, c := range []byte(s.name) {
		at = at*31 + c
	}
	for i := range out {
		out[i] = at + byte(i*7)
		if s.dtype == "F32" && i%4 < 2 {
			out[i] = 0 // this keeps the value within the range of bf16
		}
		if strings.Contains(s.name, "scale") && s.dtype != "F32" {
			out[i] &= 0x7f // this excludes the NaN of E8M0
		}
		if i%2 == 1 && s.dtype != "U8" {
			out[i] &= 0x3f // this clears a bit of the exponent, which excludes NaN and infinity
		}
		switch {
		case strings.HasSuffix(s.name, "g_idx"): // the groups in order
			out[i] = [...]byte{byte(i / 4 / testGroup), 0, 0, 0}[i%4]
		case strings.HasSuffix(s.name, "qzeros"):
			out[i] &= 0x77 // zero points below 15
		case strings.HasSuffix(s.name, "global_scale") || strings.HasSuffix(s.name, "scale_2"):
			out[i] = [...]byte{0x12, 0x34, out[i], 0x3f}[i%4] // near 1
		case s.dtype == "F8_E4M3":
			out[i] &= 0xbf // this excludes NaN
		}
	}
	return out
}

// testGroup is the number of numbers that share a scale in the tests.
const testGroup = 32

// write writes a model's folder: two files, which get the tensors alternately, and an index.
func write(t *testing.T, config string, tensors ...saved) string {
	return writeSpoiled(t, config, func(string, []byte) {}, tensors...)
}

// writeSpoiled is write, with a function that changes the bytes of each tensor.
func writeSpoiled(t *testing.T, config string, spoil func(name string, data []byte), tensors ...saved) string {
	dir, index := t.TempDir(), map[string]string{}
	var files [2][]safetensors.Source
	for i, s := range tensors {
		data := s.bytes()
		spoil(s.name, data)
		files[i%2] = append(files[i%2], safetensors.Source{Name: s.name, DType: s.dtype, Shape: s.shape, Data: bytes.NewReader(data)})
		index[s.name] = fmt.Sprintf("model-%d.safetensors", i%2)
	}
	for i, sources := range files {
		f, err := os.Create(filepath.Join(dir, fmt.Sprintf("model-%d.safetensors", i)))
		require.NoError(t, err)
		require.NoError(t, safetensors.Write(f, nil, sources...))
		require.NoError(t, f.Close())
	}
	data, err := json.Marshal(map[string]any{"weight_map": index})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "model.safetensors.index.json"), data, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o600))
	return dir
}

const (
	d, n, e = 32, 16, 2
	sizes   = `"hidden_size": 32, "num_hidden_layers": 8, "hidden_act": "silu", "dtype": "bfloat16", "num_experts_per_tok": 1, `
)

func bf16(name string, shape ...int64) saved { return saved{name, "BF16", shape} }

// experts returns the tensors of a layer's experts: three matrices for each expert.
func experts(prefix, gate, up, down string) []saved {
	var list []saved
	for i := range int64(e) {
		at := fmt.Sprintf("%s.experts.%d.", prefix, i)
		list = append(list, bf16(at+down+".weight", d, n), bf16(at+up+".weight", n, d))
		if gate != "" {
			list = append(list, bf16(at+gate+".weight", n, d))
		}
	}
	return list
}

// TestFamilies checks, for each family, that tensors with the family's names become the right
// weights in the layout of the Config.
func TestFamilies(t *testing.T) {
	const at = "model.layers.3.mlp"
	proj := func() []saved { return experts(at, "gate_proj", "up_proj", "down_proj") }
	for _, tt := range []struct {
		name, config string
		tensors      []saved
		want         map[string][]string // for each weight, the tensors from which it is made
	}{
		{"mixtral", `{"model_type": "mixtral", ` + sizes + `"intermediate_size": 16, "num_local_experts": 2}`,
			append(experts("model.layers.3.block_sparse_moe", "w1", "w3", "w2"), bf16("model.layers.3.block_sparse_moe.gate.weight", e, d)),
			map[string][]string{
				"Router": {"model.layers.3.block_sparse_moe.gate.weight"},
				"W1": {"model.layers.3.block_sparse_moe.experts.0.w1.weight", "model.layers.3.block_sparse_moe.experts.0.w3.weight",
					"model.layers.3.block_sparse_moe.experts.1.w1.weight", "model.layers.3.block_sparse_moe.experts.1.w3.weight"},
				"W2": {"model.layers.3.block_sparse_moe.experts.0.w2.weight", "model.layers.3.block_sparse_moe.experts.1.w2.weight"},
			}},
		{"deepseek", `{"model_type": "deepseek_v3", ` + sizes + `"moe_intermediate_size": 16, "n_routed_experts": 2, "n_group": 1, "topk_group": 1, "n_shared_experts": 2, "first_k_dense_replace": 3}`,
			append(proj(), bf16(at+".gate.weight", e, d), saved{at + ".gate.e_score_correction_bias", "F32", []int64{e}},
				bf16(at+".shared_experts.gate_proj.weight", 2*n, d), bf16(at+".shared_experts.up_proj.weight", 2*n, d), bf16(at+".shared_experts.down_proj.weight", d, 2*n)),
			map[string][]string{
				"SelectionBias": {at + ".gate.e_score_correction_bias"}, "SharedW1": {at + ".shared_experts.gate_proj.weight"},
				"SharedW3": {at + ".shared_experts.up_proj.weight"}, "SharedW2": {at + ".shared_experts.down_proj.weight"},
			}},
		{"qwen2", `{"model_type": "qwen2_moe", ` + sizes + `"moe_intermediate_size": 16, "num_experts": 2, "shared_expert_intermediate_size": 16, "norm_topk_prob": false}`,
			append(proj(), bf16(at+".gate.weight", e, d), bf16(at+".shared_expert_gate.weight", 1, d),
				bf16(at+".shared_expert.gate_proj.weight", n, d), bf16(at+".shared_expert.up_proj.weight", n, d), bf16(at+".shared_expert.down_proj.weight", d, n)),
			map[string][]string{"SharedGate": {at + ".shared_expert_gate.weight"}, "W2": {at + ".experts.0.down_proj.weight", at + ".experts.1.down_proj.weight"}}},
		{"granite", `{"model_type": "granitemoe", ` + sizes + `"intermediate_size": 16, "num_local_experts": 2}`,
			[]saved{bf16("model.layers.3.block_sparse_moe.router.layer.weight", e, d), bf16("model.layers.3.block_sparse_moe.input_linear.weight", e, 2*n, d),
				bf16("model.layers.3.block_sparse_moe.output_linear.weight", e, d, n)},
			map[string][]string{"W1": {"model.layers.3.block_sparse_moe.input_linear.weight"}, "Router": {"model.layers.3.block_sparse_moe.router.layer.weight"}}},
		{"llama4", `{"model_type": "llama4", "text_config": {"model_type": "llama4_text", ` + sizes + `"intermediate_size": 16, "num_local_experts": 2}}`,
			[]saved{bf16("language_model.model.layers.3.feed_forward.router.weight", e, d), bf16("language_model.model.layers.3.feed_forward.experts.gate_up_proj", e, d, 2*n),
				bf16("language_model.model.layers.3.feed_forward.experts.down_proj", e, n, d), bf16("vision_model.model.layers.3.mlp.fc1.weight", 4, 4),
				bf16("language_model.model.layers.3.feed_forward.shared_expert.gate_proj.weight", n, d), bf16("language_model.model.layers.3.feed_forward.shared_expert.up_proj.weight", n, d),
				bf16("language_model.model.layers.3.feed_forward.shared_expert.down_proj.weight", d, n)},
			map[string][]string{"W1": {"language_model.model.layers.3.feed_forward.experts.gate_up_proj"}, "W2": {"language_model.model.layers.3.feed_forward.experts.down_proj"}}},
		{"nemotron", `{"model_type": "nemotron_h", ` + sizes + `"moe_intermediate_size": 16, "n_routed_experts": 2, "moe_shared_expert_intermediate_size": 32, "hybrid_override_pattern": "MEMEMEME"}`,
			append(experts("backbone.layers.3.mixer", "", "up_proj", "down_proj"), bf16("backbone.layers.3.mixer.gate.weight", e, d),
				saved{"backbone.layers.3.mixer.gate.e_score_correction_bias", "F32", []int64{e}},
				bf16("backbone.layers.3.mixer.shared_experts.up_proj.weight", 2*n, d), bf16("backbone.layers.3.mixer.shared_experts.down_proj.weight", d, 2*n)),
			map[string][]string{"W1": {"backbone.layers.3.mixer.experts.0.up_proj.weight", "backbone.layers.3.mixer.experts.1.up_proj.weight"},
				"SharedW1": {"backbone.layers.3.mixer.shared_experts.up_proj.weight"}}},
		{"minimax", `{"model_type": "minimax_m2", ` + sizes + `"intermediate_size": 16, "num_local_experts": 2}`,
			append(experts("model.layers.3.block_sparse_moe", "w1", "w3", "w2"), saved{"model.layers.3.block_sparse_moe.gate.weight", "F32", []int64{e, d}},
				saved{"model.layers.3.block_sparse_moe.e_score_correction_bias", "F32", []int64{e}}),
			map[string][]string{"Router": {"model.layers.3.block_sparse_moe.gate.weight"}, "SelectionBias": {"model.layers.3.block_sparse_moe.e_score_correction_bias"}}},
		{"dbrx", `{"model_type": "dbrx", "d_model": 32, "n_layers": 8, "ffn_config": {"ffn_hidden_size": 16, "moe_num_experts": 2, "moe_top_k": 1, "moe_normalize_expert_weights": 1}, "dtype": "bfloat16"}`,
			[]saved{bf16("transformer.blocks.3.ffn.router.layer.weight", e, d), bf16("transformer.blocks.3.ffn.experts.mlp.w1", e*n, d),
				bf16("transformer.blocks.3.ffn.experts.mlp.v1", e*n, d), bf16("transformer.blocks.3.ffn.experts.mlp.w2", e*n, d)},
			map[string][]string{"Router": {"transformer.blocks.3.ffn.router.layer.weight"}, "W1": {"transformer.blocks.3.ffn.experts.mlp.w1"},
				"W3": {"transformer.blocks.3.ffn.experts.mlp.v1"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tensors := append(tt.tensors, bf16("model.layers.3.self_attn.o_proj.weight", 4, 4), bf16("model.layers.13.mlp.gate.weight", 4, 4), bf16("model.layers.4.mlp.other", 4))
			made(t, tt.config, tensors, tt.want)
		})
	}
}

// made loads layer 3 and compares each weight with the tensors from which it must be made.
func made(t *testing.T, config string, tensors []saved, want map[string][]string) *Layer {
	l, err := Open(t.Context(), write(t, config, tensors...), 3)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	data := map[string][]byte{}
	for _, s := range tensors {
		data[s.name] = s.bytes()
	}
	for name, of := range want {
		var want []byte
		for _, part := range of {
			require.Contains(t, data, part)
			want = append(want, data[part]...)
		}
		got, err := l.Tensor(t.Context(), idOf(name))
		require.NoError(t, err)
		assert.Equal(t, want, got, name)
	}
	for _, id := range spec.Weights {
		got, err := l.Tensor(t.Context(), id)
		require.NoError(t, err, id)
		s := l.shape(id)
		assert.Len(t, got, int(s.Bytes()), id)
	}
	return l
}

// TestTransposed checks transpose, which is for DBRX: its files have the down-projections as [in,
// out], one expert after another.
func TestTransposed(t *testing.T) {
	from := []byte{1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0, 7, 0, 8, 0, 9, 0, 10, 0, 11, 0, 12, 0} // two matrices of 3 by 2 bf16 numbers
	to := make([]byte, len(from))
	transpose(to, from, 2, 3, 2)
	assert.Equal(t, []byte{1, 0, 3, 0, 5, 0, 2, 0, 4, 0, 6, 0, 7, 0, 9, 0, 11, 0, 8, 0, 10, 0, 12, 0}, to)
}

const gptOSS = `{"model_type": "gpt_oss", ` + sizes + `"intermediate_size": 32, "num_local_experts": 2, "swiglu_limit": 7.0}`

func gptOSSTensors() []saved {
	const at = "model.layers.0.mlp."
	u8 := func(name string, shape ...int64) saved { return saved{at + name, "U8", shape} }
	return []saved{bf16(at+"router.weight", e, d), bf16(at+"router.bias", e), bf16(at+"experts.gate_up_proj_bias", e, 64), bf16(at+"experts.down_proj_bias", e, d),
		u8("experts.gate_up_proj_blocks", e, 64, 1, 16), u8("experts.gate_up_proj_scales", e, 64, 1),
		u8("experts.down_proj_blocks", e, d, 1, 16), u8("experts.down_proj_scales", e, d, 1)}
}

// TestMXFP4 checks that gpt-oss's MXFP4 blocks become bf16 weights with matrices [out, in].
func TestMXFP4(t *testing.T) {
	tensors := gptOSSTensors()
	l, err := Open(t.Context(), write(t, gptOSS, tensors...), 0)
	require.NoError(t, err)
	defer l.Close()
	assert.Equal(t, false, l.Config.InOut)
	assert.Equal(t, spec.Interleaved, l.Config.GateUp)
	assert.Equal(t, "mxfp4", l.Config.Weights)
	for id, of := range map[spec.TensorID]saved{spec.TensorW1: tensors[4], spec.TensorW1Scale: tensors[5], spec.TensorW2: tensors[6], spec.TensorW2Scale: tensors[7]} {
		got, err := l.Tensor(t.Context(), id)
		require.NoError(t, err)
		assert.Equal(t, of.bytes(), got, "%v as in the file", id)
	}
	l.Config.Weights = ""
	w1, err := l.Tensor(t.Context(), spec.TensorW1)
	require.NoError(t, err)
	want := packed.Bits(mxfp4, packed.Matrices{Codes: tensors[4].bytes(), Scales: tensors[5].bytes()}, spec.BF16, 64, d)
	require.True(t, bytes.Equal(num.Bytes(want), w1))
	bias, err := l.Tensor(t.Context(), spec.TensorRouterBias)
	require.NoError(t, err)
	assert.Len(t, bias, 4*e, "the bias is FP32 here, bf16 in the file")
}

// TestFP8 checks that FP8 codes times the scales of their blocks become bf16 weights, for matrices
// whose last blocks are smaller, with tensors of one expert or of all experts.
func TestFP8(t *testing.T) {
	const d, n, at = 160, 144, "model.layers.1.mlp."
	config := strings.Replace(`{"model_type": "qwen3_moe", `+sizes+`"moe_intermediate_size": 144, "num_experts": 2, "norm_topk_prob": true,
		"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}`, `"hidden_size": 32`, `"hidden_size": 160`, 1)
	scaled := func(name string, shape, blocks []int64) []saved {
		return []saved{{at + name, "F8_E4M3", shape}, {at + name + "_scale_inv", "F32", blocks}}
	}
	apart, whole := []saved{bf16(at+"gate.weight", e, d)}, []saved{bf16(at+"gate.weight", e, d)}
	for i := range e {
		for _, name := range []string{"gate_proj", "up_proj", "down_proj"} {
			shape := []int64{n, d}
			if name == "down_proj" {
				shape = []int64{d, n}
			}
			apart = append(apart, scaled(fmt.Sprintf("experts.%d.%s.weight", i, name), shape, []int64{2, 2})...)
		}
	}
	whole = append(whole, scaled("experts.gate_up_proj", []int64{e, 2 * n, d}, []int64{e, 3, 2})...)
	whole = append(whole, scaled("experts.down_proj", []int64{e, d, n}, []int64{e, 2, 2})...)

	value := func(b byte) float64 { // the value by the definition: sign, exponent, fraction
		v := math.Pow(2, float64(b>>3&15)-10) * (8 + float64(b&7))
		if b&0x78 == 0 {
			v = math.Pow(2, -9) * float64(b&7)
		}
		if b&0x7f == 0x7f {
			v = math.NaN()
		}
		return math.Copysign(v, float64(int8(b)))
	}
	// dequantised returns the values of one or several matrices of rows x columns.
	dequantised := func(of []saved, name string, rows, columns int) []float32 {
		find := func(name string) []byte {
			return of[slices.IndexFunc(of, func(s saved) bool { return s.name == at+name })].bytes()
		}
		numbers, factors := find(name), make([]float32, len(find(name+"_scale_inv"))/4)
		copy(num.Bytes(factors), find(name+"_scale_inv"))
		var out []float32
		for len(numbers) > 0 {
			across := (columns + 127) / 128
			for r := range rows {
				for c := range columns {
					out = append(out, float32(value(numbers[r*columns+c]))*factors[r/128*across+c/128])
				}
			}
			numbers, factors = numbers[rows*columns:], factors[(rows+127)/128*across:]
		}
		return out
	}
	for _, of := range [][]saved{apart, whole} {
		l, err := Open(t.Context(), write(t, config, of...), 1)
		require.NoError(t, err)
		defer l.Close()
		var w1, w2 []float32
		if len(of) == len(whole) {
			w1, w2 = dequantised(of, "experts.gate_up_proj", 2*n, d), dequantised(of, "experts.down_proj", d, n)
		} else {
			for i := range e {
				expert := fmt.Sprintf("experts.%d.", i)
				w1 = append(append(w1, dequantised(of, expert+"gate_proj.weight", n, d)...), dequantised(of, expert+"up_proj.weight", n, d)...)
				w2 = append(w2, dequantised(of, expert+"down_proj.weight", d, n)...)
			}
		}
		want := map[spec.TensorID][]float32{spec.TensorW1: w1, spec.TensorW2: w2}
		if len(of) != len(whole) {
			// In one tensor, a block of W1 would have rows of gate and of up, because 144 is no
			// multiple of 128.
			assert.Equal(t, spec.Apart, l.Config.GateUp)
			half := n * d
			want[spec.TensorW1] = slices.Concat(w1[:half], w1[2*half:3*half])
			want[spec.TensorW3] = slices.Concat(w1[half:2*half], w1[3*half:])
		}
		assert.Equal(t, "fp8", l.Config.Weights)
		assert.Empty(t, l.Model.Assumed)
		l.Config.Weights = ""
		for id, want := range want {
			bits := make([]uint16, len(want))
			num.EncodeBF16(bits, want)
			got, err := l.Tensor(t.Context(), id)
			require.NoError(t, err)
			assert.True(t, bytes.Equal(num.Bytes(bits), got), id)
		}
	}
}

func TestRefuses(t *testing.T) {
	const at = "model.layers.0.mlp"
	config := `{"model_type": "qwen3_moe", ` + sizes + `"moe_intermediate_size": 16, "num_experts": 2, "norm_topk_prob": true%s}`
	good := func() []saved {
		return append(experts(at, "gate_proj", "up_proj", "down_proj"), bf16(at+".gate.weight", e, d))
	}
	for _, tt := range []struct {
		name   string
		config string
		layer  int
		of     []saved
		want   string
	}{
		{"no such layer", "", 8, good(), "layer 8 has no experts; layers with experts: [0 1 2 3 4 5 6 7]"},
		{"dense layer", `, "mlp_only_layers": [0]`, 0, good(), "layer 0 has no experts"},
		{"no tensors", "", 1, good(), "no tensor of layer 1's experts is there, of 7: model.layers.0.mlp.experts.0.down_proj.weight, "},
		{"a tensor that nobody reads", "", 0, append(good(), bf16(at+".gate.scale", d)), `tensor "model.layers.0.mlp.gate.scale" is of layer 0's experts, but no weight of the layer`},
		{"a bias that the layer has not", "", 0, append(good(), saved{at + ".gate.e_score_correction_bias", "F32", []int64{e}}), `is the layer's SelectionBias, which d=32 n=16`},
		{"no router", "", 0, good()[:6], "the layer has no Router bf16 [2 32], must have it"},
		{"an expert is missing", "", 0, good()[1:], "the files have 512 elements of W2, must have 1024 (bf16 [2 32 16]): expert 0 lacks a tensor"},
		{"an expert too many", "", 0, append(good(), bf16(at+".experts.2.down_proj.weight", d, n)), "is of expert 2, config.json has 2"},
		{"other extents", "", 0, append(good()[1:], bf16(at+".experts.0.down_proj.weight", n, d)), "has the extents [16 32], must be [32 16]"},
		{"fp8", "", 0, append(good()[1:], saved{at + ".experts.0.down_proj.weight", "F8_E4M3", []int64{d, n}}), "is FP8 (F8_E4M3) without tensor \"model.layers.0.mlp.experts.0.down_proj.weight_scale_inv\", its scales"},
		{"scales of other blocks", "", 0, append(good()[1:], saved{at + ".experts.0.down_proj.weight", "F8_E4M3", []int64{d, n}}, saved{at + ".experts.0.down_proj.weight_scale_inv", "F32", []int64{d, 2}}),
			"has the extents [32 2], must be [1 1], one for each block of 128 x 128"},
		{"scales of bf16", "", 0, append(good(), saved{at + ".experts.0.down_proj.weight_scale_inv", "F32", []int64{1, 1}}), `is BF16 and has scales, tensor "model.layers.0.mlp.experts.0.down_proj.weight_scale_inv": must be F8_E4M3`},
		{"scales of nothing", "", 0, append(good(), saved{at + ".experts.2.down_proj.weight_scale_inv", "F32", []int64{1, 1}}), `experts.2.down_proj.weight_scale_inv" is of layer 0's experts, but no weight of the layer`},
		{"gptq", `, "quantization_config": {"quant_method": "gptq", "bits": 4}`, 0, append(good()[1:], saved{at + ".experts.0.down_proj.qweight", "I32", []int64{4, n}}),
			"the weights are quantised, gptq, 4 bits: tensor \"model.layers.0.mlp.experts.0.down_proj.qweight\" has the extents [4 16], must be [16 4] in AWQ or [2 32] in GPTQ"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l, err := Open(t.Context(), write(t, fmt.Sprintf(config, tt.config), tt.of...), tt.layer)
			if err == nil {
				defer l.Close()
				for _, id := range spec.Weights {
					if _, e := l.Tensor(t.Context(), id); e != nil {
						err = e
					}
				}
			}
			require.ErrorContains(t, err, tt.want)
		})
	}
	_, err := Open(t.Context(), t.TempDir(), 0)
	require.ErrorContains(t, err, "config.json")
	dir := write(t, fmt.Sprintf(config, ""), good()...)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "model.safetensors.index.json"), []byte(`{"weight_map": {"a": "../b"}}`), 0o600))
	_, err = Open(t.Context(), dir, 0)
	require.ErrorContains(t, err, `"a" is in "../b", must be a file of the folder`)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "model.safetensors.index.json"), []byte(`{"weight_map": {"a": "b", "a": "c"}}`), 0o600))
	_, err = Open(t.Context(), dir, 0)
	require.ErrorContains(t, err, "the field weight_map.a stands twice")
	require.NoError(t, os.Remove(filepath.Join(dir, "model.safetensors.index.json")))
	l, err := Open(t.Context(), dir, 0)
	require.NoError(t, err, "without an index")
	_, err = l.Tensor(t.Context(), spec.TensorX)
	require.ErrorContains(t, err, "id is X, must be a weight")
	require.NoError(t, l.Close())
}

// idOf returns the id of the weight with a name.
func idOf(name string) spec.TensorID {
	i := slices.IndexFunc(spec.Weights, func(id spec.TensorID) bool { return id.String() == name })
	return spec.Weights[i]
}
