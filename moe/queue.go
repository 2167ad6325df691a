package moe

import (
	"sonicmoe/driver"
	"sonicmoe/moe/internal/registry"
)

// queue launches kernels of a call on a stream, in order. It keeps the first
// error and launches nothing after it.
type queue struct {
	*Call
	stream driver.Stream
	err    error
}

func (c *Call) queue(s driver.Stream) *queue { return &queue{Call: c, stream: s} }

// launch queues one kernel of the layer, after a call of the observer.
func launch[A any](q *queue, k *registry.Kernel[A], args A) {
	if q.err != nil {
		return
	}
	if q.observer != nil {
		if q.err = q.observer(q.layer.of.KernelName(k), q.stream); q.err != nil {
			return
		}
	}
	q.err = registry.Launch(q.launchers, k, q.stream, args)
}

// fill sets 32-bit words of device memory.
func (q *queue) fill(p driver.DevicePtr, value uint32, words int64) {
	if q.err == nil {
		q.err = q.stream.Fill32(p, value, words)
	}
}
