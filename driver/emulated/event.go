package emulated

import (
	"context"
	"sync"
	"time"

	"sonicmoe/driver"
)

// event implements driver.Event: a time of the host.
type event struct {
	dev *device

	mu     sync.Mutex
	at     time.Time
	closed bool
}

func (d *device) NewEvent() (driver.Event, error) {
	if err := d.ready("new event"); err != nil {
		return nil, err
	}
	return &event{dev: d}, nil
}

func (e *event) Record(s driver.Stream) error {
	st, ok := s.(*stream)
	if !ok || st.dev != e.dev {
		return invalid("record", "the stream is not of this device")
	}
	return st.do("record", func() error {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.at = time.Now()
		return nil
	})
}

// time is when the event was recorded.
func (e *event) time(op string) (time.Time, error) {
	if err := e.dev.ready(op); err != nil {
		return time.Time{}, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return time.Time{}, invalid(op, "the event is closed")
	}
	return e.at, nil
}

func (e *event) Done() (bool, error) {
	_, err := e.time("event")
	return err == nil, err
}

func (e *event) Synchronize(ctx context.Context) error {
	if _, err := e.time("event"); err != nil {
		return err
	}
	return ctx.Err()
}

func (e *event) Since(start driver.Event) (time.Duration, error) {
	from, ok := start.(*event)
	if !ok || from.dev != e.dev {
		return 0, invalid("event", "the start event is not of this device")
	}
	a, err := from.time("event")
	if err != nil {
		return 0, err
	}
	b, err := e.time("event")
	if err != nil {
		return 0, err
	}
	if a.IsZero() || b.IsZero() {
		return 0, invalid("event", "an event that was never recorded has no time")
	}
	return b.Sub(a), nil
}

func (e *event) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	return nil
}
