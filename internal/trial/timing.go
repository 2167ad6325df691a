package trial

import (
	"context"
	"slices"
	"time"

	"sonicmoe/driver"
)

// Times holds the fastest, the median and the slowest device time of repeated work.
type Times struct{ Fastest, Median, Slowest time.Duration }

// Measure times work, a function that queues launches on the stream. It first repeats work for
// the duration warm. Then it repeats work back to back and times each repeat with events.
func Measure(ctx context.Context, dev driver.Device, s driver.Stream, warm time.Duration, repeats int, work func() error) (Times, error) {
	for start := time.Now(); time.Since(start) < warm; {
		if err := work(); err != nil {
			return Times{}, err
		}
		if err := s.Synchronize(ctx); err != nil {
			return Times{}, err
		}
	}
	events := make([]driver.Event, repeats+1)
	for i := range events {
		e, err := dev.NewEvent()
		if err != nil {
			return Times{}, err
		}
		defer e.Close()
		events[i] = e
		if i > 0 {
			if err := work(); err != nil {
				return Times{}, err
			}
		}
		if err := e.Record(s); err != nil {
			return Times{}, err
		}
	}
	if err := s.Synchronize(ctx); err != nil {
		return Times{}, err
	}
	all := make([]time.Duration, repeats)
	for i := range all {
		d, err := events[i+1].Since(events[i])
		if err != nil {
			return Times{}, err
		}
		all[i] = d
	}
	slices.Sort(all)
	return Times{all[0], all[repeats/2], all[repeats-1]}, nil
}
