package faulty

import (
	"context"
	"sync/atomic"

	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
)

// stream implements gpu.Stream.
type stream struct {
	driver.Stream
	dev    *Device
	owned  bool
	closed atomic.Bool
}

func (s *stream) Launch(f gpu.Function, l *gpu.Launch, params []byte) error {
	if err := s.dev.enter(Launch); err != nil {
		return err
	}
	if s.dev.discard.Load() {
		return nil
	}
	return gpu.Enqueue(s.Stream, innerFunction(f), l, params)
}

func (s *stream) CopyToDevice(dst driver.DevicePtr, src []byte) error {
	return s.dev.try(CopyToDevice, func() error { return s.Stream.CopyToDevice(dst, src) })
}

func (s *stream) CopyToHost(dst []byte, src driver.DevicePtr) error {
	return s.dev.try(CopyToHost, func() error { return s.Stream.CopyToHost(dst, src) })
}

func (s *stream) Copy(dst, src driver.DevicePtr, bytes int64) error {
	return s.dev.try(Copy, func() error { return s.Stream.Copy(dst, src, bytes) })
}

func (s *stream) Fill32(dst driver.DevicePtr, value uint32, count int64) error {
	return s.dev.try(Fill32, func() error { return s.Stream.Fill32(dst, value, count) })
}

func (s *stream) AllocAsync(bytes int64) (driver.DevicePtr, error) {
	return s.dev.alloc(AllocAsync, bytes, s.Stream.AllocAsync)
}

func (s *stream) FreeAsync(p driver.DevicePtr) error {
	return s.dev.free(FreeAsync, p, s.Stream.FreeAsync)
}

func (s *stream) Wait(e driver.Event) error {
	return s.dev.try(Wait, func() error { return s.Stream.Wait(innerEvent(e)) })
}

func (s *stream) Synchronize(ctx context.Context) error {
	return s.dev.try(StreamSynchronize, func() error { return s.Stream.Synchronize(ctx) })
}

func (s *stream) BeginCapture() error {
	return s.dev.try(BeginCapture, s.Stream.BeginCapture)
}

func (s *stream) EndCapture() (driver.Graph, error) {
	return made(s.dev, EndCapture, &s.dev.graphs, s.Stream.EndCapture, func(g driver.Graph) driver.Graph { return &graph{Graph: g, dev: s.dev} })
}

func (s *stream) Close() error {
	if err := s.dev.enter(StreamClose); err != nil {
		return err
	}
	err := s.Stream.Close()
	if err == nil && s.owned && !s.closed.Swap(true) {
		s.dev.streams.Add(-1)
	}
	return err
}

// innerStream returns the stream that s wraps. If s is not a wrapper, it returns s.
func innerStream(s driver.Stream) driver.Stream {
	if w, ok := s.(*stream); ok && w != nil {
		return w.Stream
	}
	return s
}
