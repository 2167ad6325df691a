package weights

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/num"
	"sonicmoe/internal/packed"
	"sonicmoe/internal/spec"
)

// fp8Layer returns a layer of width n in FP8 files, with scales of a dtype. A tensor has one
// expert, or all experts if fused is set.
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

// TestPacked checks that the codes and scales of packed weights have the same values as the weights
// of the same files when they are dequantised.
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
		{160, 144, "F32", false, "fp8"}, // in one tensor, gate and up would share a block, so they become separate tensors
	} {
		config, list := fp8Layer(tt.d, tt.n, tt.scale, tt.fused)
		l, err := Open(t.Context(), write(t, config, list...), 1)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, l.Close()) })
		require.Equal(t, tt.want, l.Config.Weights)
		assert.Equal(t, tt.n == 144 && !tt.fused, l.Config.GateUp == spec.Apart)
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
			got := packed.Bits(spec.PackingOf(l.Config), packed.Matrices{Codes: codes, Scales: scales}, spec.BF16, int(s.Dims[1]), int(s.Dims[2]))
			require.Equal(t, want, num.Bytes(got), "%v of %v", id, tt)
		}
		none, err := plain.Tensor(t.Context(), spec.TensorW1Scale)
		require.NoError(t, err)
		require.Empty(t, none, "a dequantised layer has no scales")
	}
}

// TestFirstNaN checks that a NaN of either sign is found at every place among other codes.
func TestFirstNaN(t *testing.T) {
	codes := make([]byte, 37)
	for i := range codes {
		codes[i] = []byte{0x7e, 0x00, 0xfe, 0x80, 0x01}[i%5]
	}
	require.Equal(t, -1, firstNaN(codes))
	require.Equal(t, -1, firstNaN(nil))
	for i, code := range codes {
		for _, nan := range []byte{0x7f, 0xff} {
			codes[i] = nan
			require.Equal(t, i, firstNaN(codes))
		}
		codes[i] = code
	}
}
