//go:build cgo

package main

// #define SONICMOE_TYPES_ONLY
// #include "sonicmoe.h"
import "C"

import (
	"fmt"
	"slices"
	"sync"

	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/moe"
)

// handles has the open devices, layers and ranks. A number is never used twice, so using a closed handle
// is always an error.
var handles struct {
	sync.RWMutex
	last C.sm_handle
	of   map[C.sm_handle]any
}

// device is an open device.
type device struct{ driver.Device }

// layer is a layer with its idle calls, the most recently used one last. Layers of a model with the
// same configuration share one layer. A call keeps the tensor maps of the weights of its last pass,
// so each set of weights gets its own call, up to mostCalls calls.
type layer struct {
	*moe.Layer
	dev    driver.Device
	handle C.sm_handle
	lock   sync.Mutex
	calls  int // number of calls that exist
	idle   []idleCall
	closed bool
}

// idleCall is a call and the address of W1 in its last pass.
type idleCall struct {
	w1 uint64
	*call
}

// mostCalls is the largest number of calls of a layer. All known models have fewer layers.
const mostCalls = 256

// call is a call with its buffers. The buffers stay between passes, so that a pass does not
// allocate host memory.
type call struct {
	*moe.Call
	layer    uint64 // the handle of the call's layer
	forward  moe.ForwardArgs
	backward moe.BackwardArgs

	stream driver.Stream
	raw    C.uint64_t // the handle of stream

	shapes    moe.Shapes
	gradients spec.GradientShapes
	tokens    C.int64_t // the number of tokens for which shapes and gradients are set

	replays [mostReplays]replay // the most recently used one first
}

// on returns the stream of a pass.
func (c *call) on(dev driver.Device, raw C.uint64_t) driver.Stream {
	if c.stream == nil || c.raw != raw {
		c.stream, c.raw = dev.WrapStream(uintptr(raw)), raw
	}
	return c.stream
}

// shape sets the shapes of the layer l for a number of tokens.
func (c *call) shape(l *layer, tokens C.int64_t) {
	if c.shapes.X.IsZero() || c.tokens != tokens {
		c.shapes, c.gradients, c.tokens = l.Shapes(int(tokens)), l.Config().Gradients(int(tokens), l.Config().Type), tokens
	}
}

// loads returns the shape of the experts' loads.
func (l *layer) loads() moe.Shape { return moe.TensorAt(0, moe.I32, l.Config().NumExperts).Shape }

// closeReplays frees the graphs of all layers of the device.
func (d *device) closeReplays() {
	handles.RLock()
	defer handles.RUnlock()
	for _, v := range handles.of {
		if l, ok := v.(*layer); ok && l.dev == d.Device {
			l.closeReplays()
		}
	}
}

func (*device) String() string { return "device" }
func (*layer) String() string  { return "layer" }

// keep returns a new handle for v.
func keep(v fmt.Stringer) C.sm_handle {
	handles.Lock()
	defer handles.Unlock()
	if handles.of == nil {
		handles.of = map[C.sm_handle]any{}
	}
	handles.last++
	handles.of[handles.last] = v
	return handles.last
}

// find returns the device, layer or rank of a handle.
func find[T fmt.Stringer](h C.sm_handle) (T, error) {
	handles.RLock()
	v, ok := handles.of[h]
	last := handles.last
	handles.RUnlock()
	found, right := v.(T)
	if right {
		return found, nil
	}
	got := fmt.Sprintf("handle %d, which was never given", h)
	switch {
	case ok:
		got = fmt.Sprintf("handle %d of a %s", h, v)
	case h == 0:
		got = "0"
	case h <= last:
		got = fmt.Sprintf("handle %d, which is closed", h)
	}
	return found, &moe.ArgError{Field: found.String(), Got: got, Want: "the handle of an open " + found.String()}
}

// using calls do with the device, layer or rank of a handle.
func using[T fmt.Stringer](h C.sm_handle, do func(T) error) C.sm_status {
	return guarded(func() error {
		v, err := find[T](h)
		if err != nil {
			return err
		}
		return do(v)
	})
}

// borrow returns a call for exclusive use until giveBack. It returns the call of the same weights,
// else a new call, else the least recently used call. A call whose pass has panicked is not given
// back.
func (l *layer) borrow(w1 uint64) *call {
	l.lock.Lock()
	defer l.lock.Unlock()
	// The layers of a model run one after another, so the wanted call is among the least recently
	// used ones, at the start of the list.
	i := slices.IndexFunc(l.idle, func(c idleCall) bool { return c.w1 == w1 })
	if i < 0 && (l.calls < mostCalls || len(l.idle) == 0) {
		l.calls++
		return &call{Call: l.NewCall(), layer: uint64(l.handle)}
	}
	c := l.idle[max(i, 0)].call
	l.idle = slices.Delete(l.idle, max(i, 0), max(i, 0)+1)
	return c
}

// giveBack makes a borrowed call idle.
func (l *layer) giveBack(w1 uint64, c *call) {
	l.lock.Lock()
	defer l.lock.Unlock()
	l.idle = append(l.idle, idleCall{w1, c})
	if l.closed {
		c.closeReplays()
	}
}

// closeReplays frees the graphs of all calls. A call in use frees its graphs when it becomes idle.
func (l *layer) closeReplays() {
	l.lock.Lock()
	defer l.lock.Unlock()
	l.closed = true
	for _, c := range l.idle {
		c.closeReplays()
	}
}

// closeReplays frees the graphs of a call.
func (c *call) closeReplays() {
	for i := range c.replays {
		c.replays[i].close()
	}
}

//export sm_go_close
func sm_go_close(any C.sm_handle) C.sm_status {
	return guarded(func() error {
		handles.Lock()
		v, ok := handles.of[any]
		delete(handles.of, any)
		handles.Unlock()
		if !ok {
			return &moe.ArgError{Field: "handle", Got: fmt.Sprint(any), Want: "the handle of an open device, layer or rank"}
		}
		switch v := v.(type) {
		case *device:
			v.closeReplays()
			jit.Forget(v.Device)
			return v.Close()
		case *layer:
			v.closeReplays()
		case *rank:
			return v.Close()
		}
		return nil
	})
}
