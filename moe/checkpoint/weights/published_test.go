package weights

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/num"
	"sonicmoe/internal/packed"
	"sonicmoe/internal/spec"
)

// publishedFormat is a format of files. It has the tensors of a matrix [rows, columns], and the
// value of each number as the format's documents define it.
type publishedFormat struct {
	name, config string
	// want is Config.Weights of the layer, or "" if Load dequantises the weights.
	want    string
	tensors func(rows, columns int64) []saved
	value   func(of func(name string) []byte, row, column, rows, columns int) float32
}

// These functions read numbers of files.
var (
	nibble = func(raw []byte, i int) int { return int(raw[i/2]>>(4*(i%2))) & 15 }
	word   = func(raw []byte, i int) uint32 { return binary.LittleEndian.Uint32(raw[4*i:]) }
	f32At  = func(raw []byte, i int) float32 { return math.Float32frombits(word(raw, i)) }
	f16At  = func(raw []byte, i int) float32 { return num.F16ToFloat32(binary.LittleEndian.Uint16(raw[2*i:])) }
	bf16At = func(raw []byte, i int) float32 { return num.BF16ToFloat32(binary.LittleEndian.Uint16(raw[2*i:])) }
	e2m1   = [...]float32{0, 0.5, 1, 1.5, 2, 3, 4, 6, float32(math.Copysign(0, -1)), -0.5, -1, -1.5, -2, -3, -4, -6}
)

// e4m3 returns the value of an E4M3 code. In these tests one bit of the exponent is always 0, so no
// code is NaN.
func e4m3(code byte) float32 {
	v := math.Ldexp(float64(8+code&7), int(code>>3&15)-10)
	if code&0x78 == 0 {
		v = math.Ldexp(float64(code&7), -9)
	}
	return float32(math.Copysign(v, float64(int8(code))))
}

const compressed = `{"quant_method": "compressed-tensors", "format": %q, "config_groups": {"group_0": {"weights": {"num_bits": %d, "type": %q, "symmetric": %v, "strategy": %q, "group_size": 32}}}}`

