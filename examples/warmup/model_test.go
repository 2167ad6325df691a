package main

import (
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"aead.dev/minisign"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/cache"
	"sonicmoe/examples/internal/hostile"
	"sonicmoe/moe"
	"sonicmoe/moe/checkpoint"
)

// TestModels checks that a model whose layer the kernels can compute gives this layer. With
// -sizes-only, other models, also those of an unknown type, must give the plain layer of their
// sizes.
func TestModels(t *testing.T) {
	plain := func(d, n, e, k int) moe.Config { return moe.Config{Hidden: d, Intermediate: n, NumExperts: e, TopK: k} }
	for name, c := range map[string]struct {
		json  string
		sizes moe.Config
		known string // part of the error that refuses the model_type, or "" if it is known
	}{
		"Qwen3-30B-A3B": {`{"model_type":"qwen3_moe","hidden_act":"silu","hidden_size":2048,"intermediate_size":6144,"moe_intermediate_size":768,"norm_topk_prob":true,"num_experts":128,"num_experts_per_tok":8,"num_hidden_layers":48,"torch_dtype":"bfloat16"}`,
			plain(2048, 768, 128, 8), ""},
		"not renormalized": {`{"model_type":"qwen3_moe","hidden_act":"silu","hidden_size":2048,"intermediate_size":6144,"moe_intermediate_size":768,"norm_topk_prob":false,"num_experts":128,"num_experts_per_tok":8,"num_hidden_layers":48,"torch_dtype":"bfloat16"}`,
			plain(2048, 768, 128, 8), ""},
		"Mixtral 8x7B": {`{"model_type":"mixtral","hidden_act":"silu","hidden_size":4096,"intermediate_size":14336,"num_local_experts":8,"num_experts_per_tok":2,"num_hidden_layers":32,"torch_dtype":"bfloat16"}`,
			plain(4096, 14336, 8, 2), ""},
		"gpt-oss-20b": {`{"model_type":"gpt_oss","hidden_act":"silu","hidden_size":2880,"intermediate_size":2880,"num_local_experts":32,"num_experts_per_tok":4,"num_hidden_layers":24,"swiglu_limit":7.0,"torch_dtype":"bfloat16"}`,
			plain(2880, 2880, 32, 4), ""},
		"a new one": {`{"model_type":"new_one","n_group":8,"text_config":{"hidden_size":128,"intermediate_size":512,"moe_intermediate_size":64,"num_experts":4,"num_experts_per_tok":2,"mlp_bias":true}}`,
			plain(128, 64, 4, 2), "is not known"},
		"LongCat": {`{"model_type":"longcat_flash","hidden_size":6144,"ffn_hidden_size":12288,"expert_ffn_hidden_size":2048,"n_routed_experts":512,"moe_topk":12}`,
			plain(6144, 2048, 512, 12), "is refused: some of its experts have no weights"},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := checkpoint.Read([]byte(c.json))
			if c.known == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.known)
			}
			l, err := parseModel([]byte(c.json), whole)
			if computed := c.known == "" && moe.Check(m.Config) == nil; computed {
				require.NoError(t, err)
				assert.Equal(t, m.Config, l.config)
			} else {
				require.ErrorContains(t, err, "-sizes-only")
				l, err = parseModel([]byte(c.json), sizesOnly)
				require.NoError(t, err)
				assert.Equal(t, c.sizes, l.config)
				assert.Contains(t, l.notes[0], "sizes only: the model's own layer is another")
			}
			assert.True(t, l.anyHint)
			assert.Equal(t, c.sizes, plain(l.config.Hidden, l.config.Intermediate, l.config.NumExperts, l.config.TopK))
		})
	}
}

// TestExpertsOnly checks that a model of which only the router is not supported can be warmed
// for its experts, and that the result is never taken for the whole layer.
func TestExpertsOnly(t *testing.T) {
	const sizes = `"hidden_size":128,"intermediate_size":64,"num_local_experts":8,"num_experts_per_tok":2,"num_hidden_layers":2`
	for name, c := range map[string]struct {
		json, why string
		want      moe.Config // expected values of all fields except the sizes
	}{
		"a router outside": {`{"model_type":"phimoe",` + sizes + `}`, "SparseMixer", moe.Config{}},
		"of fp16":          {`{"model_type":"phimoe","dtype":"float16",` + sizes + `}`, "SparseMixer", moe.Config{Type: moe.F16, Logits: moe.F16}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parseModel([]byte(c.json), whole)
			require.ErrorContains(t, err, c.why)
			require.ErrorContains(t, err, "-experts-only takes its experts")
			l, err := parseModel([]byte(c.json), expertsOnly)
			require.NoError(t, err)
			c.want.Hidden, c.want.Intermediate, c.want.NumExperts, c.want.TopK = 128, 64, 8, 2
			assert.Equal(t, c.want, l.config)
			assert.Contains(t, l.notes[0], "each call must give their ids and scores")
		})
	}
}

