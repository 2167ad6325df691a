package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
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

// TestPackedModel checks that a model's packed weights give the same output as the dequantised
// weights. (The command dequantises them if it must write gradients.) It also checks that the
// line that the command prints names the format.
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
					assert.Contains(t, stdout.String(), fmt.Sprintf("the files' weights are loaded as they are, with Config.Weights %q", tt.word))
				} else {
					assert.NotContains(t, stdout.String(), " weights=")
					assert.Contains(t, stdout.String(), tt.word+": the files' weights are dequantised when they are loaded: packed weights have no gradients")
				}
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

// TestPackedExperts checks models in 4-bit formats that have separate tensors for each expert.
// The packed layer must have the same output as the layer with dequantised weights.
func TestPackedExperts(t *testing.T) {
	const at = "model.layers.1.mlp."
	x := randomTensors(small, 20, 57)
	d, n, e := x.config.Hidden, x.config.Intermediate, x.config.NumExperts
	repeat := func(pattern []byte, size int) []byte { return bytes.Repeat(pattern, size/len(pattern)) }
	random := func(size int) []byte {
		data := make([]byte, size)
		for i := range data {
			data[i] = byte(i*i*7 + i*31 + size)
		}
		return data
	}
	bf16, f16, e4m3 := []byte{0x00, 0x3d}, []byte{0x00, 0x28}, []byte{0x20} // 2^-5, 2^-5, 2^-3
	for _, tt := range []struct {
		word, format string
		matrix       func(add func(name, dtype string, data []byte, shape ...int), rows, columns int)
	}{
		{"int4-g32", `{"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "symmetric": true, "group_size": 32}}}}`,
			func(add func(name, dtype string, data []byte, shape ...int), rows, columns int) {
				add("weight_packed", "I32", random(rows*columns/2), rows, columns/8)
				add("weight_scale", "BF16", repeat(bf16, rows*columns/16), rows, columns/32)
			}},
		{"uint4-g32-f16", `{"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": true}`,
			func(add func(name, dtype string, data []byte, shape ...int), rows, columns int) {
				add("qweight", "I32", random(rows*columns/2), columns, rows/8)
				add("qzeros", "I32", random(rows*columns/64), columns/32, rows/8)
				add("scales", "F16", repeat(f16, rows*columns/16), columns/32, rows)
			}},
		{"nvfp4", `{"quant_method": "modelopt", "quant_algo": "NVFP4"}`,
			func(add func(name, dtype string, data []byte, shape ...int), rows, columns int) {
				add("weight", "U8", random(rows*columns/2), rows, columns/2)
				add("weight_scale", "F8_E4M3", repeat(e4m3, rows*columns/16), rows, columns/16)
				add("weight_scale_2", "F32", []byte{0xab, 0xaa, 0xaa, 0x3e}) // 1/3
			}},
	} {
		t.Run(tt.word, func(t *testing.T) {
			list := []safetensors.Source{fileTensor(at+"gate.weight", "BF16", bytes.NewReader(bytesOf(x.router)), e, d)}
			for expert := range e {
				for _, m := range []struct {
					name          string
					rows, columns int
				}{{"gate_proj", n, d}, {"up_proj", n, d}, {"down_proj", d, n}} {
					tt.matrix(func(name, dtype string, data []byte, shape ...int) {
						list = append(list, fileTensor(fmt.Sprintf("%sexperts.%d.%s.%s", at, expert, m.name, name), dtype, bytes.NewReader(data), shape...))
					}, m.rows, m.columns)
				}
			}
			dir := t.TempDir()
			config := fmt.Sprintf(`{"model_type": "qwen3_moe", "dtype": "bfloat16", "hidden_size": %d, "num_experts_per_tok": 2, "hidden_act": "silu", "num_hidden_layers": 2,
				"moe_intermediate_size": %d, "num_experts": %d, "norm_topk_prob": true, "quantization_config": %s}`, d, n, e, tt.format)
			require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o600))
			writeFile(t, filepath.Join(dir, "model.safetensors"), list...)
			var outputs [][]uint16
			for _, of := range []tensors{x, x.withDO(58)} { // gradients need dequantised weights
				files := of.write(t, false)
				var stdout, stderr bytes.Buffer
				args := []string{"-model", dir, "-layer", "1", "-input", files.input, "-output", files.output, "-device", drivertest.Name(), "-cache", "off"}
				require.Equal(t, command.Done, exit(args, &stdout, &stderr), stderr.String())
				assert.Equal(t, of.do == nil, strings.Contains(stdout.String(), " weights="+tt.word))
				f, err := safetensors.Open(t.Context(), files.output)
				require.NoError(t, err)
				outputs = append(outputs, numbers[uint16](t, f, nameO, "BF16", int64(x.tokens), int64(d)))
				require.NoError(t, f.Close())
			}
			require.Equal(t, outputs[1], outputs[0])
			require.True(t, slices.ContainsFunc(outputs[0], func(bits uint16) bool { return bits&0x7fff != 0 }))
		})
	}
}
