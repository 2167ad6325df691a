package main

// balance is the load-balancing loss of Switch Transformers (arXiv 2101.03961): E times the sum
// of f·P over the E experts. A token has one pair for each expert that it chose. f is an
// expert's share of all pairs, and P is the expert's mean probability in a softmax over all
// logits. The loss is 1 if all experts have the same share and the same probability.
type balance struct {
	tokens, experts int
	// probability is [T, E] for T tokens. share is [E].
	probability, share []float64
}

// newBalance returns the loss for logits [T, E] and the chosen expert ids [T, K]. It overwrites
// logits.
func newBalance(logits []float64, ids []int32, experts int) *balance {
	b := &balance{tokens: len(logits) / experts, experts: experts, probability: logits, share: make([]float64, experts)}
	softmaxRows(logits, experts)
	for _, e := range ids {
		b.share[e] += 1 / float64(len(ids))
	}
	return b
}

// loss returns the value of the loss.
func (b *balance) loss() float64 {
	var sum float64
	for i, p := range b.probability {
		sum += b.share[i%b.experts] * p
	}
	return sum * float64(b.experts) / float64(b.tokens)
}

// gradient returns the gradient with respect to the logits, [T, E], times scale. The shares are
// treated as constants.
func (b *balance) gradient(scale float64) []float64 {
	scale *= float64(b.experts) / float64(b.tokens)
	out := make([]float64, len(b.probability))
	inParallel(b.tokens, func(first, last int) {
		for t := first; t < last; t++ {
			p := b.probability[t*b.experts:][:b.experts]
			mean := dot(p, b.share)
			for e := range p {
				out[t*b.experts+e] = scale * p[e] * (b.share[e] - mean)
			}
		}
	})
	return out
}
