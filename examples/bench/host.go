package main

import (
	"context"
	"runtime"
	"time"

	"sonicmoe/driver"
)

// hostTime is the median time that a call takes of the host, on an idle
// device: no call waits for room in the queue.
func hostTime(ctx context.Context, s driver.Stream, runs int, call func() error) (us float64, err error) {
	var all []float64
	for range runs {
		start := time.Now()
		if err := call(); err != nil {
			return 0, err
		}
		all = append(all, float64(time.Since(start))/1e3)
		if err := s.Synchronize(ctx); err != nil {
			return 0, err
		}
	}
	return median(all), nil
}

// hostAllocs is the objects that a call puts on the Go heap, on average, the
// least of three tries: the runtime's own goroutines may allocate meanwhile.
func hostAllocs(ctx context.Context, s driver.Stream, runs int, call func() error) (float64, error) {
	least := uint64(1 << 62)
	for range 3 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range runs {
			if err := call(); err != nil {
				return 0, err
			}
		}
		runtime.ReadMemStats(&after)
		least = min(least, after.Mallocs-before.Mallocs)
		if err := s.Synchronize(ctx); err != nil {
			return 0, err
		}
	}
	return float64(least) / float64(runs), nil
}

// host measures both ways of queueing a pass, each by so many runs.
func host(ctx context.Context, s driver.Stream, runs int, eager, replay func() error) (h *Host, err error) {
	h = new(Host)
	if h.EagerUS, err = hostTime(ctx, s, runs, eager); err != nil {
		return nil, err
	}
	if h.GraphUS, err = hostTime(ctx, s, runs, replay); err != nil {
		return nil, err
	}
	if h.EagerAllocs, err = hostAllocs(ctx, s, runs, eager); err != nil {
		return nil, err
	}
	h.GraphAllocs, err = hostAllocs(ctx, s, runs, replay)
	return h, err
}