// publishedFormats returns the formats with a tensor for each expert and matrix.
func publishedFormats() []publishedFormat {
	weight := func(dtype string, perElement int64, more ...saved) func(rows, columns int64) []saved {
		return func(rows, columns int64) []saved {
			return append([]saved{{"weight", dtype, []int64{rows, columns / perElement}}}, more...)
		}
	}
	whole := func(scale string, isAsymmetric bool, end ...saved) func(rows, columns int64) []saved {
		return func(rows, columns int64) []saved {
			list := append([]saved{{"weight_packed", "I32", []int64{rows, columns / 8}}, {"weight_scale", scale, []int64{rows, columns / 32}}, {"weight_shape", "I64", []int64{2}}}, end...)
			if isAsymmetric {
				list = append(list, saved{"weight_zero_point", "I32", []int64{(rows + 7) / 8, columns / 32}})
			}
			return list
		}
	}
	symmetric := func(scale func([]byte, int) float32) func(func(string) []byte, int, int, int, int) float32 {
		return func(of func(string) []byte, row, column, _, columns int) float32 {
			return float32(nibble(of("weight_packed"), row*columns+column)-8) * scale(of("weight_scale"), row*columns/32+column/32)
		}
	}
	across := func(isAWQ bool) func(rows, columns int64) []saved {
		return func(rows, columns int64) []saved {
			list := []saved{{"qweight", "I32", []int64{columns / 8, rows}}, {"scales", "F16", []int64{columns / 32, rows}}, {"qzeros", "I32", []int64{columns / 32, rows / 8}}}
			if isAWQ {
				list[0].shape = []int64{columns, rows / 8}
				return list
			}
			return append(list, saved{"g_idx", "I32", []int64{columns}})
		}
	}
	gptq := func(more int) func(func(string) []byte, int, int, int, int) float32 {
		return func(of func(string) []byte, row, column, rows, columns int) float32 {
			code := word(of("qweight"), column/8*rows+row) >> (4 * (column % 8)) & 15
			zero := word(of("qzeros"), column/32*rows/8+row/8) >> (4 * (row % 8)) & 15
			return float32(int(code)-int(zero)-more) * f16At(of("scales"), column/32*rows+row)
		}
	}
	nvfp4 := func(codes string, global func(float32) float32, name string) func(func(string) []byte, int, int, int, int) float32 {
		return func(of func(string) []byte, row, column, rows, columns int) float32 {
			scale := e4m3(of("weight_scale")[row*columns/16+column/16]) * global(f32At(of(name), 0))
			return e2m1[nibble(of(codes), row*columns+column)] * scale
		}
	}
	straight, reciprocal := func(x float32) float32 { return x }, func(x float32) float32 { return 1 / x }
	return []publishedFormat{
		{"FP8, one scale", `{"quant_method": "fp8"}`, "fp8-tensor", weight("F8_E4M3", 1, saved{"weight_scale", "F32", nil}, saved{"input_scale", "F32", nil}, saved{"activation_scale", "F32", nil}),
			func(of func(string) []byte, row, column, _, columns int) float32 {
				return e4m3(of("weight")[row*columns+column]) * f32At(of("weight_scale"), 0)
			}},
		{"FP8, a scale for each row", fmt.Sprintf(compressed, "float-quantized", 8, "float", true, "channel"), "", func(rows, columns int64) []saved {
			return []saved{{"weight", "F8_E4M3", []int64{rows, columns}}, {"weight_scale", "BF16", []int64{rows, 1}}}
		}, func(of func(string) []byte, row, column, _, columns int) float32 {
			return e4m3(of("weight")[row*columns+column]) * bf16At(of("weight_scale"), row)
		}},
		{"NVFP4 of ModelOpt", `{"quant_method": "modelopt", "quant_algo": "NVFP4"}`, "nvfp4", func(rows, columns int64) []saved {
			return []saved{{"weight", "U8", []int64{rows, columns / 2}}, {"weight_scale", "F8_E4M3", []int64{rows, columns / 16}}, {"weight_scale_2", "F32", nil}, {"input_scale", "F32", nil}}
		}, nvfp4("weight", straight, "weight_scale_2")},
		{"NVFP4 of compressed-tensors", fmt.Sprintf(compressed, "nvfp4-pack-quantized", 4, "float", true, "tensor_group"), "nvfp4", func(rows, columns int64) []saved {
			return []saved{{"weight_packed", "U8", []int64{rows, columns / 2}}, {"weight_scale", "F8_E4M3", []int64{rows, columns / 16}}, {"weight_global_scale", "F32", []int64{1}}, {"input_global_scale", "F32", []int64{1}}}
		}, nvfp4("weight_packed", reciprocal, "weight_global_scale")},
		{"MXFP4 of compressed-tensors", fmt.Sprintf(compressed, "mxfp4-pack-quantized", 4, "float", true, "group"), "mxfp4", func(rows, columns int64) []saved {
			return []saved{{"weight_packed", "U8", []int64{rows, columns / 2}}, {"weight_scale", "U8", []int64{rows, columns / 32}}}
		}, func(of func(string) []byte, row, column, _, columns int) float32 {
			return e2m1[nibble(of("weight_packed"), row*columns+column)] * float32(math.Ldexp(1, int(of("weight_scale")[row*columns/32+column/32])-127))
		}},
		{"Kimi-K2-Thinking", fmt.Sprintf(compressed, "pack-quantized", 4, "int", true, "group"), "int4-g32", whole("BF16", false), symmetric(bf16At)},
		{"symmetric, scales F16", fmt.Sprintf(compressed, "pack-quantized", 4, "int", true, "group"), "uint4-g32-f16", whole("F16", false), symmetric(f16At)},
		{"symmetric, scales F32", fmt.Sprintf(compressed, "pack-quantized", 4, "int", true, "group"), "", whole("F32", false), symmetric(f32At)},
		{"asymmetric", fmt.Sprintf(compressed, "pack-quantized", 4, "int", false, "group"), "uint4-g32", whole("BF16", true),
			func(of func(string) []byte, row, column, _, columns int) float32 {
				groups := columns / 32
				zero := word(of("weight_zero_point"), row/8*groups+column/32) >> (4 * (row % 8)) & 15
				return float32(nibble(of("weight_packed"), row*columns+column)-int(zero)) * bf16At(of("weight_scale"), row*groups+column/32)
			}},
		{"AWQ", `{"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": true, "version": "gemm"}`, "uint4-g32-f16", across(true),
			func(of func(string) []byte, row, column, rows, _ int) float32 {
				at := 4 * [...]int{0, 4, 1, 5, 2, 6, 3, 7}[row%8] // AutoAWQ calls this order the reverse order
				code := word(of("qweight"), column*rows/8+row/8) >> at & 15
				zero := word(of("qzeros"), column/32*rows/8+row/8) >> at & 15
				return float32(int(code)-int(zero)) * f16At(of("scales"), column/32*rows+row)
			}},
		{"GPTQ", `{"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": false}`, "uint4-g32-f16", across(false), gptq(1)},
		{"GPTQ, version 2", `{"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": false, "checkpoint_format": "gptq_v2"}`, "uint4-g32-f16", across(false), gptq(0)},
	}
}

