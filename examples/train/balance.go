package main

import "sonicmoe/moe/reference"

// balance is the load-balancing loss of Switch Transformers (arXiv 2101.03961):
// E·Σ f·P over the experts, with f an expert's share of the pairs of tokens and
// experts and P its mean probability, in a softmax over all logits. It is 1
// when all are alike.
type balance struct {
	tokens, experts int
	// probability [T, E], share [E].
	probability, share []float64
}

// newBalance computes the logits anew from x and router, [T, d] and [E, d] bf16
// bits, as the layer keeps only those of the chosen experts. ids [T, K] are the
// choice.
func newBalance(x, router []uint16, ids []int32, d int) *balance {
	b := &balance{tokens: len(x) / d, experts: len(router) / d}
	b.probability = timesTransposed(widen(x), widen(router), b.tokens, b.experts, d)
	for t := range b.tokens {
		softmax(b.probability[t*b.experts:][:b.experts])
	}
	b.share = make([]float64, b.experts)
	for _, e := range ids {
		b.share[e] += 1 / float64(len(ids))
	}
	return b
}

// loss is the loss itself.
func (b *balance) loss() float64 {
	var sum float64
	for i, p := range b.probability {
		sum += b.share[i%b.experts] * p
	}
	return sum * float64(b.experts) / float64(b.tokens)
}

// gradient is that of the logits, [T, E], times scale; the shares count as
// constants.
func (b *balance) gradient(scale float64) []float64 {
	scale *= float64(b.experts) / float64(b.tokens)
	out := make([]float64, len(b.probability))
	for t := range b.tokens {
		p := b.probability[t*b.experts:][:b.experts]
		mean := dot(p, b.share)
		for e := range p {
			out[t*b.experts+e] = scale * p[e] * (b.share[e] - mean)
		}
	}
	return out
}

// widen decodes bf16 bits, narrow rounds to them.
func widen(bits []uint16) []float64 {
	out := make([]float64, len(bits))
	for i, b := range bits {
		out[i] = reference.FromBF16(b)
	}
	return out
}

func narrow(values []float64) []uint16 {
	out := make([]uint16, len(values))
	for i, v := range values {
		out[i] = reference.ToBF16(v)
	}
	return out
}
