package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sonicmoe/cache"
	"sonicmoe/driver"
	"sonicmoe/driver/emulated"
	"sonicmoe/examples/internal/command"
	"sonicmoe/internal/num"
	"sonicmoe/internal/reference"
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
	"sonicmoe/moe/checkpoint/safetensors"
)

var published = moe.Config{Hidden: 64, Intermediate: 32, NumExperts: 8, TopK: 2}

const publishedJSON = `{"model_type": "%s", "hidden_size": 64, "intermediate_size": 32, "num_local_experts": 8, "moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": true,
	"hidden_act": "silu", "num_hidden_layers": 3, "decoder_sparse_step": 1, "mlp_only_layers": [], "dtype": "bfloat16"}`

// folder writes a model of the Qwen3-MoE kind with random experts in layers 1 and 2, and
// returns the folder and the weights.
func folder(t *testing.T, kind string) (string, map[int]reference.Weights) {
	t.Helper()
	dir, drawn := t.TempDir(), map[int]reference.Weights{}
	var list []safetensors.Source
	save := func(name string, values []uint16, shape ...int64) {
		list = append(list, safetensors.Source{Name: name, DType: "BF16", Shape: shape, Data: bytes.NewReader(num.Bytes(values))})
	}
	const d, n, e = 64, 32, 8
	for layer := 1; layer <= 2; layer++ {
		_, w := trial.Draw(published, 1, uint64(layer), 2)
		drawn[layer] = w
		w1, w2 := w.W1, w.W2
		at := fmt.Sprintf("model.layers.%d.mlp.", layer)
		save(at+"gate.weight", w.Router, e, d)
		for i := range e {
			save(fmt.Sprintf("%sexperts.%d.gate_proj.weight", at, i), w1[2*i*n*d:][:n*d], n, d)
			save(fmt.Sprintf("%sexperts.%d.up_proj.weight", at, i), w1[(2*i+1)*n*d:][:n*d], n, d)
			save(fmt.Sprintf("%sexperts.%d.down_proj.weight", at, i), w2[i*n*d:][:n*d], d, n)
		}
	}
	var b bytes.Buffer
	require.NoError(t, safetensors.Write(&b, nil, list...))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "model.safetensors"), b.Bytes(), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), fmt.Appendf(nil, publishedJSON, kind), 0o600))
	return dir, drawn
}

// packedFolder writes a model of the Qwen3-MoE kind whose three layers have random MXFP4 experts, as
// compressed-tensors stores them.
func packedFolder(t *testing.T) string {
	t.Helper()
	dir, random := t.TempDir(), rand.New(rand.NewPCG(5, 1))
	var list []safetensors.Source
	save := func(name, dtype string, size int64, fill func(i int) byte, shape ...int64) {
		data := make([]byte, size)
		for i := range data {
			data[i] = fill(i)
		}
		list = append(list, safetensors.Source{Name: name, DType: dtype, Shape: shape, Data: bytes.NewReader(data)})
	}
	const d, n, e = 64, 32, 8
	for layer := range 3 {
		at := fmt.Sprintf("model.layers.%d.mlp.", layer)
		save(at+"gate.weight", "BF16", 2*e*d, func(i int) byte { return byte(i%2*0x3c + i%2*int(random.Uint32()%4)) }, e, d)
		for i := range e {
			for _, m := range []struct {
				name          string
				rows, columns int64
			}{{"gate_proj", n, d}, {"up_proj", n, d}, {"down_proj", d, n}} {
				name := fmt.Sprintf("%sexperts.%d.%s.weight", at, i, m.name)
				save(name+"_packed", "U8", m.rows*m.columns/2, func(int) byte { return byte(random.Uint32()) }, m.rows, m.columns/2)
				save(name+"_scale", "U8", m.rows*m.columns/32, func(int) byte { return 118 + byte(random.Uint32()%4) }, m.rows, m.columns/32)
			}
		}
	}
	var b bytes.Buffer
	require.NoError(t, safetensors.Write(&b, nil, list...))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "model.safetensors"), b.Bytes(), 0o600))
	config := fmt.Sprintf(publishedJSON, "qwen3_moe")
	config = strings.TrimSuffix(config, "}") + `, "quantization_config": {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized", "config_groups": {"group_0": {}}}}`
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o600))
	return dir
}

// TestModel checks that each layer of a model answers with the outputs that float64 computes
// from the layer's own weights.
func TestModel(t *testing.T) {
	dir, drawn := folder(t, "qwen3_moe")
	list, err := openModel(t.Context(), dir, "1-2", 8)
	require.NoError(t, err)
	dev, err := emulated.New(emulated.Options{})
	require.NoError(t, err)
	defer dev.Close()
	layers, err := loader(dev, list, cache.Open(cache.Options{Dir: "off"}), batching{8, 4, time.Millisecond})(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, closeBatchers(layers)) }()
	require.Same(t, layers[0].layer, layers[1].layer, "equal Configs share their kernels")
	s := newServer(dev, defaultLimits)
	s.layers.Store(&layers)
	for _, b := range layers {
		working(t, rig{s, b})
	}
	web := httptest.NewServer(s.handler())
	defer web.Close()

	const tokens = 5
	bits, _ := trial.Draw(published, tokens, 7, 1)
	x := make([]float32, len(bits))
	num.DecodeBF16(x, bits)
	body := file(t, source32("x", x, tokens, 64))
	for number, w := range drawn {
		code, _, text := call(t, http.MethodPost, fmt.Sprintf("%s/layers/%d/forward", web.URL, number), typeTensors, body)
		require.Equal(t, http.StatusOK, code, text)
		f, err := safetensors.New(bytes.NewReader([]byte(text)), int64(len(text)))
		require.NoError(t, err)
		o := make([]float32, len(x))
		_, err = f.ReadAt("o", num.Bytes(o), 0)
		require.NoError(t, err)
		ref, err := reference.New(published, w)
		require.NoError(t, err)
		_, want, err := ref.Forward(bits, reference.Unrounded)
		require.NoError(t, err)
		require.NoError(t, reference.Compare(o, want.O, tokens, 64).Check(reference.BoundsOf(moe.BF16, reference.Unrounded)), "layer %d", number)
	}
	code, header, text := call(t, http.MethodPost, web.URL+"/forward", typeTensors, body)
	require.Equal(t, http.StatusNotFound, code)
	require.Equal(t, "want /layers/N/forward with N one of the layers [1 2]", wrong(t, header, text))
	var a about
	require.NoError(t, json.Unmarshal([]byte(get(t, web.URL+"/version")), &a))
	require.Equal(t, []int{1, 2}, []int{a.Layers[0].Layer, a.Layers[1].Layer})
	require.Equal(t, "qwen3_moe", a.Layers[0].Model)
	require.Contains(t, get(t, web.URL+"/metrics"), `sonicmoe_tokens_total{layer="2"} 5`)
}

