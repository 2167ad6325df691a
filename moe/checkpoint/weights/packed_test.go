package weights

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/num"
	"sonicmoe/internal/packed"
	"sonicmoe/internal/spec"
	"sonicmoe/moe/checkpoint/safetensors"
)

// fp8Layer has FP8 tensors of a layer of width n, with scales of a type: those of each expert,
// or of all.
func fp8Layer(d, n int64, scale string, fused bool) (config string, list []saved) {
	const at = "model.layers.1.mlp."
	config = fmt.Sprintf(`{"model_type": "qwen3_moe", "hidden_size": %d, "num_hidden_layers": 2, "hidden_act": "silu", "dtype": "bfloat16", "num_experts_per_tok": 1,
		"moe_intermediate_size": %d, "num_experts": 2, "norm_topk_prob": true, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}`, d, n)
	list = []saved{bf16(at+"gate.weight", e, d)}
	add := func(name string, leading []int64, rows, columns int64) {
		down, across := fp8.Blocks(rows, columns)
		list = append(list, saved{at + name, "F8_E4M3", append(leading[:len(leading):len(leading)], rows, columns)},
			saved{at + name + "_scale_inv", scale, append(leading[:len(leading):len(leading)], down, across)})
	}
	if fused {
		add("experts.gate_up_proj", []int64{e}, 2*n, d)
		add("experts.down_proj", []int64{e}, d, n)
		return config, list
	}
	for i := range e {
		expert := fmt.Sprintf("experts.%d.", i)
		add(expert+"gate_proj.weight", nil, n, d)
		add(expert+"up_proj.weight", nil, n, d)
		add(expert+"down_proj.weight", nil, d, n)
	}
	return config, list
}

// TestPacked checks that the codes and scales of packed weights mean the weights that the same
// files give when they are dequantised.
func TestPacked(t *testing.T) {
	for _, tt := range []struct {
		d, n  int64
		scale string
		fused bool
		want  string
	}{
		{160, 128, "F32", false, "fp8"},
		{160, 144, "F32", true, "fp8"},
		{144, 256, "BF16", false, "fp8"},
		{256, 128, "F8_E8M0", false, "fp8-ue8m0"},
		{272, 144, "F8_E8M0", true, "fp8-ue8m0"},
		{160, 144, "F32", false, ""}, // a block would have rows of gate and of up
	} {
		config, list := fp8Layer(tt.d, tt.n, tt.scale, tt.fused)
		l, err := Open(t.Context(), write(t, config, list...), 1)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, l.Close()) })
		require.Equal(t, tt.want, l.Config.Weights)
		if tt.want == "" {
			assert.Equal(t, []string{"the fp8 weights are dequantised when they are loaded: gate and up are 144 rows each, must be a multiple of 128 to lie in one tensor"}, l.Model.Assumed)
			continue
		}
		plain := *l
		plain.Config.Weights = ""
		for id, scale := range map[spec.TensorID]spec.TensorID{spec.TensorW1: spec.TensorW1Scale, spec.TensorW2: spec.TensorW2Scale} {
			codes, err := l.Tensor(t.Context(), id)
			require.NoError(t, err)
			scales, err := l.Tensor(t.Context(), scale)
			require.NoError(t, err)
			want, err := plain.Tensor(t.Context(), id)
			require.NoError(t, err)
			s := plain.shape(id)
			got := packed.Bits(l.packing(), packed.Matrices{Codes: codes, Scales: scales}, spec.BF16, int(s.Dims[1]), int(s.Dims[2]))
			require.Equal(t, want, num.Bytes(got), "%v of %v", id, tt)
		}
		none, err := plain.Tensor(t.Context(), spec.TensorW1Scale)
		require.NoError(t, err)
		require.Empty(t, none, "a dequantised layer has no scales")
	}
}

