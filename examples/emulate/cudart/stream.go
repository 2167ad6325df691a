//go:build cgo && linux

package main

// #include "cuda.h"
// static void call_host(uintptr_t f, uintptr_t data) { ((host_function)f)((void *)data); }
// static void call_back(uintptr_t f, uintptr_t stream, uintptr_t data) { ((stream_callback)f)(stream, 0, (void *)data); }
import "C"

import (
	"sync"

	"sonicmoe/ptx/emu"
)

// defaultStreams are the handles of the streams that exist without a call: 0, cudaStreamLegacy and
// cudaStreamPerThread.
var defaultStreams = []uintptr{0, 1, 2}

// stream runs its work when it is queued, or records it in a graph.
type stream struct {
	flags    uint32
	priority int32

	mu       sync.Mutex
	captured *graph
	last     *node // the latest node that the capture has recorded here

	launches emu.Stream // earlier launches that the next launch may overlap
}

// capture returns the graph that records the stream's work, or nil.
func (s *stream) capture() *graph {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.captured
}

// do runs work, or adds it to the capture. It returns the node if the work was recorded.
func (s *stream) do(n *node) (recorded *node, err error) {
	s.mu.Lock()
	if g := s.captured; g != nil {
		defer s.mu.Unlock()
		if s.last != nil {
			n.after = append(n.after, s.last)
		}
		g.add(n)
		s.last = n
		return n, nil
	}
	s.mu.Unlock()
	return nil, dev().perform(n, s)
}

// perform runs a node's work.
func (d *device) perform(n *node, s *stream) error {
	if err := d.ready(); err != nil {
		return err
	}
	switch {
	case n.launch != nil:
		d.work.Lock()
		defer d.work.Unlock()
		return n.launch(s)
	case n.call != nil: // the program's function may call the library
		n.call()
	case n.run != nil:
		d.work.Lock()
		defer d.work.Unlock()
		s.launches.Wait()
		return n.run()
	}
	return nil
}

func newStream(p *uintptr, flags uint32, priority int32) int32 {
	d := dev()
	*p = add(d, d.streams, &stream{flags: flags, priority: priority})
	return 0
}

//export cudaStreamCreate
func cudaStreamCreate(p *uintptr) int32 { return newStream(p, 0, 0) }

//export cudaStreamCreateWithFlags
func cudaStreamCreateWithFlags(p *uintptr, flags uint32) int32 { return newStream(p, flags, 0) }

//export cudaStreamCreateWithPriority
func cudaStreamCreateWithPriority(p *uintptr, flags uint32, priority int32) int32 {
	return newStream(p, flags, min(max(priority, highestPriority), 0))
}

// highestPriority is the priority that the device prefers most.
const highestPriority = -5

//export cudaDeviceGetStreamPriorityRange
func cudaDeviceGetStreamPriorityRange(least, greatest *int32) int32 {
	if least != nil {
		*least = 0
	}
	if greatest != nil {
		*greatest = highestPriority
	}
	return 0
}

//export cudaStreamGetPriority
func cudaStreamGetPriority(stream uintptr, priority *int32) int32 {
	s, err := look(dev(), dev().streams, stream, "stream")
	if err == nil {
		*priority = s.priority
	}
	return result("cudaStreamGetPriority", err)
}

//export cudaStreamGetFlags
func cudaStreamGetFlags(stream uintptr, flags *uint32) int32 {
	s, err := look(dev(), dev().streams, stream, "stream")
	if err == nil {
		*flags = s.flags
	}
	return result("cudaStreamGetFlags", err)
}

//export cudaStreamDestroy
func cudaStreamDestroy(stream uintptr) int32 {
	return result("cudaStreamDestroy", drop(dev(), dev().streams, stream, "stream"))
}

// finish waits for a stream. All work has run already. The wait only tells the emulator that later
// launches come after the earlier ones.
func (d *device) finish(stream uintptr) error {
	if err := d.ready(); err != nil {
		return err
	}
	s, err := look(d, d.streams, stream, "stream")
	if err != nil {
		return err
	}
	if s.capture() != nil {
		return failed(captureUnsupported, "the stream is being captured")
	}
	d.work.Lock()
	defer d.work.Unlock()
	s.launches.Wait()
	return nil
}

//export cudaStreamSynchronize
func cudaStreamSynchronize(stream uintptr) int32 {
	return result("cudaStreamSynchronize", dev().finish(stream))
}

//export cudaStreamQuery
func cudaStreamQuery(stream uintptr) int32 {
	_, err := look(dev(), dev().streams, stream, "stream")
	if err == nil {
		err = dev().ready()
	}
	return result("cudaStreamQuery", err)
}

//export cudaDeviceSynchronize
func cudaDeviceSynchronize() int32 {
	return result("cudaDeviceSynchronize", dev().finishAll())
}

func (d *device) finishAll() error {
	if err := d.ready(); err != nil {
		return err
	}
	d.work.Lock() // every function that takes both locks takes d.work before d.mu
	defer d.work.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range d.streams {
		s.launches.Wait()
	}
	return nil
}

//export cudaStreamAddCallback
func cudaStreamAddCallback(stream, function, data uintptr, _ uint32) int32 {
	return result("cudaStreamAddCallback", dev().queue(stream, &node{kind: nodeHost, call: func() {
		C.call_back(C.uintptr_t(function), C.uintptr_t(stream), C.uintptr_t(data))
	}}))
}

// hostNode returns a node that calls a function of the program.
func hostNode(function, data uintptr) *node {
	return &node{kind: nodeHost, call: func() { C.call_host(C.uintptr_t(function), C.uintptr_t(data)) }}
}

//export cudaLaunchHostFunc
func cudaLaunchHostFunc(stream, function, data uintptr) int32 {
	return result("cudaLaunchHostFunc", dev().queue(stream, hostNode(function, data)))
}

//export cudaStreamGetId
func cudaStreamGetId(stream uintptr, id *uint64) int32 {
	*id = uint64(stream)
	return 0
}

//export cudaStreamGetDevice
func cudaStreamGetDevice(_ uintptr, device *int32) int32 {
	*device = 0
	return 0
}

//export cudaStreamSetAttribute
func cudaStreamSetAttribute(ignored1 uintptr, ignored2 int32, ignored3 uintptr) int32 { return 0 }