// TestPackedWeights checks that packed weights are arranged for small batches, unless a scale
// does not fit that arrangement. The outputs must have the same bits in both cases.
func TestPackedWeights(t *testing.T) {
	dev, err := emulated.New(emulated.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { dev.Close() })
	c := moe.Config{Hidden: 64, Intermediate: 32, NumExperts: 4, TopK: 2, Weights: "mxfp4"}
	layer, err := moe.New(t.Context(), dev, c, moe.WithoutBackward(), moe.WithoutCache())
	require.NoError(t, err)
	// serving loads random codes and scales, except for the last scale of W2, which is given.
	serving := func(last byte) *batcher {
		random := rand.New(rand.NewPCG(3, 1))
		load := func(_ context.Context, s driver.Stream, w moe.Weights) error {
			err := moe.Write(s, w.Router, normal(random, c.NumExperts*c.Hidden))
			for _, t := range []moe.Tensor{w.W1, w.W2, w.W1Scale, w.W2Scale} {
				data := make([]byte, t.Shape.Bytes())
				for i := range data {
					data[i] = byte(random.Uint32())
					if t == w.W1Scale || t == w.W2Scale {
						data[i] = 118 + data[i]%4 // 2^-9 to 2^-6
					}
				}
				if t == w.W2Scale {
					data[len(data)-1] = last
				}
				err = errors.Join(err, s.CopyToDevice(t.Ptr, data))
			}
			return err
		}
		b, err := newBatcher(t.Context(), dev, layer, source{config: c, load: load}, batching{4, 4, time.Millisecond})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, b.close()) })
		return b
	}
	batch := []request{{x: normal(rand.New(rand.NewPCG(4, 1)), 3*c.Hidden)}}
	arranged := serving(118)
	require.Positive(t, arranged.args.Units.Bytes)
	require.Empty(t, arranged.from.remarks)
	got, err := arranged.pass(batch)
	require.NoError(t, err)
	arranged.args.Units = moe.Buffer{}
	want, err := arranged.pass(batch)
	require.NoError(t, err)
	require.Equal(t, want, got)

	refused := serving(200)
	require.Zero(t, refused.args.Units)
	require.Len(t, refused.from.remarks, 1)
	require.Contains(t, refused.from.remarks[0], "values that units cannot hold")
	_, err = refused.pass(batch)
	require.NoError(t, err)
}

// normal returns n numbers from the standard normal distribution.
func normal(random *rand.Rand, n int) []float32 {
	list := make([]float32, n)
	for i := range list {
		list[i] = float32(random.NormFloat64())
	}
	return list
}

// TestWrongModels checks that folders, layers and flags that cannot be served are refused
// before the service listens.
func TestWrongModels(t *testing.T) {
	dir, _ := folder(t, "qwen3_moe")
	outside, _ := folder(t, "phimoe")
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"-model", t.TempDir()}, command.Failed, "config.json: no such file"},
		{[]string{"-model", dir, "-layer", "3"}, command.Failed, "layer 3 has no experts; layers with experts: [0 1 2]"},
		{[]string{"-model", dir}, command.Failed, "layer 0"}, // the folder has no weights of layer 0
		{[]string{"-model", outside, "-layer", "1"}, command.Failed, "this model's block is more than a layer"},
		{[]string{"-model", dir, "-layer", "1,x"}, command.Misuse, `-layer 1,x: "x" must be a number or a range such as 0-3, below 1024`},
		{[]string{"-model", dir, "-layer", "0-99999999"}, command.Misuse, "below 1024"},
		{[]string{"-model", dir, "-layer", "1,0-2"}, command.Misuse, "-layer 1,0-2: 1 is named twice"},
		{[]string{"-layer", "1"}, command.Misuse, "-layer 1 needs -model"},
		{[]string{"-model", dir, "-layer", "all"}, command.Failed, "layer 0"},
		{[]string{"-model", dir, "-row", "7B n=256"}, command.Misuse, "-model is given with -layers, -row or -shape"},
		{[]string{"-model", dir, "-decode", "1s", "-layers", "2"}, command.Misuse, "-model is given with -layers, -row or -shape"},
	} {
		err := run(t.Context(), append(tt.args, "-device", "emulated", "-cache", "off", "-listen", "127.0.0.1:0"), io.Discard, io.Discard)
		require.Equal(t, tt.code, command.Code(err), "%v: %v", tt.args, err)
		require.ErrorContains(t, err, tt.want, "%v", tt.args)
	}
}
