package cuda

import (
	"context"
	"runtime"
	"unsafe"

	"sonicmoe/driver"
)

// streamNonBlocking is CU_STREAM_NON_BLOCKING: the stream does not wait for the
// legacy default stream.
const streamNonBlocking = 1

// stream is a CUstream.
type stream struct {
	handle
	dev   *device
	owned bool
}

// NewStream implements driver.Device.
func (d *device) NewStream() (driver.Stream, error) {
	s := &stream{dev: d, owned: true}
	if err := d.do(symStreamCreate, uintptr(unsafe.Pointer(&s.raw)), streamNonBlocking); err != nil {
		return nil, err
	}
	return s, nil
}

// WrapStream implements driver.Device. 0 is the legacy default stream.
func (d *device) WrapStream(raw uintptr) driver.Stream {
	return &stream{dev: d, handle: handle{raw: raw}}
}

// span checks the arguments of an operation on bytes at the addresses places. more reports
// whether the size is not 0. If more is true, the stream is in use until the caller calls
// leave.
func (s *stream) span(op string, bytes int64, places ...driver.DevicePtr) (more bool, err error) {
	if err := s.use(op, "stream"); err != nil {
		return false, err
	}
	defer func() {
		if !more {
			s.leave()
		}
	}()
	if bytes < 0 {
		return false, invalid(op, "the size is %d, must not be negative", bytes)
	}
	if bytes == 0 {
		return false, s.dev.ready(symMemcpyDtoDAsync)
	}
	for _, p := range places {
		if p == 0 {
			return false, invalid(op, "the device address is 0, must be one of device memory")
		}
	}
	return true, nil
}

// Capturing reports whether a graph captures the stream's work. For the legacy default stream,
// it is an error while a graph captures a stream that synchronizes with it.
func (s *stream) Capturing() (bool, error) {
	if err := s.use("Capturing", "stream"); err != nil {
		return false, err
	}
	defer s.leave()
	return s.captured()
}

func (s *stream) captured() (bool, error) {
	var status int32
	err := s.dev.do(symStreamIsCapturing, s.raw, uintptr(unsafe.Pointer(&status)))
	return status != 0, err
}

// notCapturing returns an error if the stream is being captured. Operations on host memory are
// refused then, because each replay of the graph would access that memory, which Go may use for
// something else.
func (s *stream) notCapturing(op string) error {
	captured, err := s.captured()
	if err != nil {
		return err
	}
	if captured {
		return invalid(op, "the stream is being captured: copy between host and device before BeginCapture or after EndCapture")
	}
	return nil
}

// CopyToDevice implements driver.Stream. The driver copies src before the call returns. Only
// memory registered with the driver is read later, and must not change until the stream has
// been synchronized.
func (s *stream) CopyToDevice(dst driver.DevicePtr, src []byte) error {
	more, err := s.span("CopyToDevice", int64(len(src)), dst)
	if !more {
		return err
	}
	defer s.leave()
	if err := s.notCapturing("CopyToDevice"); err != nil {
		return err
	}
	err = s.dev.do(symMemcpyHtoDAsync, uintptr(dst), uintptr(unsafe.Pointer(&src[0])), uintptr(len(src)), s.raw)
	return withText(err, "%d bytes to %#x", len(src), uint64(dst))
}

// CopyToHost implements driver.Stream.
func (s *stream) CopyToHost(dst []byte, src driver.DevicePtr) error {
	more, err := s.span("CopyToHost", int64(len(dst)), src)
	if !more {
		return err
	}
	defer s.leave()
	if err := s.notCapturing("CopyToHost"); err != nil {
		return err
	}
	err = s.dev.do(symMemcpyDtoHAsync, uintptr(unsafe.Pointer(&dst[0])), uintptr(src), uintptr(len(dst)), s.raw)
	if err == nil {
		err = s.dev.doNumbers(symStreamSynchronize, s.raw)
	}
	runtime.KeepAlive(dst)
	return withText(err, "%d bytes from %#x", len(dst), uint64(src))
}

// Copy implements driver.Stream.
func (s *stream) Copy(dst, src driver.DevicePtr, bytes int64) error {
	more, err := s.span("Copy", bytes, dst, src)
	if !more {
		return err
	}
	defer s.leave()
	err = s.dev.doNumbers(symMemcpyDtoDAsync, uintptr(dst), uintptr(src), uintptr(bytes), s.raw)
	return withText(err, "%d bytes from %#x to %#x", bytes, uint64(src), uint64(dst))
}

// Fill32 implements driver.Stream.
func (s *stream) Fill32(dst driver.DevicePtr, value uint32, count int64) error {
	more, err := s.span("Fill32", count, dst)
	if !more {
		return err
	}
	defer s.leave()
	if dst%4 != 0 {
		return invalid("Fill32", "the device address is %#x, must be a multiple of 4", uint64(dst))
	}
	err = s.dev.doNumbers(symMemsetD32Async, uintptr(dst), uintptr(value), uintptr(count), s.raw)
	return withText(err, "%d words at %#x", count, uint64(dst))
}

// AllocAsync implements driver.Stream.
func (s *stream) AllocAsync(bytes int64) (driver.DevicePtr, error) {
	if err := s.use("AllocAsync", "stream"); err != nil {
		return 0, err
	}
	defer s.leave()
	if bytes <= 0 {
		return 0, invalid("AllocAsync", "bytes is %d, must be at least 1", bytes)
	}
	var p uint64
	if err := s.dev.do(symMemAllocAsync, uintptr(unsafe.Pointer(&p)), uintptr(bytes), s.raw); err != nil {
		return 0, withText(err, "%d bytes", bytes)
	}
	return driver.DevicePtr(p), nil
}

// FreeAsync implements driver.Stream. Freeing 0 does nothing.
func (s *stream) FreeAsync(p driver.DevicePtr) error {
	if err := s.use("FreeAsync", "stream"); err != nil {
		return err
	}
	defer s.leave()
	if p == 0 {
		return nil
	}
	return withText(s.dev.doNumbers(symMemFreeAsync, uintptr(p), s.raw), "address %#x", uint64(p))
}

// Wait implements driver.Stream.
func (s *stream) Wait(e driver.Event) error {
	if err := s.use("Wait", "stream"); err != nil {
		return err
	}
	defer s.leave()
	ev, ok := e.(*event)
	if !ok || ev.dev.lib != s.dev.lib {
		return invalid("Wait", "the event is not of a device of this driver library")
	}
	if err := ev.use("Wait", "event"); err != nil {
		return err
	}
	defer ev.leave()
	return s.dev.doNumbers(symStreamWaitEvent, s.raw, ev.raw, 0)
}

// Synchronize implements driver.Stream.
func (s *stream) Synchronize(ctx context.Context) error {
	if err := s.use("Synchronize", "stream"); err != nil {
		return err
	}
	defer s.leave()
	return s.dev.wait(ctx, &s.handle, symStreamQuery, symStreamSynchronize)
}

// Handle implements driver.Stream.
func (s *stream) Handle() uintptr { return s.raw }

// Close implements driver.Stream. Work already queued in the stream completes.
func (s *stream) Close() error {
	return s.close(func() error {
		if !s.owned {
			return nil
		}
		return s.dev.doNumbers(symStreamDestroy, s.raw)
	})
}
