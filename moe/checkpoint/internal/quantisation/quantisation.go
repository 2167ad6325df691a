// Package quantisation reads the quantization_config of a config.json: the format of the weights in
// a model's files.
package quantisation

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sonicmoe/internal/spec"
)

// Format is the format of a model's quantised weights.
type Format struct {
	// Text names the format, such as "gptq, 4 bits in groups of 128". Method is its first word.
	Text, Method string
	// Word is the value of Config.Weights for the format. It is empty if a layer cannot take the
	// weights without dequantising them.
	Word string
	// Dequantised is the reason why Word is empty although package weights loads the format, if that
	// is not clear from Text.
	Dequantised string
	// Refused is the reason why package weights refuses the format. It is empty for formats that it
	// loads.
	Refused string
	// Assumed says what was assumed for Word, because config.json does not tell it.
	Assumed string
	// LessOne reports whether the files store each zero point less 1, as GPTQ's first format does.
	LessOne bool
	// Group is the number of weights that share a scale, for whole numbers in groups. It is 0 if
	// config.json does not tell it, or if it tells another one for some of the weights.
	Group int64
}

// Keys are the names of the field of a config.json that describes the format.
var Keys = []string{"quantization_config", "compression_config"}

// Find returns the format that a config.json names, either for the model or for its text part. It
// returns the zero Format if there is none.
func Find(config []byte) Format {
	var model map[string]json.RawMessage
	if json.Unmarshal(config, &model) != nil {
		return Format{}
	}
	parts := []map[string]json.RawMessage{model}
	for _, name := range slices.Sorted(maps.Keys(model)) {
		var part map[string]json.RawMessage
		if json.Unmarshal(model[name], &part) == nil && part["hidden_size"] != nil {
			parts = append(parts, part)
		}
	}
	for _, part := range parts {
		for _, key := range Keys {
			if raw := part[key]; raw != nil && string(raw) != "null" {
				return Of(raw)
			}
		}
	}
	return Format{}
}

// config has the fields of a quantization_config. A field with a value of another type counts as
// missing, because it may belong to another method.
type config struct {
	method, format, algo, version, checkpoint string
	bits, group                               int
	block                                     []int
	of4, of8, actOrder, noZeros               bool
	dynamic                                   map[string]any // GPTQ: other values for some weights
	groups                                    []scheme
}

// scheme describes how compressed-tensors quantises the weights of a group of layers.
type scheme struct {
	Bits      int    `json:"num_bits"`
	Type      string `json:"type"`
	Symmetric bool   `json:"symmetric"`
	Strategy  string `json:"strategy"`
	Group     int    `json:"group_size"`
	Block     []int  `json:"block_structure"`
	Order     any    `json:"actorder"`
}

// read reads the fields that are present.
func read(raw json.RawMessage) (c config) {
	q := map[string]json.RawMessage{}
	_ = json.Unmarshal(raw, &q)
	get := func(to any, names ...string) {
		for _, name := range names {
			if q[name] != nil && json.Unmarshal(q[name], to) == nil {
				return
			}
		}
	}
	get(&c.method, "quant_method")
	get(&c.format, "format")
	get(&c.algo, "quant_algo")
	get(&c.version, "version")
	get(&c.checkpoint, "checkpoint_format")
	get(&c.bits, "bits", "w_bit")
	get(&c.group, "group_size", "q_group_size")
	get(&c.block, "weight_block_size")
	get(&c.of4, "load_in_4bit")
	get(&c.of8, "load_in_8bit")
	get(&c.actOrder, "desc_act")
	get(&c.dynamic, "dynamic")
	zeros := true
	get(&zeros, "zero_point")
	c.noZeros = !zeros
	var groups map[string]struct {
		Weights scheme `json:"weights"`
	}
	get(&groups, "config_groups")
	for _, g := range groups {
		c.groups = append(c.groups, g.Weights)
	}
	c.method = strings.ToLower(c.method)
	switch {
	case c.of4:
		c.method, c.bits = "bitsandbytes", 4
	case c.of8:
		c.method, c.bits = "bitsandbytes", 8
	case c.method == "" && c.algo != "":
		c.method = "modelopt"
	case c.method == "" && len(c.groups) > 0:
		c.method = "compressed-tensors"
	}
	return c
}

