package main

import (
	"math"
	"time"
)

// histogram counts durations in bins 2 % wide, from a microsecond to over a
// minute. The zero value is empty.
type histogram struct {
	bins    [1000]int
	count   int
	longest time.Duration
}

// binWidth is the ratio of a bin's ends.
const binWidth = 1.02

// add counts a duration.
func (h *histogram) add(d time.Duration) {
	bin := int(math.Log(float64(max(d, time.Microsecond))/float64(time.Microsecond)) / math.Log(binWidth))
	h.bins[min(bin, len(h.bins)-1)]++
	h.count++
	h.longest = max(h.longest, d)
}

// start is where a bin begins.
func start(bin int) time.Duration {
	return time.Duration(math.Pow(binWidth, float64(bin)) * float64(time.Microsecond))
}

// at is the end of the bin with that share of all durations up to it.
func (h *histogram) at(share float64) time.Duration {
	wanted, seen := int(math.Ceil(share*float64(h.count))), 0
	for bin, n := range h.bins {
		if seen += n; seen >= wanted && n > 0 {
			return min(start(bin+1), h.longest).Round(time.Microsecond)
		}
	}
	return 0
}
