package spec

import "math"

// Limits of an adapter's rank.
const (
	maxRank  = 128
	rankStep = 4 // 8 bytes, the shortest loads of factors
	// trainedRankStep is the step of the ranks that the kernels of a trained adapter have: rows of 16
	// bytes, as TMA needs them.
	trainedRankStep = 8
)

// MaxAdapters is the largest number of adapters in a table.
const MaxAdapters = 4096

// HasLoRA reports whether the layer has one adapter, which all tokens use and which is trained.
func HasLoRA(c Config) bool { return c.LoRARank != 0 && !HasAdapters(c) }

// HasAdapters reports whether the layer has a table of adapters.
func HasAdapters(c Config) bool { return c.LoRAAdapters != 0 }

// PaddedRank returns the rank that the kernels of a trained adapter have: LoRARank, rounded up to a
// multiple of 8. If LoRARank is no multiple of 8, passes copy the factors to the workspace and fill up
// with zeros.
func PaddedRank(c Config) int {
	return (c.LoRARank + trainedRankStep - 1) / trainedRankStep * trainedRankStep
}

// PadsRank reports whether passes of the layer copy the factors of its adapter.
func PadsRank(c Config) bool { return HasLoRA(c) && PaddedRank(c) != c.LoRARank }

// Padded returns the layer whose factors have the padded rank.
func Padded(c Config) Config {
	c.LoRARank = PaddedRank(c)
	return c
}

// LoRAScale returns the factor of the adapter's product.
func LoRAScale(c Config) float32 {
	if c.RSLoRA {
		return float32(c.LoRAAlpha / math.Sqrt(float64(c.LoRARank)))
	}
	return float32(c.LoRAAlpha / float64(c.LoRARank))
}

func (c Config) checkLoRA() *ArgError {
	switch r := c.LoRARank; {
	case r < 0 || r > maxRank || r%rankStep != 0:
		return argErrorf("Config.LoRARank", r, "0 (no adapter), or a multiple of %d up to %d; pad an adapter of another rank with zeros", rankStep, maxRank)
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