// publishedLayer returns the config.json and the tensors of a layer in a format. The shared experts
// have the same format.
func publishedLayer(f publishedFormat) (config string, list []saved) {
	const at, d, n = "model.layers.1.mlp.", 96, 64
	config = fmt.Sprintf(`{"model_type": "deepseek_v3", "hidden_size": %d, "num_hidden_layers": 2, "hidden_act": "silu", "dtype": "bfloat16", "num_experts_per_tok": 1,
		"moe_intermediate_size": %d, "n_routed_experts": 2, "n_group": 1, "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1, "quantization_config": %s}`, d, n, f.config)
	list = []saved{bf16(at+"gate.weight", e, d), {at + "gate.e_score_correction_bias", "F32", []int64{e}}}
	for _, expert := range []string{"experts.0.", "experts.1.", "shared_experts."} {
		for _, matrix := range []string{"gate_proj.", "up_proj.", "down_proj."} {
			rows, columns := int64(n), int64(d)
			if matrix == "down_proj." {
				rows, columns = columns, rows
			}
			for _, s := range f.tensors(rows, columns) {
				s.name = at + expert + matrix + s.name
				list = append(list, s)
			}
		}
	}
	return config, list
}

// TestPublished checks that the weights of every format, packed and dequantised, have the values
// that the format's documents define.
func TestPublished(t *testing.T) {
	for _, f := range publishedFormats() {
		t.Run(f.name, func(t *testing.T) {
			config, list := publishedLayer(f)
			l, err := Open(t.Context(), write(t, config, list...), 1)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, l.Close()) })
			require.Equal(t, f.want, l.Config.Weights)
			isApart := f.want == "nvfp4" || f.want == "fp8-tensor"
			require.Equal(t, isApart, l.Config.GateUp == spec.Apart)
			data := map[string][]byte{}
			for _, s := range list {
				data[s.name] = s.bytes()
			}
			values := func(matrix string, rows, columns int) (bits []uint16) {
				of := func(name string) []byte { return data["model.layers.1.mlp."+matrix+"."+name] }
				for i := range rows * columns {
					bits = append(bits, num.Float32ToBF16(f.value(of, i/columns, i%columns, rows, columns)))
				}
				return bits
			}
			const d, n = 96, 64
			want := map[spec.TensorID][]uint16{spec.TensorSharedW1: values("shared_experts.gate_proj", n, d), spec.TensorSharedW2: values("shared_experts.down_proj", d, n)}
			for _, expert := range []string{"experts.0.", "experts.1."} {
				up := spec.TensorW1
				if isApart {
					up = spec.TensorW3
				}
				want[spec.TensorW1] = append(want[spec.TensorW1], values(expert+"gate_proj", n, d)...)
				want[up] = append(want[up], values(expert+"up_proj", n, d)...)
				want[spec.TensorW2] = append(want[spec.TensorW2], values(expert+"down_proj", d, n)...)
			}
			plain := *l
			plain.Config.Weights = ""
			for id, bits := range want {
				got, err := plain.Tensor(t.Context(), id)
				require.NoError(t, err)
				require.Equal(t, num.Bytes(bits), got, "%v, dequantised", id)
			}
			if f.want == "" {
				return
			}
			for _, of := range spec.PackedMatrices {
				var m packed.Matrices
				for _, id := range of.All() {
					*m.Of(of, id), err = l.Tensor(t.Context(), id)
					require.NoError(t, err)
				}
				if s := l.plainShape(of.Codes); !s.IsZero() {
					require.Equal(t, want[of.Codes], packed.Bits(spec.PackingOf(l.Config), m, spec.BF16, int(s.Dims[1]), int(s.Dims[2])), "%v, packed", of.Codes)
				}
			}
		})
	}
}

