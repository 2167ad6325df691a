package checkpoint

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"sonicmoe/internal/spec"
)

// quantised sets Quantised, the description of the format of the files' weights and of what
// package weights does with it, and the word for Packed.
func (m *Model) quantised(f *fields) {
	for _, o := range []object{f.object, f.around} {
		for _, name := range []string{"quantization_config", "compression_config"} {
			if !o.has(name) {
				continue
			}
			format, word := describe(o[name])
			m.Quantised = format + ": weights in it can't be loaded, dequantise the files before (fp8 with blocks of 128 x 128, mxfp4, and compressed-tensors of symmetric 4 bits can be loaded)"
			if word != "" {
				m.Quantised = format + m.loaded(word)
			}
			return
		}
	}
}

// loaded says what package weights does with weights in a format of Config.Weights, and
// keeps the format if a layer takes it.
func (m *Model) loaded(word string) string {
	c := m.Config
	c.Weights, c.InOut = word, false // packed matrices are [out, in] in files
	if err := c.Check(); err != nil {
		return fmt.Sprintf(": the files' weights are dequantised when they are loaded, the layer computes with 16 bits a weight: %v", err)
	}
	m.packed = c
	return fmt.Sprintf(": the files' weights are loaded as they are, with Config.Weights %q: the experts of a layer have %d bytes, %d in 16 bits",
		word, spec.MatrixBytes(c), spec.MatrixBytes(m.Config))
}

// Packed returns the layer with weights as the files have them: Config, with Weights, and with
// matrices [out, in]. It is Config itself for files that package weights dequantises, or
// that are not quantised.
func (m Model) Packed() spec.Config {
	if m.packed.Weights == "" {
		return m.Config
	}
	return m.packed
}

// describe describes a quantization_config, and returns the word of Config.Weights for its
// format, "" if it has none. Types of its fields that no format has are no error: the files
// may still hold plain weights of the experts.
func describe(raw json.RawMessage) (format, word string) {
	q := map[string]any{}
	_ = json.Unmarshal(raw, &q)
	text := func(name string) string { s, _ := q[name].(string); return s }
	format = strings.ToLower(cmp.Or(text("quant_method"), text("quant_algo")))
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
	word = map[string]string{"mxfp4": "mxfp4", "fp8, blocks of 128 x 128": "fp8"}[format]
	if group := int4Group(raw); group > 0 && format == "compressed-tensors, pack-quantized" {
		format += fmt.Sprintf(", 4 bits in groups of %d", group)
		if of := fmt.Sprintf("int4-g%d", group); spec.PackingNamed(of) != nil {
			word = of
		}
	}
	return cmp.Or(format, "quantization_config is "+shown(raw)), word
}

// int4Group returns the size of the groups of symmetric weights of 4 bits that compressed-tensors
// describes, 0 for other weights.
func int4Group(raw json.RawMessage) int {
	var q struct {
		Groups map[string]struct {
			Weights struct {
				Bits      int    `json:"num_bits"`
				Type      string `json:"type"`
				Symmetric bool   `json:"symmetric"`
				Group     int    `json:"group_size"`
				Order     any    `json:"actorder"`
			} `json:"weights"`
		} `json:"config_groups"`
	}
	if json.Unmarshal(raw, &q) != nil || len(q.Groups) != 1 {
		return 0
	}
	for _, g := range q.Groups {
		if w := g.Weights; w.Bits == 4 && w.Type == "int" && w.Symmetric && w.Order == nil {
			return w.Group
		}
	}
	return 0
}
