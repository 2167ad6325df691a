package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strconv"
	"time"

	"sonicmoe/driver"
	"sonicmoe/examples/bench/report"
)

// hostRuns says how many calls are measured for their host time and allocations. Each call is
// timed by itself, in batches of back-to-back calls. The stream is idle before each batch, so
// that no call waits for room in the queue. Only the first call of a batch finds the device and
// the host asleep.
type hostRuns struct{ batches, batch int }

// times returns the times of single calls in microseconds, in ascending order.
func (h hostRuns) times(ctx context.Context, s driver.Stream, call func() error) ([]float64, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all []float64
	for range h.batches {
		if err := s.Synchronize(ctx); err != nil {
			return nil, err
		}
		for range h.batch {
			start := time.Now()
			if err := call(); err != nil {
				return nil, err
			}
			all = append(all, float64(time.Since(start))/1e3)
		}
	}
	slices.Sort(all)
	return all, s.Synchronize(ctx)
}

// turns lets another program decide when calls are timed. It reads lines that each contain a
// number of calls, and answers each line with the times of that many calls in microseconds. The
// other program can time its own calls between the lines. This makes the two comparable,
// because the speed of shared cores changes within seconds.
func turns(ctx context.Context, s driver.Stream, in io.Reader, out io.Writer, call func() error) error {
	answers, lines := json.NewEncoder(out), bufio.NewScanner(in)
	for lines.Scan() {
		n, err := strconv.Atoi(lines.Text())
		if err != nil || n < 1 {
			return fmt.Errorf("standard input has the line %q, must have a number of calls from 1", lines.Text())
		}
		all, err := hostRuns{batches: 1, batch: n}.times(ctx, s, call)
		if err != nil {
			return err
		}
		if err := answers.Encode(all); err != nil {
			return err
		}
	}
	return lines.Err()
}

// allocs returns the number of objects that a call allocates on the Go heap. It is the lowest
// mean of three measurements, because goroutines of the runtime may also allocate.
func (h hostRuns) allocs(ctx context.Context, s driver.Stream, call func() error) (float64, error) {
	least := uint64(1 << 62)
	for range 3 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range h.batch {
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
	return float64(least) / float64(h.batch), nil
}

// host measures the two ways of queueing a pass: calls (eager), and graph replays.
func host(ctx context.Context, s driver.Stream, runs hostRuns, eager, replay func() error) (*report.Host, error) {
	h := &report.Host{Batches: runs.batches, Batch: runs.batch}
	for _, way := range []struct {
		call              func() error
		median, low, high *float64
		allocs            *float64
	}{
		{eager, &h.EagerUS, &h.EagerLowUS, &h.EagerHighUS, &h.EagerAllocs},
		{replay, &h.GraphUS, &h.GraphLowUS, &h.GraphHighUS, &h.GraphAllocs},
	} {
		all, err := runs.times(ctx, s, way.call)
		if err != nil {
			return nil, err
		}
		*way.median, *way.low, *way.high = all[len(all)/2], all[len(all)/10], all[len(all)*9/10]
		if *way.allocs, err = runs.allocs(ctx, s, way.call); err != nil {
			return nil, err
		}
	}
	return h, nil
}