// TestReciprocal bounds the error of using reciprocals of global scales. compressed-tensors
// computes scale / global, and the layer computes scale·(1/global).
func TestReciprocal(t *testing.T) {
	differ, count := 0, 0
	for i := range 1000 {
		global := 1 + float32(i)*0x1.23p-11
		for scale := range 127 {
			for _, code := range e2m1 {
				got, want := num.Float32ToBF16(code*(e4m3(byte(scale))*(1/global))), num.Float32ToBF16(code*(e4m3(byte(scale))/global))
				if max(got, want)-min(got, want) > 1 {
					t.Fatalf("code %v, scale %d, global %v: got %#x, want %#x or its neighbour", code, scale, global, got, want)
				}
				if count++; got != want {
					differ++
				}
			}
		}
	}
	assert.Less(t, differ*10000, count, "one in 10,000 rounds to the neighbour")
}

// TestPublishedRefuses checks that files that violate their format cause errors that name the
// tensor and the element.
func TestPublishedRefuses(t *testing.T) {
	formats := publishedFormats()
	of := func(name string) publishedFormat {
		return formats[slices.IndexFunc(formats, func(f publishedFormat) bool { return f.name == name })]
	}
	const down = "model.layers.1.mlp.experts.1.down_proj."
	for _, tt := range []struct {
		name   string
		format publishedFormat
		change func(list []saved) []saved // nil for no change
		tensor string                     // the tensor whose bytes spoil changes
		spoil  func(data []byte)
		want   string
	}{
		{"act-order", of("GPTQ"), nil, "g_idx", func(data []byte) { data[4*40] = 0 }, `g_idx": element 40 is group 0, must be 1: act-order is not supported`},
		{"a zero point of 15", of("GPTQ"), nil, "qzeros", func(data []byte) { data[5] |= 0xf0 }, `qzeros": zero point 3 of element 1 is stored as 15, must be less`},
		{"a scale that is NaN", of("NVFP4 of ModelOpt"), nil, "weight_scale", func(data []byte) { data[7] = 0x7f }, `weight_scale": element 7 of the scales is NaN, must be finite`},
		{"a global scale that is infinite", of("NVFP4 of ModelOpt"), nil, "weight_scale_2", func(data []byte) { copy(data, num.Bytes([]float32{float32(math.Inf(1))})) }, `weight_scale_2": element 0 of the global scales is +Inf`},
		{"a global scale that is 0", of("NVFP4 of compressed-tensors"), nil, "weight_global_scale", func(data []byte) { clear(data) }, `weight_global_scale": element 0 of the global scales is 0`},
		{"a scale out of range", of("MXFP4 of compressed-tensors"), nil, "weight_scale", func(data []byte) { data[3] = 254 }, `weight_scale": element 3 of the scales is 1.7014118e+38, which makes the code 6 infinite in bf16`},
		{"a code that is NaN", of("FP8, one scale"), nil, "weight", func(data []byte) { data[9] = 0xff }, `weight": element 9 is NaN, must be a number`},
		{"an index of groups", of("Kimi-K2-Thinking"), func(list []saved) []saved { return append(list, saved{down + "weight_g_idx", "I32", []int64{64}}) }, "", nil, `weight_g_idx" is there: act-order is not supported`},
		{"codes of the wrong length", of("Kimi-K2-Thinking"), shaped(down+"weight_packed", 96, 7), "", nil, `weight_packed": has the extents [96 7], must be [96 8]`},
		{"codes of a wrong type", of("Kimi-K2-Thinking"), func(list []saved) []saved {
			for i := range list {
				if list[i].name == down+"weight_packed" {
					list[i].dtype = "I64"
				}
			}
			return list
		}, "", nil, `weight_packed" is I64, must be I32 (whole numbers) or U8 (NVFP4, MXFP4)`},
		{"a group across the edge", of("Kimi-K2-Thinking"), shaped(down+"weight_scale", 96, 3), "", nil, `weight_scale" has 3 scales for a row of 64 numbers: the groups must be whole`},
		{"a scale for more than a group", of("AWQ"), shaped(down+"scales", 1, 96), "", nil, `scales" has 1 scales for a row of 64 numbers, must have one for each of the groups of 32 in config.json`},
		{"scales of too few groups", of("GPTQ"), shaped(down+"scales", 1, 96), "", nil, `scales" has 1 scales for a row of 64 numbers, must have one for each of the groups of 32 in config.json`},
		{"scales of too few rows", of("AWQ"), shaped(down+"scales", 2, 95), "", nil, `scales": has the extents [2 95], must be [2 96]`},
		{"no zero points", of("AWQ"), func(list []saved) []saved {
			return slices.DeleteFunc(list, func(s saved) bool { return s.name == down+"qzeros" })
		}, "", nil, `qweight" is without tensor "` + down + `qzeros"`},
		{"the other method", publishedFormat{config: of("GPTQ").config, tensors: of("AWQ").tensors}, nil, "", nil, `has the extents of awq, but config.json has not: its quantization_config must have "quant_method": "awq"`},
		{"a refused version", publishedFormat{config: `{"quant_method": "awq", "bits": 4, "version": "gemv"}`, tensors: of("AWQ").tensors}, nil, "", nil, `the weights are quantised, awq, 4 bits: of AWQ's versions only gemm is supported`},
		{"bitsandbytes", publishedFormat{config: `{"load_in_4bit": true}`, tensors: func(rows, columns int64) []saved {
			return []saved{{"weight", "U8", []int64{rows * columns / 2, 1}}, {"weight.absmax", "U8", []int64{rows}}}
		}}, nil, "", nil, "the weights are quantised, bitsandbytes, 4 bits: this method is not supported: weights in this format can't be loaded"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			config, list := publishedLayer(tt.format)
			if tt.change != nil {
				list = tt.change(list)
			}
			l, err := Open(t.Context(), writeSpoiled(t, config, func(name string, data []byte) {
				if tt.spoil != nil && name == down+tt.tensor {
					tt.spoil(data)
				}
			}, list...), 1)
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
}

// shaped returns a function that changes the extents of a tensor.
func shaped(name string, extents ...int64) func([]saved) []saved {
	return func(list []saved) []saved {
		list[slices.IndexFunc(list, func(s saved) bool { return s.name == name })].shape = extents
		return list
	}
}

// TestQuantisedSays checks that Model.Quantised tells what Load does with the weights that the files
// have, whatever config.json tells.
func TestQuantisedSays(t *testing.T) {
	const at = "model.layers.1.mlp."
	isQuantised := func(s saved) bool { return s.dtype == "F8_E4M3" }
	for _, tt := range []struct {
		name       string
		config     string // replaces the format of config.json
		bf16       func(saved) bool
		want, word string
	}{
		{"as config.json says", `{"quant_method": "fp8", "weight_block_size": [128, 128]}`, nil, `fp8, blocks of 128 x 128: the files' weights are loaded as they are, with Config.Weights "fp8": `, "fp8"},
		{"config.json says nothing", "null", nil, `fp8: the files' weights are loaded as they are, with Config.Weights "fp8": `, "fp8"},
		{"one expert in 16 bits", `{"quant_method": "fp8", "weight_block_size": [128, 128]}`, func(s saved) bool { return s.name == at+"experts.1.up_proj.weight" },
			`dequantised when they are loaded, the layer computes with 16 bits a weight: tensor "model.layers.1.mlp.experts.0.gate_proj.weight" has fp8, tensor "model.layers.1.mlp.experts.1.up_proj.weight" has 16 bits a weight: a layer takes experts of one format`, ""},
		{"all in 16 bits", `{"quant_method": "fp8", "weight_block_size": [128, 128]}`, isQuantised, "fp8, blocks of 128 x 128: the experts of this layer have 16 bits a weight in the files", ""},
		{"a plain model", "null", isQuantised, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			config, list := fp8Layer(256, 128, "F32", false)
			before, _, _ := strings.Cut(config, `"quantization_config": `)
			var plain []saved
			for i, s := range list {
				if tt.bf16 != nil && tt.bf16(s) {
					list[i].dtype = "BF16"
					plain = append(plain, s)
				}
			}
			list = slices.DeleteFunc(list, func(s saved) bool {
				return slices.ContainsFunc(plain, func(of saved) bool { return s.name == of.name+"_scale_inv" })
			})
			l, err := Open(t.Context(), write(t, before+`"quantization_config": `+tt.config+"}", list...), 1)
			require.NoError(t, err)
			defer l.Close()
			require.Equal(t, tt.word, l.Config.Weights)
			if tt.want == "" {
				require.Empty(t, l.Model.Quantised)
			}
			require.Contains(t, l.Model.Quantised, tt.want)
		})
	}
}

// TestQuantisedInF16 checks that a layer in F16 says which formats it dequantises, and refuses scales
// whose product with a code is not finite in F16.
func TestQuantisedInF16(t *testing.T) {
	inHalf := func(name string, spoil func(name string, data []byte)) *Layer {
		formats := publishedFormats()
		config, list := publishedLayer(formats[slices.IndexFunc(formats, func(f publishedFormat) bool { return f.name == name })])
		list[0].dtype = "F16" // the router
		l, err := Open(t.Context(), writeSpoiled(t, strings.Replace(config, "bfloat16", "float16", 1), spoil, list...), 1)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, l.Close()) })
		return l
	}
	l := inHalf("MXFP4 of compressed-tensors", func(string, []byte) {})
	require.Empty(t, l.Config.Weights)
	require.Contains(t, l.Model.Assumed, "the mxfp4 weights are dequantised when they are loaded: Config.Type is f16, must be BF16 with Weights mxfp4")

	for value, wrong := range map[uint16]string{0x6c00: "", 0x6d00: `scales": element 5 of the scales is 5120, which makes the code 15 infinite in f16`} {
		l := inHalf("AWQ", func(name string, data []byte) {
			if name == "model.layers.1.mlp.experts.0.down_proj.scales" {
				binary.LittleEndian.PutUint16(data[2*5:], value)
			}
		})
		require.Equal(t, "uint4-g32-f16", l.Config.Weights)
		if _, err := l.Tensor(t.Context(), spec.TensorW2Scale); wrong == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, wrong)
		}
	}
}
