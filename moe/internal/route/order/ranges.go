package order

// RangeStep divides the length of every range that [RangesOf] returns.
const RangeStep = 64

// TokenRanges splits the tokens into contiguous ranges, one for each CTA of a kernel. Structs of
// arguments embed it. A kernel that counts for each CTA, and the plan after it, use the same
// ranges.
type TokenRanges struct {
	// Tokens is T. PerCTA is the number of tokens of a range.
	Tokens int
	PerCTA int
}

// RangesOf splits the tokens among the SMs, in ranges whose length is a multiple of RangeStep.
func RangesOf(tokens, sms int) TokenRanges { return RangesBy(RangeStep, tokens, sms) }

// RangesBy splits the tokens among the SMs, in ranges whose length is a multiple of step.
func RangesBy(step, tokens, sms int) TokenRanges {
	each := (tokens + sms - 1) / sms
	return TokenRanges{Tokens: tokens, PerCTA: (each + step - 1) / step * step}
}

// Count returns the number of ranges.
func (r *TokenRanges) Count() int { return (r.Tokens + r.PerCTA - 1) / r.PerCTA }
