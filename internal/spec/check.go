package spec

import "math"

// Check returns nil, or an [*ArgError] that names the first wrong field.
func (c Config) Check() error {
	for _, err := range []*ArgError{
		checkChoice("Config.GateUp", GateUps, c.GateUp), checkChoice("Config.Weights", WeightFormats, c.Weights), checkChoice("Config.Activation", Activations, c.Activation),
		checkChoice("Config.Score", Scores, c.Score), checkChoice("Config.Renormalize", Renorms, c.Renormalize),
	} {
		if err != nil {
			return err
		}
	}
	c = c.Normal()
	for _, check := range []func() *ArgError{c.checkSizes, c.checkWeights, c.checkPacked, c.checkLoRA, c.checkLogits, c.checkGroups, c.checkScores, c.checkShared} {
		if err := check(); err != nil {
			return err
		}
	}
	if err := c.Rounding.Check(); err != nil {
		return err
	}
	if most := MaxRows / c.TopK; c.TokensHint < 0 || c.TokensHint > most {
		return argErrorf("Config.TokensHint", c.TokensHint, "0 (unknown) or the tokens expected in a call, at most %d", most)
	}
	return nil
}

func (c Config) checkSizes() *ArgError {
	for _, w := range []struct {
		field string
		width int
	}{{"Config.Hidden", c.Hidden}, {"Config.Intermediate", c.Intermediate}} {
		if w.width < WidthStep || w.width%WidthStep != 0 {
			return argErrorf(w.field, w.width, "a multiple of %d, at least %d", WidthStep, WidthStep)
		}
		if w.width > MaxWidth {
			return argErrorf(w.field, w.width, "at most %d", MaxWidth)
		}
	}
	if c.NumExperts < 1 || c.NumExperts > MaxExperts {
		return argErrorf("Config.NumExperts", c.NumExperts, "1 to %d", MaxExperts)
	}
	if most := min(MaxTopK, c.NumExperts); c.TopK < 1 || c.TopK > most {
		return argErrorf("Config.TopK", c.TopK, "1 to %d (with %d experts)", most, c.NumExperts)
	}
	return nil
}

// checkWeights checks the layout of the weights and the activation.
func (c Config) checkWeights() *ArgError {
	switch {
	case c.Type != BF16 && c.Type != F16:
		return argErrorf("Config.Type", c.Type, "BF16 or F16")
	case c.GateUp != Concatenated && !c.Activation.Gated():
		return argErrorf("Config.GateUp", c.GateUp, "concatenated, its zero value: %v has no gate", c.Activation)
	case c.Activation == SwiGLUOAI && !positive(c.Alpha):
		return argErrorf("Config.Alpha", number(c.Alpha), "a number above 0 with swiglu-oai (gpt-oss has 1.702)")
	case c.Activation != SwiGLUOAI && c.Alpha != 0:
		return argErrorf("Config.Alpha", number(c.Alpha), "0: %v has none", c.Activation)
	case c.Activation == SwiGLUOAI && !positive(c.Limit):
		return argErrorf("Config.Limit", number(c.Limit), "a number above 0 with swiglu-oai (gpt-oss has 7)")
	case c.Activation == SwiGLU && c.Limit != 0 && !positive(c.Limit):
		return argErrorf("Config.Limit", number(c.Limit), "0 (no limit) or a number above 0")
	case c.Activation != SwiGLU && c.Activation != SwiGLUOAI && c.Limit != 0:
		return argErrorf("Config.Limit", number(c.Limit), "0: %v has none", c.Activation)
	}
	return nil
}

func (c Config) checkLogits() *ArgError {
	switch {
	case c.Logits != BF16 && c.Logits != F16 && c.Logits != F32:
		return argErrorf("Config.Logits", c.Logits, "BF16, F16 or F32")
	case c.RouterF32 && c.Logits != F32:
		return argErrorf("Config.Logits", c.Logits, "F32 with RouterF32")
	case c.Logits != F32 && c.Logits != c.Type:
		return argErrorf("Config.Logits", c.Logits, "%s, the layer's Type, or F32", [...]string{BF16: "BF16", F16: "F16"}[c.Type])
	}
	return nil
}

