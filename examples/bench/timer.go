package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"sonicmoe/driver"
	"sonicmoe/examples/bench/report"
	"sonicmoe/moe"
)

// timer measures work on one stream with device events.
type timer struct {
	ctx     context.Context
	dev     driver.Device
	s       driver.Stream
	clock   *clockProbe // nil on the emulated device, which has no clocks
	warm    time.Duration
	pause   time.Duration // before each pass of inTurns
	cooling time.Duration // before each load of warm
	repeats int
	events  []driver.Event
	// flush is device memory of flushBytes bytes. Writing it evicts everything else from the L2
	// cache.
	flush      driver.DevicePtr
	flushBytes int64
}

// rounds is the number of parts into which the repeats are split. Each part has a clock reading
// of its own.
const rounds = 4

// event returns event i. It creates the event at the first call.
func (t *timer) event(i int) (driver.Event, error) {
	for len(t.events) <= i {
		e, err := t.dev.NewEvent()
		if err != nil {
			return nil, err
		}
		t.events = append(t.events, e)
	}
	return t.events[i], nil
}

func (t *timer) record(i int) error {
	e, err := t.event(i)
	if err != nil {
		return err
	}
	return e.Record(t.s)
}

// since returns the milliseconds between two events that have finished.
func (t *timer) since(i, j int) (float64, error) {
	d, err := t.events[j].Since(t.events[i])
	return report.Milliseconds(d), err
}

func (t *timer) close() error {
	errs := []error{t.dev.Free(t.flush)}
	for _, e := range t.events {
		errs = append(errs, e.Close())
	}
	if t.clock != nil {
		errs = append(errs, t.clock.close())
	}
	t.events, t.flush, t.clock = nil, 0, nil
	return errors.Join(errs...)
}

// rest waits for the stream's work and then pauses, so that the chip cools.
func (t *timer) rest(pause time.Duration) error {
	if err := t.s.Synchronize(t.ctx); err != nil {
		return err
	}
	time.Sleep(pause)
	return nil
}

// load keeps the device busy with work for the time d, and queues the work at least once. Two
// pieces of work are always in the queue, so that the device is still busy when load returns.
func (t *timer) load(d time.Duration, work func() error) error {
	start := time.Now()
	for i := 0; i == 0 || time.Since(start) < d; i++ {
		if i >= 2 {
			if err := t.events[i%2].Synchronize(t.ctx); err != nil {
				return err
			}
		}
		if err := work(); err != nil {
			return err
		}
		if err := t.record(i % 2); err != nil {
			return err
		}
	}
	return nil
}

// measureRested lets the chip rest, so that what ran before does not change the clock, and
// measures after the load of t.warm.
func (t *timer) measureRested(work func() error) (*report.Sample, error) {
	if err := t.rest(t.cooling); err != nil {
		return nil, err
	}
	return t.measure(t.warm, work)
}

// measure keeps the device busy for some time. It then measures repeats of the work that follow
// back to back.
func (t *timer) measure(load time.Duration, work func() error) (*report.Sample, error) {
	if err := t.load(load, work); err != nil {
		return nil, err
	}
	each := (t.repeats + rounds - 1) / rounds
	for r := range rounds {
		if err := t.readClock(2 * r); err != nil {
			return nil, err
		}
		for i := range each {
			if err := t.record(r*(each+1) + i); err != nil {
				return nil, err
			}
			if err := work(); err != nil {
				return nil, err
			}
		}
		if err := t.record(r*(each+1) + each); err != nil {
			return nil, err
		}
		if err := t.readClock(2*r + 1); err != nil {
			return nil, err
		}
	}
	if err := t.s.Synchronize(t.ctx); err != nil {
		return nil, err
	}
	return t.sample(each)
}

func (t *timer) readClock(place int) error {
	if t.clock == nil {
		return nil
	}
	return t.clock.read(t.s, place)
}

// sample returns the times and clocks that measure recorded.
func (t *timer) sample(each int) (*report.Sample, error) {
	var all []float64
	var parts []report.Round
	for r := range rounds {
		var part []float64
		for i := range each {
			ms, err := t.since(r*(each+1)+i, r*(each+1)+i+1)
			if err != nil {
				return nil, err
			}
			part = append(part, ms)
		}
		round := report.Round{MedianMS: report.Median(part)}
		if t.clock != nil {
			var err error
			if round.GHz, err = t.clock.gigahertz(t.s, 2*r, 2*r+1); err != nil {
				return nil, err
			}
		}
		all = append(all, part...)
		parts = append(parts, round)
	}
	s := report.SampleOf(all)
	s.Rounds = parts
	return s, nil
}

// cold measures work whose data is not in the L2 cache. It overwrites the cache before each
// repeat.
func (t *timer) cold(work func() error) (*report.Sample, error) {
	if err := t.load(t.warm, work); err != nil {
		return nil, err
	}
	for i := range t.repeats {
		if err := t.s.Fill32(t.flush, uint32(i), t.flushBytes/4); err != nil {
			return nil, err
		}
		if err := t.record(2 * i); err != nil {
			return nil, err
		}
		if err := work(); err != nil {
			return nil, err
		}
		if err := t.record(2*i + 1); err != nil {
			return nil, err
		}
	}
	if err := t.s.Synchronize(t.ctx); err != nil {
		return nil, err
	}
	var all []float64
	for i := range t.repeats {
		ms, err := t.since(2*i, 2*i+1)
		if err != nil {
			return nil, err
		}
		all = append(all, ms)
	}
	return report.SampleOf(all), nil
}

