//go:build cgo

package main

// #include "graphs.h"
import "C"

import (
	"bytes"
	"slices"
	"unsafe"

	"sonicmoe/driver"
)

// A program that trains or serves a model calls the same passes again and again, and PyTorch's
// allocator gives them the same addresses. The launch of a graph costs the host less than the
// launches of a pass's kernels. A call therefore captures a pass that repeats, once. From then on
// its graph is launched, on the CUDA driver by graphs.c without entering Go.

const (
	// mostReplays is the number of passes that a call remembers. It is enough for forward and
	// backward over two numbers of tokens.
	mostReplays = 4
	// sightings is the number of equal passes before a capture. A capture costs the host more than
	// a pass.
	sightings = 3
)

// passKind distinguishes passes with the same arguments.
type passKind int

const (
	neverReplayed       passKind = 0
	forwardPass         passKind = C.SM_FORWARD_PASS
	routePass           passKind = C.SM_ROUTE_PASS
	expertsPass         passKind = C.SM_EXPERTS_PASS
	backwardPass        passKind = C.SM_BACKWARD_PASS
	expertsBackwardPass passKind = C.SM_EXPERTS_BACKWARD_PASS
)

// replay is a pass with its arguments, and its graph if there is one.
type replay struct {
	kind passKind
	// pass has the bytes of the caller's struct. The stream in it is 0, because a graph runs on any
	// stream.
	pass []byte
	// seen is the number of passes without a graph, at most sightings. It is one more if the
	// capture failed.
	seen  int
	graph driver.Graph
}

// capturer is a stream that reports whether a capture of its work is in progress.
type capturer interface{ Capturing() (bool, error) }

// launch queues a pass on s. It launches the graph of the pass if the call has one, and makes the
// graph after sightings equal passes. Without a graph it calls queue. While the caller captures the
// stream, it always calls queue, so that the caller's graph gets the kernels and no graph of the
// library.
func (c *call) launch(dev driver.Device, s driver.Stream, kind passKind, pass []byte, queue func(driver.Stream) error) error {
	of, able := s.(capturer)
	if !able || kind == neverReplayed {
		return queue(s)
	}
	if capturing, err := of.Capturing(); err != nil || capturing {
		return queue(s)
	}
	r := c.remember(kind, pass)
	captured := r.graph == nil && r.seen == sightings
	if captured {
		r.graph = capture(dev, queue)
		r.seen++
	}
	if r.graph != nil {
		err := r.graph.Launch(s)
		if captured && err == nil {
			keepGraph(c.layer, kind, r.pass, r.graph)
		}
		return err
	}
	err := queue(s)
	if err == nil && r.seen < sightings {
		r.seen++
	}
	return err
}

// remember returns the replay of a pass. A new replay replaces the least recently used one.
func (c *call) remember(kind passKind, pass []byte) *replay {
	at := slices.IndexFunc(c.replays[:], func(r replay) bool { return r.kind == kind && bytes.Equal(r.pass, pass) })
	if at < 0 {
		at = mostReplays - 1
		last := &c.replays[at]
		last.close()
		*last = replay{kind: kind, pass: append(last.pass[:0], pass...)}
	}
	r := c.replays[at]
	copy(c.replays[1:at+1], c.replays[:at])
	c.replays[0] = r
	return &c.replays[0]
}

// capture returns a graph of the work that queue queues, or nil if there is none. It uses a new
// stream, because the legacy default stream cannot be captured.
func capture(dev driver.Device, queue func(driver.Stream) error) driver.Graph {
	s, err := dev.NewStream()
	if err != nil {
		return nil
	}
	defer s.Close()
	if s.BeginCapture() != nil {
		return nil
	}
	err = queue(s)
	g, ended := s.EndCapture()
	if ended != nil {
		return nil
	}
	if err != nil || g.Nodes() == 0 { // a pass without tokens has no kernel
		_ = g.Close()
		return nil
	}
	return g
}

// close frees the graph. The device first finishes the launches of the graph.
func (r *replay) close() {
	if r.graph != nil {
		dropGraph(r.graph)
		_ = r.graph.Close() // fails if the device is closed, which has freed the graph
	}
	r.graph = nil
}

// bytesIn returns the bytes of a struct of the C interface.
func bytesIn[T sized](p *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(p)), unsafe.Sizeof(*p))
}
