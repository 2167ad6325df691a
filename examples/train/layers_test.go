package main

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// centralDifferences returns the gradient of f with respect to x, computed by central
// differences.
func centralDifferences(x []float64, f func() float64) []float64 {
	const h = 1e-5
	out := make([]float64, len(x))
	for i, v := range x {
		x[i] = v + h
		up := f()
		x[i] = v - h
		out[i] = (up - f()) / (2 * h)
		x[i] = v
	}
	return out
}

func randoms(r *rand.Rand, n int) []float64 { return normal(r, n, 1).w }

// TestLayerGradients compares the gradients of every layer on the host with central differences
// of a random weighted sum of the layer's outputs.
func TestLayerGradients(t *testing.T) {
	const tokens, d, symbols, window = 5, 6, 7, 3
	r := rand.New(rand.NewPCG(1, 1))
	x, weights := randoms(r, tokens*d), randoms(r, tokens*d)
	close := func(want, got []float64) {
		t.Helper()
		assert.InDeltaSlice(t, want, got, 1e-8)
	}

	n := norm{gain: normal(r, d, 1)}
	f := func() float64 { return dot(n.forward(x), weights) }
	wantX, wantWeight := centralDifferences(x, f), centralDifferences(n.gain.w, f)
	f() // run the layer with x again, because the central differences ran it with other inputs
	close(wantX, n.backward(weights))
	close(wantWeight, n.gain.grad)

	b := newCorpus(strings.Repeat("abcdefgabcdefgggfedcbabbbbb", 2)).draw(r, tokens, window)
	e := embedding{table: normal(r, window*symbols*d, 1), context: window, symbols: symbols, d: d}
	f = func() float64 { return dot(e.forward(b), weights) }
	wantWeight = centralDifferences(e.table.w, f)
	e.backward(weights)
	close(wantWeight, e.table.grad)

	h := head{weight: normal(r, symbols*d, 1), d: d}
	f = func() float64 { return 0.5 * h.forward(x, b.next) }
	wantX, wantWeight = centralDifferences(x, f), centralDifferences(h.weight.w, f)
	f()
	close(wantX, h.backward(0.5))
	close(wantWeight, h.weight.grad)
}

// TestBalance checks that the balancing loss is 1 for even loads, and that its gradient is
// right.
func TestBalance(t *testing.T) {
	const tokens, experts = 6, 3
	even := newBalance(make([]float64, tokens*experts), []int32{0, 1, 2, 2, 1, 0, 0, 1, 2, 2, 1, 0}, experts)
	assert.InDelta(t, 1, even.loss(), 1e-12)
	assert.InDeltaSlice(t, make([]float64, tokens*experts), even.gradient(1), 1e-12)

	ids := []int32{0, 0, 1, 0, 2, 0, 0, 1, 0, 0, 0, 1}
	logits := randoms(rand.New(rand.NewPCG(2, 2)), tokens*experts)
	loss := func() float64 { return newBalance(append([]float64(nil), logits...), ids, experts).loss() }
	want := centralDifferences(logits, func() float64 { return 3 * loss() })
	assert.InDeltaSlice(t, want, newBalance(logits, ids, experts).gradient(3), 1e-8)
}

func TestSoftmaxOfLargeLogits(t *testing.T) {
	p := []float64{1e4, 1e4, -1e4, math.Inf(-1)}
	softmax(p)
	assert.Equal(t, []float64{0.5, 0.5, 0, 0}, p)
}

func TestProducts(t *testing.T) {
	a := []float64{1, 2, 3, 4, 5, 6} // [2, 3]
	assert.Equal(t, []float64{14, 32, 32, 77}, timesTransposed(a, a, 2, 2, 3))
	b := []float64{1, 0, 0, 1, 2, 2} // [3, 2]
	assert.Equal(t, []float64{7, 8, 16, 17}, times(a, b, 2, 3, 2))
	out := []float64{1, 0, 0, 0, 0, 0, 0, 0, 0}
	addTransposedTimes(out, a, a, 2, 3, 3)
	assert.Equal(t, []float64{18, 22, 27, 22, 29, 36, 27, 36, 45}, out)
	var long [2][11]float64
	for i := range 11 {
		long[0][i], long[1][i] = float64(i), 2
	}
	assert.Equal(t, 110.0, dot(long[0][:], long[1][:]))
}

// TestInParallel checks that the ranges together are 0..n-1, each number once, whatever the
// number of processors.
func TestInParallel(t *testing.T) {
	for _, n := range []int{0, 1, 2, 3, 17, 1000} {
		seen := make([]int, n)
		inParallel(n, func(first, last int) {
			for i := first; i < last; i++ {
				seen[i]++
			}
		})
		for i, times := range seen {
			assert.Equal(t, 1, times, i)
		}
	}
}
