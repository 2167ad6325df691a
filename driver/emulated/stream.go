package emulated

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"sonicmoe/driver"
	"sonicmoe/internal/devkit"
	"sonicmoe/ptx/emu"
)

// stream implements gpu.Stream. Work runs when it is queued. Two streams therefore differ only
// in their captures.
type stream struct {
	dev    *device
	closed atomic.Bool

	mu     sync.Mutex
	record *graph // receives the operations while the stream is captured

	launches emu.Stream // earlier launches that the next launch may overlap
}

// operation is a piece of work that runs on the stream s.
type operation func(s *stream) error

// alone returns an operation that first waits for earlier launches.
func alone(work func() error) operation {
	return func(s *stream) error {
		s.launches.Wait()
		return work()
	}
}

// NewStream implements driver.Device.
func (d *device) NewStream() (driver.Stream, error) {
	if err := d.ready("NewStream"); err != nil {
		return nil, err
	}
	return &stream{dev: d}, nil
}

// WrapStream implements driver.Device. An emulated device has no streams of other
// libraries, so it ignores the handle.
func (d *device) WrapStream(uintptr) driver.Stream { return &stream{dev: d} }

func (s *stream) open(op string) error {
	if err := s.dev.ready(op); err != nil {
		return err
	}
	if s.closed.Load() {
		return invalid(op, "the stream is closed")
	}
	return nil
}

// Capturing reports whether the stream's work is being recorded.
func (s *stream) Capturing() (bool, error) { return s.capturing(), nil }

func (s *stream) capturing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.record != nil
}

// do runs the work now, or adds it to the capture.
func (s *stream) do(work ...operation) error {
	s.mu.Lock()
	if s.record != nil {
		defer s.mu.Unlock()
		s.record.nodes = append(s.record.nodes, work...)
		return nil
	}
	s.mu.Unlock()
	s.dev.work.Lock()
	defer s.dev.work.Unlock()
	for _, w := range work {
		if err := w(s); err != nil {
			return err
		}
	}
	return nil
}

// span checks the arguments of an operation on bytes. more reports whether the
// size is not 0.
func (s *stream) span(op string, bytes int64, places ...driver.DevicePtr) (more bool, err error) {
	if err := s.open(op); err != nil {
		return false, err
	}
	if bytes < 0 {
		return false, invalid(op, "the size is %d, must not be negative", bytes)
	}
	for _, p := range places {
		if p == 0 && bytes > 0 {
			return false, invalid(op, "the device address is 0, must be one of device memory")
		}
	}
	return bytes > 0, nil
}

// notCapturing returns an error if the stream is being captured. It guards operations whose
// host memory or new addresses each replay of a graph would use.
func (s *stream) notCapturing(op string) error {
	if s.capturing() {
		return invalid(op, "the stream is being captured: do this before BeginCapture or after EndCapture")
	}
	return nil
}

func (s *stream) CopyToDevice(dst driver.DevicePtr, src []byte) error {
	if more, err := s.span("CopyToDevice", int64(len(src)), dst); !more || err != nil {
		return err
	}
	if err := s.notCapturing("CopyToDevice"); err != nil {
		return err
	}
	return s.do(alone(func() error { return wrongAddress("CopyToDevice", s.dev.mem.Load().Write(uint64(dst), src)) }))
}

func (s *stream) CopyToHost(dst []byte, src driver.DevicePtr) error {
	if more, err := s.span("CopyToHost", int64(len(dst)), src); !more || err != nil {
		return err
	}
	if err := s.notCapturing("CopyToHost"); err != nil {
		return err
	}
	return s.do(alone(func() error { return wrongAddress("CopyToHost", s.dev.mem.Load().Read(dst, uint64(src))) }))
}