// TestPackedWords checks INT4 weights of compressed-tensors, packed and dequantised.
func TestPackedWords(t *testing.T) {
	const d, n, at = 128, 64, "model.layers.1.mlp."
	config := `{"model_type": "deepseek_v3", "hidden_size": 128, "num_hidden_layers": 2, "hidden_act": "silu", "dtype": "bfloat16", "num_experts_per_tok": 1,
		"moe_intermediate_size": 64, "n_routed_experts": 2, "n_group": 1, "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1,
		"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "symmetric": true, "group_size": 32}}}}}`
	for _, tt := range []struct {
		scale string
		group int64
		want  string
	}{{"BF16", 32, "int4-g32"}, {"F32", 32, ""}} {
		list := []saved{bf16(at+"gate.weight", e, d), {at + "gate.e_score_correction_bias", "F32", []int64{e}}}
		add := func(name string, rows, columns int64) {
			list = append(list, saved{at + name + "_packed", "I32", []int64{rows, columns / 8}}, saved{at + name + "_scale", tt.scale, []int64{rows, columns / tt.group}},
				saved{at + name + "_shape", "I64", []int64{2}})
		}
		for i := range e {
			expert := fmt.Sprintf("experts.%d.", i)
			add(expert+"gate_proj.weight", n, d)
			add(expert+"up_proj.weight", n, d)
			add(expert+"down_proj.weight", d, n)
		}
		list = append(list, bf16(at+"shared_experts.gate_proj.weight", n, d), bf16(at+"shared_experts.up_proj.weight", n, d))
		add("shared_experts.down_proj.weight", d, n) // dequantised in every layer
		l, err := Open(t.Context(), write(t, config, list...), 1)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, l.Close()) })
		require.Equal(t, tt.want, l.Config.Weights)
		plain := *l
		plain.Config.Weights = ""
		bytesOf := func(name string) []byte {
			return list[slices.IndexFunc(list, func(s saved) bool { return s.name == at+name })].bytes()
		}
		value := func(name string, row, column, columns int) float32 { // the definition
			word := binary.LittleEndian.Uint32(bytesOf(name + "_packed")[(row*columns+column)/8*4:])
			s := row*columns/int(tt.group) + column/int(tt.group)
			var scale float32
			if raw := bytesOf(name + "_scale"); tt.scale == "BF16" {
				scale = num.BF16ToFloat32(binary.LittleEndian.Uint16(raw[2*s:]))
			} else {
				scale = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*s:]))
			}
			return float32(int(word>>(column%8*4)&15)-8) * scale
		}
		for id, of := range map[spec.TensorID]string{spec.TensorW2: "experts.1.down_proj.weight", spec.TensorSharedW2: "shared_experts.down_proj.weight"} {
			got, err := plain.Tensor(t.Context(), id)
			require.NoError(t, err)
			got = got[len(got)-2*d*n:] // the last expert
			for i := range d * n {
				want := num.Float32ToBF16(value(of, i/n, i%n, n))
				require.Equal(t, want, binary.LittleEndian.Uint16(got[2*i:]), "%s, element %d", of, i)
			}
		}
		if tt.want == "" {
			continue
		}
		for id, scale := range map[spec.TensorID]spec.TensorID{spec.TensorW1: spec.TensorW1Scale, spec.TensorW2: spec.TensorW2Scale} {
			codes, err := l.Tensor(t.Context(), id)
			require.NoError(t, err)
			scales, err := l.Tensor(t.Context(), scale)
			require.NoError(t, err)
			want, err := plain.Tensor(t.Context(), id)
			require.NoError(t, err)
			s := plain.shape(id)
			require.Equal(t, want, num.Bytes(packed.Bits(l.packing(), packed.Matrices{Codes: codes, Scales: scales}, spec.BF16, int(s.Dims[1]), int(s.Dims[2]))), id)
		}
	}
}

// TestPackedScales checks that scales that are no numbers are refused by tensor and element.
func TestPackedScales(t *testing.T) {
	config, list := fp8Layer(256, 128, "F32", false)
	name := "model.layers.1.mlp.experts.1.down_proj.weight_scale_inv"
	for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1))} {
		var file bytes.Buffer
		var sources []safetensors.Source
		for _, s := range list {
			data := s.bytes()
			if s.name == name {
				copy(data[4:], num.Bytes([]float32{bad}))
			}
			sources = append(sources, safetensors.Source{Name: s.name, DType: s.dtype, Shape: s.shape, Data: bytes.NewReader(data)})
		}
		require.NoError(t, safetensors.Write(&file, nil, sources...))
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "model.safetensors"), file.Bytes(), 0o600))
		l, err := Open(t.Context(), dir, 1)
		require.NoError(t, err)
		_, err = l.Tensor(t.Context(), spec.TensorW2Scale)
		require.ErrorContains(t, err, fmt.Sprintf("tensor %q: element 1 of the scales is %v, must be finite", name, bad))
		require.NoError(t, l.Close())
	}
}
