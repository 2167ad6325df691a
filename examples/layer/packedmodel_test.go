package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/examples/internal/command"
	"sonicmoe/internal/drivertest"
	"sonicmoe/internal/num"
	"sonicmoe/internal/packed"
	"sonicmoe/internal/spec"
	"sonicmoe/moe/checkpoint/safetensors"
)

// TestPackedModel checks that a model's packed weights give the output of the same weights
// dequantised, which the command computes with if it also writes gradients. The line that it
// prints names the format.
func TestPackedModel(t *testing.T) {
	const at = "model.layers.1.mlp."
	for _, tt := range []struct {
		kind, format, word string
		config             string
	}{
		{"gpt_oss", `{"quant_method": "mxfp4"}`, "mxfp4", `"intermediate_size": 64, "num_local_experts": 8, "swiglu_limit": 7.0`},
		{"qwen3_moe", `{"quant_method": "fp8", "weight_block_size": [128, 128]}`, "fp8", `"moe_intermediate_size": 64, "num_experts": 8, "norm_topk_prob": true`},
	} {
		t.Run(tt.word, func(t *testing.T) {
			x := randomTensors(small, 20, 55)
			p, c := spec.PackingNamed(tt.word), x.config
			d, n, e := c.Hidden, c.Intermediate, c.NumExperts
			var list []safetensors.Source
			add := func(name, dtype string, data []byte, shape ...int) {
				list = append(list, fileTensor(at+name, dtype, bytes.NewReader(data), shape...))
			}
			zeros := func(n int) []byte { return make([]byte, 2*n) }
			matrix := func(name string, bits []uint16, rows, columns int) {
				values := make([]float32, len(bits))
				num.DecodeBF16(values, bits)
				m := packed.Pack(p, values, rows, columns)
				codes, scales := m.Codes, m.Scales
				if tt.word == "mxfp4" {
					add(name+"_blocks", "U8", codes, e, rows, columns/32, 16)
					add(name+"_scales", "U8", scales, e, rows, columns/32)
					add(name+"_bias", "BF16", zeros(e*rows), e, rows)
					return
				}
				down, across := p.Blocks(int64(rows), int64(columns))
				add(name, "F8_E4M3", codes, e, rows, columns)
				add(name+"_scale_inv", "F32", scales, e, int(down), int(across))
			}
			matrix("experts.gate_up_proj", x.w1, 2*n, d)
			matrix("experts.down_proj", x.w2, d, n)
			router := map[string]string{"gpt_oss": "router.weight", "qwen3_moe": "gate.weight"}[tt.kind]
			add(router, "BF16", bytesOf(x.router), e, d)
			if tt.kind == "gpt_oss" {
				add("router.bias", "BF16", zeros(e), e)
			}
			dir := t.TempDir()
			config := fmt.Sprintf(`{"model_type": %q, "dtype": "bfloat16", "hidden_size": 128, "num_experts_per_tok": 2, "hidden_act": "silu", "num_hidden_layers": 2, "quantization_config": %s, %s}`, tt.kind, tt.format, tt.config)
			require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o600))
			writeFile(t, filepath.Join(dir, "model.safetensors"), list...)

			var outputs [][]uint16
			for _, of := range []tensors{x, x.withDO(56)} {
				files := of.write(t, false)
				var stdout, stderr bytes.Buffer
				args := []string{"-model", dir, "-layer", "1", "-input", files.input, "-output", files.output, "-device", drivertest.Name(), "-cache", "off"}
				require.Equal(t, command.Done, exit(args, &stdout, &stderr), stderr.String())
				if of.do == nil {
					assert.Contains(t, stdout.String(), " weights="+tt.word)
				} else {
					assert.NotContains(t, stdout.String(), " weights=")
				}
				assert.Contains(t, stdout.String(), fmt.Sprintf("the files' weights are loaded as they are, with Config.Weights %q", tt.word))
				f, err := safetensors.Open(t.Context(), files.output)
				require.NoError(t, err)
				outputs = append(outputs, numbers[uint16](t, f, nameO, "BF16", int64(x.tokens), int64(d)))
				require.NoError(t, f.Close())
			}
			require.Equal(t, outputs[1], outputs[0])

			stored, files := filepath.Join(t.TempDir(), "layer.safetensors"), x.write(t, false)
			var stdout, stderr bytes.Buffer
			require.Equal(t, command.Done, exit([]string{"-model", dir, "-layer", "1", "-store", stored}, &stdout, &stderr), stderr.String())
			assert.Contains(t, stdout.String(), stored+": d=128 n=64 E=8 K=2")
			assert.Contains(t, stdout.String(), "the files' weights are loaded as they are")
			args := []string{"-model", stored, "-input", files.input, "-output", files.output, "-device", drivertest.Name(), "-cache", "off"}
			require.Equal(t, command.Done, exit(args, &stdout, &stderr), stderr.String())
			f, err := safetensors.Open(t.Context(), files.output)
			require.NoError(t, err)
			defer f.Close()
			require.Equal(t, outputs[0], numbers[uint16](t, f, nameO, "BF16", int64(x.tokens), int64(d)))
			for _, wrong := range []struct {
				args []string
				want string
			}{
				{[]string{"-store", stored}, "-store is " + stored + ", which needs -model"},
				{[]string{"-model", dir, "-layer", "1", "-store", stored, "-input", files.input}, "-input and -store are given, want -store alone"},
			} {
				require.Equal(t, command.Misuse, exit(wrong.args, &stdout, &stderr))
				assert.Contains(t, stderr.String(), wrong.want)
			}
		})
	}
}
