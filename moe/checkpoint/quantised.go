package checkpoint

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
)

// quantised describes the format of the files' weights, and what package weights does
// with it. It returns "" for a model that is not quantised.
func (f *fields) quantised() string {
	for _, o := range []object{f.object, f.around} {
		for _, name := range []string{"quantization_config", "compression_config"} {
			if o.has(name) {
				return describe(o[name])
			}
		}
	}
	return ""
}

// describe describes a quantization_config. Types of its fields that no format has are
// no error: the files may still hold plain weights of the experts.
func describe(raw json.RawMessage) string {
	q := map[string]any{}
	_ = json.Unmarshal(raw, &q)
	text := func(name string) string { s, _ := q[name].(string); return s }
	format := strings.ToLower(cmp.Or(text("quant_method"), text("quant_algo")))
	add := func(name string) {
		if s := text(name); s != "" && !strings.EqualFold(s, format) {
			format += ", " + s
		}
	}
	switch {
	case q["load_in_4bit"] == true:
		format = "bitsandbytes, 4 bits"
	case q["load_in_8bit"] == true:
		format = "bitsandbytes, 8 bits"
	case format == "" && q["config_groups"] != nil:
		format = "compressed-tensors"
	}
	add("format")
	add("quant_algo")
	if bits, ok := q["bits"].(float64); ok {
		format += fmt.Sprintf(", %v bits", bits)
	}
	block, _ := q["weight_block_size"].([]any)
	if len(block) == 2 {
		format += fmt.Sprintf(", blocks of %v x %v", block[0], block[1])
	}
	if format == "mxfp4" || format == "fp8, blocks of 128 x 128" {
		return format + ": the files' weights are dequantised when they are loaded, the layer computes with 16 bits a weight"
	}
	return fmt.Sprintf("%s: weights in it can't be loaded, dequantise the files before (fp8 with blocks of 128 x 128 and mxfp4 are dequantised when they are loaded)",
		cmp.Or(format, "quantization_config is "+shown(raw)))
}
