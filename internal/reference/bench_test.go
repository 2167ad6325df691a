package reference_test

import (
	"testing"

	"sonicmoe/internal/reference"
	"sonicmoe/internal/spec"
)

// BenchmarkExperts computes 64 sampled tokens of a wide layer, like a check of a layer on a
// GPU.
func BenchmarkExperts(b *testing.B) {
	const tokens = 64
	c := spec.Config{Hidden: 2048, Intermediate: 512, NumExperts: 16, TopK: 4}
	r := newRandom(b, c, tokens, 1)
	routing, err := r.Route(r.x, nil, reference.Rounded)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := r.Experts(r.x, routing.Scores, routing.ExpertIDs, nil, reference.Rounded); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(c.ForwardFLOPs(tokens)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOPS")
}
