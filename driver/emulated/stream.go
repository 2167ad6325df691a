package emulated

import (
	"context"
	"errors"
	"sync"

	"sonicmoe/driver"
	"sonicmoe/ptx/emu"
)

// stream implements driver.Stream. While capture is set, work is recorded.
type stream struct {
	dev *device

	mu      sync.Mutex
	closed  bool
	capture *graph
}

func (d *device) NewStream() (driver.Stream, error) {
	if err := d.ready("new stream"); err != nil {
		return nil, err
	}
	return &stream{dev: d}, nil
}

// WrapStream gives a stream of its own: there are no foreign ones here.
func (d *device) WrapStream(uintptr) driver.Stream { return &stream{dev: d} }

// open reports why the stream takes no work.
func (s *stream) open(op string) error {
	if err := s.dev.ready(op); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return invalid(op, "the stream is closed")
	}
	return nil
}

// do runs work now, or records it.
func (s *stream) do(op string, work func() error) error {
	if err := s.open(op); err != nil {
		return err
	}
	s.mu.Lock()
	if s.capture != nil {
		s.capture.work = append(s.capture.work, work)
		s.mu.Unlock()
		return nil
	}
	s.mu.Unlock()
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	return work()
}

// capturing reports whether work is being recorded.
func (s *stream) capturing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.capture != nil
}

func (s *stream) Launch(f driver.Function, l *driver.Launch, params []byte) error {
	if err := s.open("launch"); err != nil {
		return err
	}
	fn, err := s.dev.own("launch", f, l)
	if err != nil {
		return err
	}
	if len(params) != fn.kernel.ParamBytes() {
		return invalid("launch", "kernel %q takes %d bytes of parameters, not %d", fn.Name(), fn.kernel.ParamBytes(), len(params))
	}
	e := emu.Launch{
		Grid: [3]int{l.Grid.X, l.Grid.Y, l.Grid.Z}, Block: [3]int{l.Block.X, l.Block.Y, l.Block.Z},
		SharedBytes: l.SharedBytes, Params: append([]byte{}, params...),
		Timing: s.dev.o.Timing, Seed: s.dev.o.Seed, Parallel: s.dev.o.Parallel, SMs: s.dev.o.Target.SMs,
	}
	if l.Cluster != (driver.Dim3{}) {
		e.Cluster = l.Cluster.Count()
	}
	return s.do("launch", func() error { return s.dev.run(fn, e) })
}

// run runs a kernel; a fault breaks the device.
func (d *device) run(fn *function, l emu.Launch) error {
	if err := d.ready("launch"); err != nil {
		return err
	}
	err := fn.kernel.Launch(context.Background(), d.mem, l)
	var fault *emu.Fault
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &fault):
		return &driver.Error{Op: "launch", Kind: driver.ErrInvalid, Kernel: fn.Name(), Cause: err}
	}
	e := &driver.Error{Op: "launch", Name: fault.Kind.String(), Kind: driver.ErrBroken, Kernel: fn.Name(), Line: fault.Line, Cause: fault}
	d.broken.CompareAndSwap(nil, e)
	return e
}

func (s *stream) hostCopy(op string, size int, work func() error) error {
	if s.capturing() {
		return invalid(op, "copies between host and device can't be captured")
	}
	if size == 0 {
		return s.open(op)
	}
	return s.do(op, func() error { return memory(op, work()) })
}

func (s *stream) CopyToDevice(dst driver.DevicePtr, src []byte) error {
	return s.hostCopy("copy to device", len(src), func() error { return s.dev.mem.Write(uint64(dst), src) })
}

func (s *stream) CopyToHost(dst []byte, src driver.DevicePtr) error {
	return s.hostCopy("copy to host", len(dst), func() error { return s.dev.mem.Read(dst, uint64(src)) })
}

func (s *stream) Copy(dst, src driver.DevicePtr, n int64) error {
	if n < 0 {
		return invalid("copy", "%d bytes, must not be negative", n)
	}
	if n == 0 {
		return s.open("copy")
	}
	return s.do("copy", func() error { return memory("copy", s.dev.mem.Copy(uint64(dst), uint64(src), n)) })
}

func (s *stream) Fill32(dst driver.DevicePtr, value uint32, count int64) error {
	if count < 0 || dst%4 != 0 {
		return invalid("fill", "%d words at %#x, must be a count and a multiple of 4", count, uint64(dst))
	}
	if count == 0 {
		return s.open("fill")
	}
	return s.do("fill", func() error { return memory("fill", s.dev.mem.Fill32(uint64(dst), value, count)) })
}

func (s *stream) AllocAsync(bytes int64) (driver.DevicePtr, error) {
	if err := s.open("alloc"); err != nil {
		return 0, err
	}
	if s.capturing() {
		return 0, invalid("alloc", "memory can't be allocated in a capture here")
	}
	return s.dev.Alloc(bytes)
}

func (s *stream) FreeAsync(p driver.DevicePtr) error {
	if s.capturing() {
		return invalid("free", "memory can't be freed in a capture here")
	}
	return s.do("free", func() error { return s.dev.Free(p) })
}

// Wait has nothing to wait for: all work queued before is done.
func (s *stream) Wait(e driver.Event) error {
	if ev, ok := e.(*event); !ok || ev.dev != s.dev {
		return invalid("wait", "the event is not of this device")
	}
	return s.open("wait")
}

func (s *stream) Synchronize(ctx context.Context) error {
	if err := s.open("synchronize"); err != nil {
		return err
	}
	if s.capturing() {
		return invalid("synchronize", "the stream is being captured")
	}
	return ctx.Err()
}

func (s *stream) BeginCapture() error {
	if err := s.open("begin capture"); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.capture != nil {
		return invalid("begin capture", "the stream is being captured already")
	}
	s.capture = &graph{dev: s.dev}
	return nil
}

func (s *stream) EndCapture() (driver.Graph, error) {
	if err := s.open("end capture"); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.capture == nil {
		return nil, invalid("end capture", "the stream is not being captured")
	}
	g := s.capture
	s.capture = nil
	return g, nil
}

func (s *stream) Handle() uintptr { return 0 }

func (s *stream) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return nil
}
