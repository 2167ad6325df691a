package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/examples/internal/command"
	"sonicmoe/internal/drivertest"
	"sonicmoe/moe"
	"sonicmoe/moe/checkpoint/safetensors"
)

const modelConfig = `{"dtype": "%s", "model_type": "%s", "hidden_size": 128, "moe_intermediate_size": 64, "num_experts": 8, "num_experts_per_tok": 2,
	"norm_topk_prob": true, "hidden_act": "silu", "num_hidden_layers": 2, "decoder_sparse_step": 1, "mlp_only_layers": [], "shared_expert_intermediate_size": %d}`

// model writes the tensors as layer 1 of a Qwen3-MoE model, expert by expert, and returns the
// folder.
func (x tensors) model(t *testing.T, kind string, shared int) string {
	c, dir := x.config, t.TempDir()
	d, n := c.Hidden, c.Intermediate
	list := []safetensors.Source{x.of("model.layers.1.mlp.gate.weight", x.router, c.NumExperts, d)}
	for e := range c.NumExperts {
		at := fmt.Sprintf("model.layers.1.mlp.experts.%d.", e)
		w1, w2 := x.w1[e*2*n*d:][:2*n*d], x.w2[e*n*d:][:n*d]
		list = append(list, x.of(at+"gate_proj.weight", w1[:n*d], n, d), x.of(at+"up_proj.weight", w1[n*d:], n, d), x.of(at+"down_proj.weight", w2, d, n))
	}
	var file bytes.Buffer
	require.NoError(t, safetensors.Write(&file, nil, list...))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "model.safetensors"), file.Bytes(), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), fmt.Appendf(nil, modelConfig, map[moe.Type]string{moe.BF16: "bfloat16", moe.F16: "float16"}[c.Type], kind, shared), 0o600))
	return dir
}

// TestModel checks that a model's own files give the same output as the same tensors in one
// weights file.
func TestModel(t *testing.T) {
	half := small
	half.Type, half.Logits = moe.F16, moe.F16
	for _, c := range []moe.Config{small, half} {
		t.Run(c.Type.String(), func(t *testing.T) {
			x := randomTensors(c, 20, 51).withDO(52)
			p := x.write(t, false)
			one := p.run(t, "-topk", "2", "-device", drivertest.Name())
			require.NotEmpty(t, one)
			want, err := os.ReadFile(p.output)
			require.NoError(t, err)

			var stdout, stderr bytes.Buffer
			args := []string{"-model", x.model(t, "qwen3_moe", 0), "-layer", "1", "-input", p.input, "-output", p.output, "-device", drivertest.Name()}
			require.Equal(t, command.Done, exit(args, &stdout, &stderr), stderr.String())
			got, err := os.ReadFile(p.output)
			require.NoError(t, err)
			assert.True(t, bytes.Equal(want, got), "the output differs")
			assert.Equal(t, 1, strings.Count(stdout.String(), "\n"), "nothing to remark: %s", stdout.String())
		})
	}
}

// TestModelRemarks checks that the command prints the assumptions about a config.json and the
// fields that it did not understand.
func TestModelRemarks(t *testing.T) {
	x := randomTensors(small, 3, 54)
	p, dir := x.write(t, false), x.model(t, "qwen3_moe", 0)
	path := filepath.Join(dir, "config.json")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	other := strings.NewReplacer(`"dtype": "bfloat16",`, `"expert_choice": true, "quantization_config": {"quant_method": "mxfp4"},`).Replace(string(text))
	require.NoError(t, os.WriteFile(path, []byte(other), 0o600))
	var stdout, stderr bytes.Buffer
	require.Equal(t, command.Done, exit([]string{"-model", dir, "-layer", "1", "-input", p.input, "-output", p.output, "-device", drivertest.Name()}, &stdout, &stderr), stderr.String())
	_, remarks, _ := strings.Cut(stdout.String(), "\n")
	format, remarks, _ := strings.Cut(remarks, "\n")
	assert.Equal(t, dir+": quantised: mxfp4: the experts of this layer have 16 bits a weight in the files", format)
	assert.Equal(t, dir+": assumed: dtype is not there: bfloat16\n"+dir+": not understood: expert_choice = true\n", remarks)
}

// rename changes the name of a tensor in a file to another name of the same length.
func rename(t *testing.T, path, from, to string) {
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Contains(t, string(data), from)
	require.NoError(t, os.WriteFile(path, bytes.Replace(data, []byte(from), []byte(to), 1), 0o600))
}

func TestModelRefuses(t *testing.T) {
	x := randomTensors(small, 3, 53)
	p := x.write(t, false)
	dir, fp8 := x.model(t, "qwen3_moe", 0), x.model(t, "qwen3_moe", 0)
	config, err := os.ReadFile(filepath.Join(fp8, "config.json"))
	require.NoError(t, err)
	config = bytes.Replace(config, []byte("{"), []byte(`{"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": true}, `), 1)
	require.NoError(t, os.WriteFile(filepath.Join(fp8, "config.json"), config, 0o600))
	rename(t, filepath.Join(fp8, "model.safetensors"), "experts.0.up_proj.weight", "experts.0.up_proj.scale_")
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"-model", dir}, command.Misuse, "-layer is missing, must be the number of a layer of -model, from 0"},
		{[]string{"-layer", "1", "-weights", p.weights, "-topk", "2"}, command.Misuse, "-layer is 1, which needs -model"},
		{[]string{"-model", dir, "-layer", "1", "-topk", "2"}, command.Misuse, "-topk and -model are given, want -model alone: the model has it"},
		{[]string{"-model", dir, "-layer", "0"}, command.Failed, "no tensor of layer 0's experts is there"},
		{[]string{"-model", dir, "-layer", "2"}, command.Failed, "layer 2 has no experts; layers with experts: [0 1]"},
		{[]string{"-model", x.model(t, "qwen2_moe", 64), "-layer", "1"}, command.Failed, "the layer has no SharedW1 bf16 [64 128], must have it"},
		{[]string{"-model", fp8, "-layer", "1"}, command.Failed, "the weights are quantised, bitsandbytes, 8 bits: this method is not supported: weights in this format can't be loaded"},
		{[]string{"-model", x.model(t, "mystery", 0), "-layer", "1"}, command.Failed, `model_type "mystery" is not known`},
	} {
		var stdout, stderr bytes.Buffer
		args := append(tt.args, "-input", p.input, "-output", p.output, "-device", "emulated")
		assert.Equal(t, tt.code, exit(args, &stdout, &stderr), tt.args)
		assert.Contains(t, stderr.String(), tt.want)
	}
}
