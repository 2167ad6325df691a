package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"runtime"
	"time"

	"sonicmoe/driver"
)

// traffic is tokens that arrive at random, and what became of them. Nothing in
// it grows.
type traffic struct {
	rate    float64 // tokens a second
	random  *rand.Rand
	arrived waiting
	latency histogram // of tokens
	steps   histogram
	tokens  int
	took    time.Duration
}

// mostWaiting is how many tokens may wait; with more, arrivals wait to arrive.
const mostWaiting = 1 << 16

// newTraffic makes traffic of a rate, reproducible by its seed.
func newTraffic(rate float64, seed uint64) *traffic {
	return &traffic{rate: rate, random: rand.New(rand.NewPCG(seed, 0)), arrived: make(waiting, 0, mostWaiting)}
}

// waiting is when those tokens arrived that wait, the earliest first.
type waiting []time.Duration

// take removes the first n.
func (w *waiting) take(n int) { *w = (*w)[:copy(*w, (*w)[n:])] }

// run lets tokens arrive for so long, and steps take them until none waits.
func (t *traffic) run(ctx context.Context, m *model, length time.Duration) error {
	start := time.Now()
	next := t.gap()
	for {
		now := time.Since(start)
		for next <= min(now, length) && len(t.arrived) < mostWaiting {
			t.arrived = append(t.arrived, next)
			next += t.gap()
		}
		if len(t.arrived) == 0 {
			if next > length {
				t.took = now
				return nil
			}
			// The clock of sleeping is coarser than a step.
			if wait := next - now; wait > time.Millisecond {
				select {
				case <-time.After(wait - time.Millisecond):
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			continue
		}
		n := min(len(t.arrived), m.most())
		if err := m.step(ctx, n); err != nil {
			return m.layer.Explain(err)
		}
		end := time.Since(start)
		for _, at := range t.arrived[:n] {
			t.latency.add(end - at)
		}
		t.steps.add(end - now)
		t.arrived.take(n)
		t.tokens += n
	}
}

// gap is the time to the next arrival, at most a century: twice that is a time too.
func (t *traffic) gap() time.Duration {
	return time.Duration(min(t.random.ExpFloat64()/t.rate*float64(time.Second), math.MaxInt64/3))
}

// held is memory in use, and how often memory was asked for.
type held struct {
	heap, device int64
	allocations  uint64
}

// memory is what the process and the device hold now.
func memory(dev driver.Device) held {
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	h := held{heap: int64(s.HeapAlloc), allocations: s.Mallocs}
	if free, total, err := dev.Memory(); err == nil {
		h.device = total - free
	}
	return h
}

// report prints what became of the tokens, and what was allocated meanwhile.
func (t *traffic) report(w io.Writer, before, after held) {
	fmt.Fprintf(w, "%d tokens in %v, %.0f/s (%.0f/s arrived), %d steps of %.1f tokens\n",
		t.tokens, t.took.Round(time.Millisecond), float64(t.tokens)/t.took.Seconds(), t.rate, t.steps.count, float64(t.tokens)/float64(max(1, t.steps.count)))
	for _, h := range []struct {
		name string
		of   *histogram
	}{{"latency of a token", &t.latency}, {"step", &t.steps}} {
		fmt.Fprintf(w, "%-18s p50 %v, p90 %v, p99 %v, longest %v\n", h.name, h.of.at(0.5), h.of.at(0.9), h.of.at(0.99), h.of.longest.Round(time.Microsecond))
	}
	fmt.Fprintf(w, "%.3f allocations a step, heap %+d bytes, device memory %+d bytes\n",
		float64(after.allocations-before.allocations)/float64(max(1, t.steps.count)), after.heap-before.heap, after.device-before.device)
}