// Of returns the format of a quantization_config.
func Of(raw json.RawMessage) Format {
	c := read(raw)
	f := Format{Text: c.method, Method: c.method}
	add := func(format string, args ...any) { f.Text += ", " + fmt.Sprintf(format, args...) }
	for _, word := range []string{c.format, c.algo} {
		if word != "" && !strings.EqualFold(word, c.method) {
			add("%s", word)
		}
	}
	if c.bits > 0 {
		add("%d bits", c.bits)
	}
	if c.group > 0 {
		f.Text += fmt.Sprintf(" in groups of %d", c.group)
	}
	if len(c.block) == 2 {
		add("blocks of %d x %d", c.block[0], c.block[1])
	}
	switch c.method {
	case "mxfp4":
		f.Word = "mxfp4"
	case "fp8":
		f.blocks(c.block)
	case "modelopt":
		f.Word = map[string]string{"NVFP4": "nvfp4", "FP8": "fp8-tensor"}[c.algo]
		f.refuseUnless(f.Word != "", "of ModelOpt's formats only NVFP4 and FP8 are supported")
	case "compressed-tensors":
		f.compressed(c)
	case "awq":
		f.Group = int64(max(c.group, 0))
		f.refuseUnless(strings.EqualFold(cmp.Or(c.version, "gemm"), "gemm"), "of AWQ's versions only gemm is supported")
		f.refuseUnless(!c.noZeros, "of AWQ's formats only the one with zero points is supported")
		f.whole(c.bits, "uint4-g%d-f16", c.group)
	case "gptq":
		if len(c.dynamic) == 0 {
			f.Group = int64(max(c.group, 0))
		}
		f.LessOne = c.checkpoint != "gptq_v2"
		f.refuseUnless(c.checkpoint == "" || c.checkpoint == "gptq" || !f.LessOne, "of GPTQ's checkpoint formats only gptq and gptq_v2 are supported")
		f.refuseUnless(!c.actOrder, "act-order (desc_act) is not supported")
		f.whole(c.bits, "uint4-g%d-f16", c.group)
	case "":
		f.Text = "quantization_config is " + shown(raw)
		f.Refused = "it has no known quant_method"
	default:
		f.Refused = "this method is not supported"
	}
	if f.Refused != "" {
		f.Word = ""
	}
	if strings.HasSuffix(f.Word, "-f16") {
		f.Assumed = "the type of the scales of quantised weights: float16"
	}
	return f
}

// Loaded describes a layer whose weights are loaded in the format of packed.Weights. plain is the
// layer with 16 bits a weight.
func (f Format) Loaded(packed, plain spec.Config) string {
	return fmt.Sprintf("%s: the files' weights are loaded as they are, with Config.Weights %q: the experts of a layer have %d bytes, %d in 16 bits",
		f.Text, packed.Weights, spec.MatrixBytes(packed), spec.MatrixBytes(plain))
}

// LoadedAs16 describes a layer whose weights are dequantised when they are loaded. why may be empty.
func (f Format) LoadedAs16(why string) string {
	text := f.Text + ": the files' weights are dequantised when they are loaded, the layer computes with 16 bits a weight"
	if why != "" {
		text += ": " + why
	}
	return text
}

// refuseUnless refuses the format with the given reason, unless is is true or the format is refused
// already.
func (f *Format) refuseUnless(is bool, why string) {
	if !is && f.Refused == "" {
		f.Refused = why
	}
}

// blocks sets the format of FP8: a scale for each block, or one scale for each matrix.
func (f *Format) blocks(block []int) {
	if len(block) == 0 {
		f.Word = "fp8-tensor"
		return
	}
	f.refuseUnless(len(block) == 2 && block[0] == 128 && block[1] == 128, "only blocks of 128 x 128 are supported")
	f.Word = "fp8"
}

// whole sets the format of whole numbers with a scale for each group.
func (f *Format) whole(bits int, word string, group int) {
	f.refuseUnless(bits == 4, "only 4 bits are supported")
	if word = fmt.Sprintf(word, group); spec.PackingNamed(word) != nil {
		f.Word = word
	} else if group > 0 {
		f.Dequantised = fmt.Sprintf("layers take groups of 32 and 128, not of %d", group)
	}
}

// compressed sets the format of a compressed-tensors model.
func (f *Format) compressed(c config) {
	if len(c.groups) != 1 {
		f.Refused = fmt.Sprintf("config_groups has %d schemes, only files with one are supported", len(c.groups))
		return
	}
	s := c.groups[0]
	switch c.format {
	case "nvfp4-pack-quantized":
		f.Word = "nvfp4"
	case "mxfp4-pack-quantized":
		f.Word = "mxfp4"
	case "float-quantized":
		f.refuseUnless(s.Bits == 8, "only 8 bits are supported")
		if s.Strategy == "block" {
			f.Text += fmt.Sprintf(", blocks of %v", s.Block)
			f.blocks(s.Block)
		} else if s.Strategy == "tensor" {
			f.Word = "fp8-tensor"
		} else {
			f.Dequantised = fmt.Sprintf("layers take FP8 with a scale for each block or tensor, not by %q", s.Strategy)
		}
	case "pack-quantized":
		f.Text += fmt.Sprintf(", %d bits in groups of %d", s.Bits, s.Group)
		f.refuseUnless(s.Type == "int", "only whole numbers (\"type\": \"int\") are supported")
		f.refuseUnless(s.Order == nil || s.Order == "static" || s.Order == "weight", "act-order is not supported")
		f.Group = int64(max(s.Group, 0))
		word := "int4-g%d"
		if !s.Symmetric {
			f.Text += ", asymmetric"
			word = "uint4-g%d"
		}
		f.whole(s.Bits, word, s.Group)
	default:
		f.Refused = "of the formats of compressed-tensors only pack-quantized, float-quantized, nvfp4-pack-quantized and mxfp4-pack-quantized are supported"
	}
}

// shown returns a value as text for an error, shortened if it is long.
func shown(raw json.RawMessage) string {
	const most = 60
	if len(raw) > most {
		return string(raw[:most]) + "…"
	}
	return string(raw)
}
