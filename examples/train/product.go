package main

import (
	"runtime"
	"sync"
)

// inParallel splits 0..n-1 into ranges, and calls f for all ranges, on all processors. The
// results of f must not depend on the ranges, so that a run gives the same numbers on every
// machine.
func inParallel(n int, f func(first, last int)) {
	workers := min(n, runtime.GOMAXPROCS(0))
	if workers <= 1 {
		f(0, n)
		return
	}
	var all sync.WaitGroup
	for i := range workers {
		all.Go(func() { f(i*n/workers, (i+1)*n/workers) })
	}
	all.Wait()
}

// dot returns the inner product of two vectors of the same length.
func dot(a, b []float64) float64 {
	var sum [4]float64 // four sums, so that an addition need not wait for the previous one
	b = b[:len(a)]
	i := 0
	for ; i+4 <= len(a); i += 4 {
		sum[0] += a[i] * b[i]
		sum[1] += a[i+1] * b[i+1]
		sum[2] += a[i+2] * b[i+2]
		sum[3] += a[i+3] * b[i+3]
	}
	for ; i < len(a); i++ {
		sum[0] += a[i] * b[i]
	}
	return sum[0] + sum[1] + (sum[2] + sum[3])
}

// addScaled adds f·x to y.
func addScaled(y []float64, f float64, x []float64) {
	y = y[:len(x)]
	for i, v := range x {
		y[i] += f * v
	}
}

// timesTransposed returns a·bᵀ [m, n] for a [m, k] and b [n, k].
func timesTransposed(a, b []float64, m, n, k int) []float64 {
	out := make([]float64, m*n)
	inParallel(m, func(first, last int) {
		for i := first; i < last; i++ {
			for j := range n {
				out[i*n+j] = dot(a[i*k:][:k], b[j*k:][:k])
			}
		}
	})
	return out
}

// times returns a·b [m, k] for a [m, n] and b [n, k].
func times(a, b []float64, m, n, k int) []float64 {
	out := make([]float64, m*k)
	inParallel(m, func(first, last int) {
		for i := first; i < last; i++ {
			for j := range n {
				addScaled(out[i*k:][:k], a[i*n+j], b[j*k:][:k])
			}
		}
	})
	return out
}

// addTransposedTimes adds aᵀ·b to out [n, k], for a [m, n] and b [m, k].
func addTransposedTimes(out, a, b []float64, m, n, k int) {
	inParallel(n, func(first, last int) {
		for i := range m {
			for j := first; j < last; j++ {
				addScaled(out[j*k:][:k], a[i*n+j], b[i*k:][:k])
			}
		}
	})
}
