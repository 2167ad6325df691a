package order

// RangeStep divides the length of the ranges of [RangesOf].
const RangeStep = 64

// TokenRanges are the contiguous ranges of tokens that the CTAs of a kernel take,
// for a struct of arguments to embed. Those of router or count, which counts by
// CTA, and of the plan behind it are the same; other kernels have theirs.
type TokenRanges struct {
	// Tokens is T, PerCTA the tokens of a range, of Router's a multiple of RangeStep.
	Tokens int
	PerCTA int
}

// RangesOf splits the tokens among the SMs.
func RangesOf(tokens, sms int) TokenRanges { return RangesBy(RangeStep, tokens, sms) }

// RangesBy splits the tokens among the SMs, in ranges whose length is a multiple of step.
func RangesBy(step, tokens, sms int) TokenRanges {
	each := (tokens + sms - 1) / sms
	return TokenRanges{Tokens: tokens, PerCTA: (each + step - 1) / step * step}
}

// Count is the number of ranges.
func (r *TokenRanges) Count() int { return (r.Tokens + r.PerCTA - 1) / r.PerCTA }
