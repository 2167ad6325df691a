package main

import (
	"fmt"
	"strings"

	"sonicmoe/moe"
)

// size holds the sizes of a model and the parameters of its training.
type size struct {
	name  string
	layer moe.Config
	// blocks is the number of MoE layers. context is the number of bytes from which the model
	// predicts the next byte.
	blocks, context int
	// tokens is the number of tokens of a pass. passes is the number of passes whose gradients
	// one step adds up.
	tokens, passes int
	// steps is the default number of steps. rate is the largest learning rate.
	steps int
	rate  float64
	// text is the number of bytes of the text to train on, or 0 for all.
	text int
}

// sizes lists the sizes. Their logits are FP32, because rounded logits have many ties.
var sizes = []size{
	{
		name:   "tiny",
		layer:  moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 4, TopK: 2, Logits: moe.F32},
		blocks: 1, context: 4, tokens: 128, passes: 1, steps: 200, rate: 2e-3, text: 4096,
	},
	{
		name:   "small",
		layer:  moe.Config{Hidden: 256, Intermediate: 128, NumExperts: 8, TopK: 2, Logits: moe.F32},
		blocks: 2, context: 8, tokens: 512, passes: 2, steps: 300, rate: 2e-3,
	},
	{
		name:   "large",
		layer:  moe.Config{Hidden: 512, Intermediate: 256, NumExperts: 64, TopK: 8, Logits: moe.F32},
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

// weights returns the number of weights of a model with a number of symbols in its alphabet.
func (s size) weights(symbols int) int64 {
	c := s.layer
	experts := int64(c.NumExperts) * 3 * int64(c.Intermediate) * int64(c.Hidden)
	if r := int64(c.LoRARank); r > 0 {
		experts += int64(c.NumExperts) * r * (2*int64(c.Hidden) + 3*int64(c.Intermediate))
	}
	block := experts + int64(c.NumExperts+1)*int64(c.Hidden)
	return int64(s.blocks)*block + int64((s.context+1)*symbols+1)*int64(c.Hidden)
}