// TestSizesOnly checks the error for a model of unknown type. It must list the fields that may
// belong to the layer, and offer -sizes-only only if config.json has the sizes.
func TestSizesOnly(t *testing.T) {
	l, err := parseModel([]byte(`{"model_type":"new_one","hidden_size":128,"moe_intermediate_size":64,"num_experts":4,"num_experts_per_tok":2,"norm_topk_prob":false,"swiglu_limit":7}`), sizesOnly)
	require.NoError(t, err)
	assert.Contains(t, l.notes[1], "norm_topk_prob = false")
	assert.Contains(t, l.notes[1], "swiglu_limit = 7")
	_, err = parseModel([]byte(`{"model_type":"new_one","hidden_size":128}`), whole)
	require.Error(t, err)
	assert.NotContains(t, err.Error(), "-sizes-only")
}

// TestQuantisedModel checks that a note names the format of quantised weights that are
// dequantised when they are loaded. The layer and its memory are then computed for 16-bit
// weights.
func TestQuantisedModel(t *testing.T) {
	l, err := parseModel([]byte(`{"model_type":"mixtral","hidden_act":"silu","hidden_size":128,"intermediate_size":64,"num_local_experts":8,"num_experts_per_tok":2,"num_hidden_layers":2,"dtype":"bfloat16",
		"quantization_config":{"quant_method":"awq","bits":4}}`), whole)
	require.NoError(t, err)
	require.Len(t, l.notes, 1)
	assert.Contains(t, l.notes[0], "quantised: awq, 4 bits: the files' weights are dequantised when they are loaded")
}

// TestPackedModel checks that a model with packed weights gives a layer with packed weights.
func TestPackedModel(t *testing.T) {
	for _, of := range []part{whole, expertsOnly} {
		l, err := parseModel([]byte(`{"model_type":"mixtral","hidden_act":"silu","hidden_size":128,"intermediate_size":64,"num_local_experts":8,"num_experts_per_tok":2,"num_hidden_layers":2,"dtype":"bfloat16",
			"quantization_config":{"quant_method":"fp8","weight_block_size":[128,128]}}`), of)
		require.NoError(t, err)
		assert.Equal(t, "fp8", l.config.Weights)
	}
}

func TestModelsRefused(t *testing.T) {
	for json, say := range map[string]string{
		`{"model_type":"llama","hidden_size":4096,"intermediate_size":14336}`: "is it a Mixture-of-Experts model?",
		`{"model_type":"x","num_experts":"many"}`:                             `num_experts is "many", want a positive number`,
		`{"model_type":"x","num_experts":[64,32]}`:                            "want a positive number",
		`{"model_type":"x","num_experts":-3}`:                                 "want a positive number",
		strings.Repeat(`{"text_config":`, 6) + `{}` + strings.Repeat(`}`, 6):  "deeper than",
		`{"num_experts":8,"num_experts":64}`:                                  "the field num_experts stands twice",
		`[]`:                                                                  "JSON",
		`{"a":`:                                                               "JSON",
		`{"num_experts":8,"hidden_size":128,"moe_intermediate_size":64,"num_experts_per_tok":null}`: "experts of a token",
	} {
		_, err := parseModel([]byte(json), sizesOnly)
		if assert.Error(t, err, json) && say != "JSON" {
			assert.ErrorContains(t, err, say, json)
		}
		_, err = parseModel([]byte(json), whole)
		assert.Error(t, err, json)
	}
}

