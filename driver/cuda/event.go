package cuda

import (
	"context"
	"time"
	"unsafe"

	"sonicmoe/driver"
)

// event is a CUevent that records times.
type event struct {
	handle
	dev *device
}

// NewEvent implements driver.Device.
func (d *device) NewEvent() (driver.Event, error) {
	e := &event{dev: d}
	if err := d.do(symEventCreate, uintptr(unsafe.Pointer(&e.raw)), 0); err != nil {
		return nil, err
	}
	return e, nil
}

// ownEvent returns e as an *event if it belongs to this device, otherwise an error.
func (d *device) ownEvent(op string, e driver.Event) (*event, error) {
	ev, ok := e.(*event)
	if !ok || ev.dev != d {
		return nil, invalid(op, "the event is not of this device")
	}
	return ev, nil
}

// Record implements driver.Event.
func (e *event) Record(s driver.Stream) error {
	if err := e.use("Record", "event"); err != nil {
		return err
	}
	defer e.leave()
	st, ok := s.(*stream)
	if !ok || st.dev != e.dev {
		return invalid("Record", "the stream is not of this device")
	}
	if err := st.use("Record", "stream"); err != nil {
		return err
	}
	defer st.leave()
	return e.dev.doNumbers(symEventRecord, e.raw, st.raw)
}

// Done implements driver.Event. An event that was never recorded is done.
func (e *event) Done() (bool, error) {
	if err := e.use("Done", "event"); err != nil {
		return false, err
	}
	defer e.leave()
	return e.dev.done(&e.handle, symEventQuery)
}

// Synchronize implements driver.Event.
func (e *event) Synchronize(ctx context.Context) error {
	if err := e.use("Synchronize", "event"); err != nil {
		return err
	}
	defer e.leave()
	return e.dev.wait(ctx, &e.handle, symEventQuery, symEventSynchronize)
}

// Since implements driver.Event. The driver's resolution is about half a
// microsecond.
func (e *event) Since(start driver.Event) (time.Duration, error) {
	if err := e.use("Since", "event"); err != nil {
		return 0, err
	}
	defer e.leave()
	from, err := e.dev.ownEvent("Since", start)
	if err != nil {
		return 0, err
	}
	if err := from.use("Since", "event"); err != nil {
		return 0, err
	}
	defer from.leave()
	var ms float32
	if err := e.dev.do(symEventElapsedTime, uintptr(unsafe.Pointer(&ms)), from.raw, e.raw); err != nil {
		return 0, withText(err, "both events must have been recorded and be done")
	}
	return time.Duration(float64(ms) * float64(time.Millisecond)), nil
}

// Close implements driver.Event.
func (e *event) Close() error {
	return e.close(func() error { return e.dev.doNumbers(symEventDestroy, e.raw) })
}
