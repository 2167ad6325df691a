package spec

import "math"

// Limits of an adapter's rank.
const (
	maxRank  = 128
	rankStep = 8 // rows of 16 bytes, as TMA needs them
	// tableRankStep is the step of the rank of a table, whose factors no TMA loads.
	tableRankStep = 4
)

// MaxAdapters is the largest number of adapters in a table.
const MaxAdapters = 4096

// HasLoRA reports whether the layer has one adapter, which all tokens use and which is trained.
func HasLoRA(c Config) bool { return c.LoRARank != 0 && !HasAdapters(c) }

// HasAdapters reports whether the layer has a table of adapters.
func HasAdapters(c Config) bool { return c.LoRAAdapters != 0 }

// LoRAScale returns the factor of the adapter's product.
func LoRAScale(c Config) float32 {
	if c.RSLoRA {
		return float32(c.LoRAAlpha / math.Sqrt(float64(c.LoRARank)))
	}
	return float32(c.LoRAAlpha / float64(c.LoRARank))
}

func (c Config) checkLoRA() *ArgError {
	step := rankStep
	if HasAdapters(c) {
		step = tableRankStep
	}
	switch r := c.LoRARank; {
	case r < 0 || r > maxRank || r%step != 0:
		return argErrorf("Config.LoRARank", r, "0 (no adapter), or a multiple of %d up to %d; an adapter of another rank is padded with zeros", step, maxRank)
	case r == 0 && c.LoRAAlpha != 0:
		return argErrorf("Config.LoRAAlpha", number(c.LoRAAlpha), "0 without LoRARank")
	case r == 0 && c.RSLoRA:
		return argErrorf("Config.RSLoRA", true, "false without LoRARank")
	case c.LoRAAdapters < 0 || c.LoRAAdapters > MaxAdapters:
		return argErrorf("Config.LoRAAdapters", c.LoRAAdapters, "0 (no table of adapters) to %d", MaxAdapters)
	case r == 0 && c.LoRAAdapters != 0:
		return argErrorf("Config.LoRAAdapters", c.LoRAAdapters, "0 without LoRARank")
	case c.LoRAAdapters != 0 && c.LoRAAlpha != 0:
		return argErrorf("Config.LoRAAlpha", number(c.LoRAAlpha), "0 with LoRAAdapters: the tensor LoraScales has a factor for each adapter")
	case c.LoRAAdapters != 0 && c.RSLoRA:
		return argErrorf("Config.RSLoRA", true, "false with LoRAAdapters: the tensor LoraScales has a factor for each adapter")
	case c.LoRAAdapters != 0:
		return nil
	case r != 0 && !(positive(c.LoRAAlpha) && positive(float64(LoRAScale(c)))):
		return argErrorf("Config.LoRAAlpha", number(c.LoRAAlpha), "a number above 0 with LoRARank, whose quotient by the rank is an FP32 above 0")
	}
	return nil
}

// IsFrozen reports whether the tensor is a weight of the routed experts that has no gradient in
// a layer with an adapter.
func (r *TensorRow) IsFrozen() bool { return r.Type == OfCodes || r.Needs&HasBias != 0 }