func TestLayersFile(t *testing.T) {
	dir := t.TempDir()
	write := func(text string) string {
		path := filepath.Join(dir, "layers.json")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	layers, err := readLayers(t.Context(), write(`{"layers":[{"name":"mine","hidden":128,"intermediate":64,"experts":4,"topK":2},
		{"hidden":256,"intermediate":64,"experts":4,"topK":2,"gateUp":"interleaved","logits":"f32","tokensHint":0},
		{"hidden":128,"intermediate":64,"experts":8,"topK":2,"type":"f16","gateUp":"apart","inOut":true,"weights":"mxfp4","activation":"swiglu-oai","alpha":1.702,"limit":7,"bias":true,"loraRank":16,"loraAlpha":32,"rslora":true,"loraAdapters":4,
		 "logits":"f16","routerF32":true,"routerBias":true,"score":"sigmoid","selectionBias":true,"groups":4,"topGroups":2,"groupSumOfTwo":true,"renormalize":"sum","normEpsilon":1e-20,
		 "scoreScale":2.5,"expertScale":true,"scoreOnInput":true,"sharedExperts":2,"sharedGate":true,"rounding":{"rule":"nearest","tile":64,"capacity":2,"rawScores":true},"lists":true,"tokensHint":8}]}`))
	require.NoError(t, err)
	all := moe.Config{
		Hidden: 128, Intermediate: 64, NumExperts: 8, TopK: 2, Type: moe.F16, GateUp: "apart", InOut: true, Weights: "mxfp4",
		Activation: "swiglu-oai", Alpha: 1.702, Limit: 7, Bias: true, LoRARank: 16, LoRAAlpha: 32, RSLoRA: true, LoRAAdapters: 4, Logits: moe.F16, RouterF32: true, RouterBias: true,
		Score: "sigmoid", SelectionBias: true, Groups: 4, TopGroups: 2, GroupSumOfTwo: true, Renormalize: "sum", NormEpsilon: 1e-20,
		ScoreScale: 2.5, ExpertScale: true, ScoreOnInput: true, SharedExperts: 2, SharedGate: true,
		Rounding: moe.Rounding{Rule: "nearest", Tile: 64, Capacity: 2, RawScores: true}, Lists: true, TokensHint: 8,
	}
	assert.Equal(t, []layer{
		{name: "mine", config: moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 4, TopK: 2}, anyHint: true},
		{name: "layer 1", config: moe.Config{Hidden: 256, Intermediate: 64, NumExperts: 4, TopK: 2, GateUp: "interleaved", Logits: moe.F32}},
		{name: "layer 2", config: all},
	}, layers)
	for i := range reflect.ValueOf(all).NumField() {
		assert.False(t, reflect.ValueOf(all).Field(i).IsZero(), "%s is in no layers file", reflect.TypeOf(all).Field(i).Name)
	}
	for text, say := range map[string]string{
		`{"layers":[]}`:                    "no layers",
		`{"layers":[{"hiden":128}]}`:       "hiden",
		`{"layers":[{"type":"f64"}]}`:      "layer 0: type",
		`{"layers":[{"logits":"f64"}]}`:    "logits",
		`{"layers":[{"topK":2,"topK":3}]}`: "the field layers.topK stands twice",
		`{"layers":[{"topK":2,"TOPK":3}]}`: "the field layers.TOPK stands twice",
		`{`:                                "unexpected EOF",
	} {
		_, err := readLayers(t.Context(), write(text))
		assert.ErrorContains(t, err, say)
	}
	_, err = readLayers(t.Context(), filepath.Join(dir, "none"))
	assert.ErrorIs(t, err, os.ErrNotExist)
}

// TestFilesAreBounded checks that every file that a command line can name is read only up to a
// limit, and without waiting for a pipe or a device. Text after the JSON must be an error.
func TestFilesAreBounded(t *testing.T) {
	bundle, dir := filepath.Join(t.TempDir(), "warm.tar"), t.TempDir()
	c := cache.Open(cache.Options{Dir: dir})
	require.NoError(t, c.PutChoice("a", []byte("b")))
	_, err := c.ExportFile(t.Context(), bundle)
	require.NoError(t, err)
	_, key, err := minisign.GenerateKey(nil)
	require.NoError(t, err)
	for _, args := range [][]string{
		{"fill", "-config", "FILE"}, {"fill", "-layers", "FILE"},
		{"import", "-cache", dir, "-key", "FILE", bundle}, {"verify", "-key", "FILE", bundle},
		{"import", "-cache", dir, "-key", publicText(key), bundle}, // FILE is the path of the signature
	} {
		hostile.Refuses(t, func(path string) error {
			list := slices.Clone(args)
			if i := slices.Index(args, "FILE"); i > 0 {
				list[i] = path
			} else {
				require.NoError(t, os.RemoveAll(bundle+".minisig"))
				require.NoError(t, os.Symlink(path, bundle+".minisig"))
			}
			return run(t.Context(), list, io.Discard, io.Discard)
		})
	}
	_, err = parseLayers([]byte(`{"layers":[{"hidden":128,"intermediate":64,"experts":4,"topK":2}]}{"layers":[]}`))
	require.ErrorContains(t, err, "after the end")
}