func (s *stream) Copy(dst, src driver.DevicePtr, bytes int64) error {
	if more, err := s.span("Copy", bytes, dst, src); !more || err != nil {
		return err
	}
	return s.do(alone(func() error { return wrongAddress("Copy", s.dev.mem.Load().Copy(uint64(dst), uint64(src), bytes)) }))
}

func (s *stream) Fill32(dst driver.DevicePtr, value uint32, count int64) error {
	if more, err := s.span("Fill32", count, dst); !more || err != nil {
		return err
	}
	if dst%4 != 0 {
		return invalid("Fill32", "the device address is %#x, must be a multiple of 4", uint64(dst))
	}
	return s.do(alone(func() error { return wrongAddress("Fill32", s.dev.mem.Load().Fill32(uint64(dst), value, count)) }))
}

func (s *stream) AllocAsync(bytes int64) (driver.DevicePtr, error) {
	if err := s.open("AllocAsync"); err != nil {
		return 0, err
	}
	if err := s.notCapturing("AllocAsync"); err != nil {
		return 0, err
	}
	return s.dev.alloc("AllocAsync", bytes)
}

func (s *stream) FreeAsync(p driver.DevicePtr) error {
	if err := s.open("FreeAsync"); err != nil || p == 0 {
		return err
	}
	if err := s.notCapturing("FreeAsync"); err != nil {
		return err
	}
	return s.dev.free("FreeAsync", p)
}

// Wait implements driver.Stream. It does nothing more than check its argument, because the work
// before the event has already run.
func (s *stream) Wait(e driver.Event) error {
	if err := s.open("Wait"); err != nil {
		return err
	}
	if _, ok := e.(*event); !ok {
		return invalid("Wait", "the event is not of an emulated device")
	}
	return nil
}

// Synchronize implements driver.Stream.
func (s *stream) Synchronize(ctx context.Context) error {
	if err := s.open("Synchronize"); err != nil {
		return err
	}
	if err := s.notCapturing("Synchronize"); err != nil {
		return err
	}
	return devkit.ContextErr("Synchronize", ctx)
}

func (s *stream) Handle() uintptr { return 0 }

func (s *stream) Close() error {
	s.closed.Store(true)
	return nil
}

// event implements driver.Event. It uses the host's clock.
type event struct {
	dev  *device
	mu   sync.Mutex
	time time.Time // zero before Record
}

// NewEvent implements driver.Device.
func (d *device) NewEvent() (driver.Event, error) {
	if err := d.ready("NewEvent"); err != nil {
		return nil, err
	}
	return &event{dev: d}, nil
}

func (d *device) ownEvent(op string, e driver.Event) (*event, error) {
	ev, ok := e.(*event)
	if !ok || ev == nil || ev.dev != d {
		return nil, invalid(op, "the event is not of this device")
	}
	return ev, nil
}

// Record implements driver.Event. During a capture it records the present time.
func (e *event) Record(s driver.Stream) error {
	st, ok := s.(*stream)
	if !ok || st == nil || st.dev != e.dev {
		return invalid("Record", "the stream is not of the event's device")
	}
	if err := st.open("Record"); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.time = time.Now()
	return nil
}

func (e *event) Done() (bool, error) {
	if err := e.dev.ready("Done"); err != nil {
		return false, err
	}
	return true, nil
}

func (e *event) Synchronize(ctx context.Context) error {
	if err := e.dev.ready("Synchronize"); err != nil {
		return err
	}
	return devkit.ContextErr("Synchronize", ctx)
}

func (e *event) recorded() time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.time
}

func (e *event) Since(start driver.Event) (time.Duration, error) {
	if err := e.dev.ready("Since"); err != nil {
		return 0, err
	}
	from, err := e.dev.ownEvent("Since", start)
	if err != nil {
		return 0, err
	}
	a, b := from.recorded(), e.recorded()
	if a.IsZero() || b.IsZero() {
		return 0, invalid("Since", "an event was never recorded")
	}
	return b.Sub(a), nil
}

func (e *event) Close() error { return nil }