// A rested chip is measured in several rounds. A round is a pause, then some passes to warm up,
// then the passes that count. SonicMoE's recorded figures were measured in the same way.
const (
	coolPause  = 700 * time.Millisecond
	coolWarm   = 3
	coolPasses = 5
	coolRounds = 5
)

// cool measures back-to-back passes on a rested chip, in a number of rounds.
func (t *timer) cool(rounds int, pause time.Duration, work func() error) (*report.Sample, error) {
	var all []float64
	for range rounds {
		if err := t.rest(pause); err != nil {
			return nil, err
		}
		for i := range coolWarm + coolPasses {
			if i >= coolWarm {
				if err := t.record(i - coolWarm); err != nil {
					return nil, err
				}
			}
			if err := work(); err != nil {
				return nil, err
			}
		}
		if err := t.record(coolPasses); err != nil {
			return nil, err
		}
		if err := t.s.Synchronize(t.ctx); err != nil {
			return nil, err
		}
		for i := range coolPasses {
			ms, err := t.since(i, i+1)
			if err != nil {
				return nil, err
			}
			all = append(all, ms)
		}
	}
	return report.SampleOf(all), nil
}

// turns measures pieces of work one after another, again and again, so that a change of the
// chip's clock affects all of them equally.
func (t *timer) turns(load time.Duration, works ...func() error) ([]*report.Sample, error) {
	if err := t.load(load, func() error {
		for _, work := range works {
			if err := work(); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return nil, err
	}
	n := t.repeats * len(works)
	for i := range n {
		if err := t.record(i); err != nil {
			return nil, err
		}
		if err := works[i%len(works)](); err != nil {
			return nil, err
		}
	}
	if err := t.record(n); err != nil {
		return nil, err
	}
	if err := t.s.Synchronize(t.ctx); err != nil {
		return nil, err
	}
	all, samples := make([][]float64, len(works)), make([]*report.Sample, len(works))
	for i := range n {
		ms, err := t.since(i, i+1)
		if err != nil {
			return nil, err
		}
		all[i%len(works)] = append(all[i%len(works)], ms)
	}
	for i, ms := range all {
		samples[i] = report.SampleOf(ms)
	}
	return samples, nil
}

// kernels measures each kernel of passes that run back to back. It records an event before each
// launch.
func (t *timer) kernels(call *moe.Call, work func() error) ([]report.Kernel, error) {
	if err := t.rest(t.cooling); err != nil {
		return nil, err
	}
	if err := t.load(t.warm, work); err != nil {
		return nil, err
	}
	var names []string
	call.Observe(func(kernel string, _ driver.Stream) error {
		names = append(names, kernel)
		return t.record(len(names) - 1)
	})
	defer call.Observe(nil)
	for range t.repeats {
		if err := work(); err != nil {
			return nil, err
		}
	}
	if err := t.record(len(names)); err != nil {
		return nil, err
	}
	if err := t.s.Synchronize(t.ctx); err != nil {
		return nil, err
	}
	list := make([]report.Kernel, len(names)/t.repeats)
	for k := range list {
		var all []float64
		for i := k; i < len(names); i += len(list) {
			ms, err := t.since(i, i+1)
			if err != nil {
				return nil, err
			}
			all = append(all, ms)
		}
		list[k] = report.Kernel{Name: names[k], MedianMS: report.Median(all), FastestMS: slices.Min(all), SlowestMS: slices.Max(all)}
	}
	return list, nil
}

// inTurns measures one kernel of several calls. It runs a pass of each call, one after another,
// again and again, so that a change of the chip's clock affects all calls equally. It returns
// the median time of the kernel in each call, in milliseconds. With a pause the chip is rested, and
// there is no load before.
func (t *timer) inTurns(calls []*moe.Call, kernel func(name string) bool, pass func(*moe.Call) error) ([]float64, error) {
	next := 0
	turn := func() error {
		next++
		return pass(calls[next%len(calls)])
	}
	if t.pause == 0 {
		if err := t.load(t.warm, turn); err != nil {
			return nil, err
		}
	}
	events, inside := 0, false
	edge := func() error {
		inside = !inside
		events++
		return t.record(events - 1)
	}
	for _, c := range calls {
		c.Observe(func(name string, _ driver.Stream) error {
			if inside || kernel(name) {
				return edge()
			}
			return nil
		})
		defer c.Observe(nil)
	}
	for range t.repeats {
		for _, c := range calls {
			if t.pause > 0 {
				if err := t.s.Synchronize(t.ctx); err != nil {
					return nil, err
				}
				time.Sleep(t.pause)
			}
			if err := pass(c); err != nil {
				return nil, err
			}
			if inside { // the measured kernel is the last of its pass
				if err := edge(); err != nil {
					return nil, err
				}
			}
		}
	}
	if err := t.s.Synchronize(t.ctx); err != nil {
		return nil, err
	}
	if want := 2 * t.repeats * len(calls); events != want {
		return nil, fmt.Errorf("the passes ran the kernel %d times, must be %d", events/2, want/2)
	}
	return t.medians(events, len(calls))
}

// medians returns the median time of each of n subjects that took turns, in milliseconds. Each turn
// has two events: its begin and its end.
func (t *timer) medians(events, n int) ([]float64, error) {
	times := make([][]float64, n)
	for i := 0; i < events; i += 2 {
		ms, err := t.since(i, i+1)
		if err != nil {
			return nil, err
		}
		at := i / 2 % n
		times[at] = append(times[at], ms)
	}
	medians := make([]float64, n)
	for i := range times {
		medians[i] = report.Median(times[i])
	}
	return medians, nil
}
