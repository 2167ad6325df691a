package main

import (
	"fmt"
	"strings"

	"sonicmoe/moe"
)

// size is a model with the way it is trained.
type size struct {
	name  string
	layer moe.Config
	// blocks is how many MoE layers there are, context how many bytes before
	// the one to predict the model sees.
	blocks, context int
	// tokens are those of one pass; a step adds up the gradients of so many
	// passes.
	tokens, passes int
	// steps is how many there are by default, rate the largest learning rate.
	steps int
	rate  float64
	// text is how many bytes of the text to learn, 0 for all.
	text int
}

// Routers are trained in FP32 logits: rounded ones would leave many ties.
var sizes = []size{
	{
		name:   "tiny",
		layer:  moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 4, TopK: 2, Logits: moe.LogitsF32},
		blocks: 1, context: 4, tokens: 128, passes: 1, steps: 200, rate: 2e-3, text: 4096,
	},
	{
		name:   "small",
		layer:  moe.Config{Hidden: 256, Intermediate: 128, NumExperts: 8, TopK: 2, Logits: moe.LogitsF32},
		blocks: 2, context: 8, tokens: 512, passes: 2, steps: 300, rate: 2e-3,
	},
	{
		name:   "large",
		layer:  moe.Config{Hidden: 512, Intermediate: 256, NumExperts: 64, TopK: 8, Logits: moe.LogitsF32},
		blocks: 4, context: 16, tokens: 2048, passes: 2, steps: 200, rate: 1e-3,
	},
}

// findSize finds a size by its name.
func findSize(name string) (size, error) {
	var names []string
	for _, s := range sizes {
		if s.name == name {
			s.layer.TokensHint = s.tokens
			return s, nil
		}
		names = append(names, s.name)
	}
	return size{}, fmt.Errorf("-size is %q, must be one of %s", name, strings.Join(names, ", "))
}

// weights counts the weights of a model with an alphabet of so many symbols.
func (s size) weights(symbols int) int64 {
	c := s.layer
	experts := int64(c.NumExperts) * 3 * int64(c.Intermediate) * int64(c.Hidden)
	block := experts + int64(c.NumExperts+1)*int64(c.Hidden)
	return int64(s.blocks)*block + int64((s.context+1)*symbols+1)*int64(c.Hidden)
}
