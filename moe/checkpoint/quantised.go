package checkpoint

import (
	"encoding/json"
	"strings"

	"sonicmoe/internal/spec"
	"sonicmoe/moe/checkpoint/internal/quantisation"
)

// quantised sets Quantised, and the layer for Packed. Quantised describes the format of the files'
// weights and what package weights does with it.
func (m *Model) quantised(f *fields) {
	for _, o := range []object{f.object, f.around} {
		for _, name := range quantisation.Keys {
			if o.has(name) {
				m.describe(o[name])
				return
			}
		}
	}
}

// describe reads a quantization_config for quantised.
func (m *Model) describe(raw json.RawMessage) {
	of := quantisation.Of(raw)
	switch {
	case of.Refused != "":
		m.Quantised = of.Text + ": " + of.Refused + ": weights in this format can't be loaded, dequantise the files first (fp8, mxfp4, nvfp4, and 4 bits of compressed-tensors, AWQ and GPTQ can be loaded)"
	case of.Word == "":
		m.Quantised = of.LoadedAs16(of.Dequantised)
	default:
		m.Quantised = m.loaded(of)
	}
}

// loaded returns a description of what package weights does with weights in a format of
// Config.Weights. If a layer accepts the format, it also sets the layer for Packed.
func (m *Model) loaded(of quantisation.Format) string {
	c := m.Config
	c.Weights, c.InOut = of.Word, false // in files packed matrices are [out, in]
	if sixteen := "u" + strings.TrimPrefix(of.Word, "u") + "-f16"; c.Type == spec.F16 && spec.PackingNamed(sixteen) != nil {
		c.Weights = sixteen // the scales of compressed-tensors have the model's type
	}
	if c.GateUp == spec.Concatenated && c.Activation.Gated() && spec.PackingNamed(c.Weights).LiesApart(c.Intermediate) {
		c.GateUp = spec.Apart
	}
	if err := c.Check(); err != nil {
		return of.LoadedAs16(err.Error())
	}
	m.packed = c
	if of.Assumed != "" {
		m.Assumed = append(m.Assumed, of.Assumed)
	}
	return of.Loaded(c, m.Config)
}

// Packed returns the layer with weights as the files have them: Config with the files' format in
// Weights, and with matrices [out, in]. It returns Config itself if the files are not quantised, or
// if package weights dequantises them.
func (m Model) Packed() spec.Config {
	if m.packed.Weights == "" {
		return m.Config
	}
	return m.packed
}