// checkGroups checks the fields that affect which experts a token chooses.
func (c Config) checkGroups() *ArgError {
	if c.SelectionBias && c.Score == SoftmaxTopK {
		return argErrorf("Config.SelectionBias", true, "false with the score softmax-topk, which comes after the choice; softmax with Renormalize sum is the same function")
	}
	if c.Groups == 0 {
		if c.TopGroups != 0 {
			return argErrorf("Config.TopGroups", c.TopGroups, "0 where Groups is 0")
		}
		if c.GroupSumOfTwo {
			return argErrorf("Config.GroupSumOfTwo", true, "false where Groups is 0")
		}
		return nil
	}
	if c.Groups < 2 || c.NumExperts%c.Groups != 0 {
		return argErrorf("Config.Groups", c.Groups, "0 (no groups), or 2 or more that %d experts divide by", c.NumExperts)
	}
	size := c.NumExperts / c.Groups
	switch {
	case c.TopGroups < 1 || c.TopGroups > c.Groups:
		return argErrorf("Config.TopGroups", c.TopGroups, "1 to %d, the number of groups", c.Groups)
	case c.TopK > c.TopGroups*size:
		return argErrorf("Config.TopK", c.TopK, "at most %d, the experts of %d groups of %d", c.TopGroups*size, c.TopGroups, size)
	case c.GroupSumOfTwo && c.Score == SoftmaxTopK:
		return argErrorf("Config.GroupSumOfTwo", true, "false with the score softmax-topk, which comes after the choice")
	case c.GroupSumOfTwo && size < 2:
		return argErrorf("Config.GroupSumOfTwo", true, "false: groups have one expert")
	}
	return nil
}

// checkScores checks the fields that affect the scores of the chosen experts.
func (c Config) checkScores() *ArgError {
	switch {
	case c.Renormalize != NoRenorm && c.Score == SoftmaxTopK:
		return argErrorf("Config.Renormalize", c.Renormalize, "none with the score softmax-topk, whose sum is 1")
	case c.Renormalize == RenormClamp && !positive(c.NormEpsilon):
		return argErrorf("Config.NormEpsilon", number(c.NormEpsilon), "a number above 0 with Renormalize clamp")
	case c.Renormalize == RenormSum && c.NormEpsilon != 0 && !positive(c.NormEpsilon):
		return argErrorf("Config.NormEpsilon", number(c.NormEpsilon), "a number, 0 or more")
	case c.Renormalize == NoRenorm && c.NormEpsilon != 0:
		return argErrorf("Config.NormEpsilon", number(c.NormEpsilon), "0 without Renormalize")
	case c.ScoreScale != 0 && !positive(c.ScoreScale):
		return argErrorf("Config.ScoreScale", number(c.ScoreScale), "0 (which means 1) or a number above 0")
	case c.ScoreOnInput && c.Bias:
		return argErrorf("Config.Bias", true, "false with ScoreOnInput: no model has both")
	}
	return nil
}

func (c Config) checkShared() *ArgError {
	switch {
	case c.SharedExperts < 0:
		return argErrorf("Config.SharedExperts", c.SharedExperts, "0 or more")
	case c.SharedExperts > MaxWidth/c.Intermediate:
		return argErrorf("Config.SharedExperts", c.SharedExperts, "at most %d: their width together is bounded by %d", MaxWidth/c.Intermediate, MaxWidth)
	case c.SharedGate && c.SharedExperts == 0:
		return argErrorf("Config.SharedGate", true, "false without SharedExperts")
	}
	return nil
}

// positive reports whether v is a finite number above 0.
func positive(v float64) bool { return v > 0 && v <= math.MaxFloat64 }
