//go:build cgo

package main

// #define SONICMOE_TYPES_ONLY
// #include "sonicmoe.h"
import "C"

import (
	"fmt"
	"sync"

	"sonicmoe/driver"
	"sonicmoe/jit"
	"sonicmoe/moe"
	"sonicmoe/moe/spec"
)

// handles are the open devices and layers. A number is never given twice, so
// that a closed handle is an error and not another's.
var handles struct {
	sync.RWMutex
	last C.sm_handle
	of   map[C.sm_handle]any
}

// device is an open device.
type device struct{ driver.Device }

// layer is a layer with calls that no pass uses: as many as passes ever ran at
// the same time.
type layer struct {
	*moe.Layer
	dev  driver.Device
	lock sync.Mutex
	idle []*call
}

// call is a call with what it keeps from pass to pass, so that a pass takes no
// memory of the host: addresses alone, which are not looked at again.
type call struct {
	*moe.Call
	forward  moe.Forward
	backward moe.Backward

	stream driver.Stream
	raw    C.uint64_t // stream's

	shapes    moe.Shapes
	gradients spec.GradientShapes
	tokens    C.int64_t // those of shapes and gradients
}

// on is the stream of a pass.
func (c *call) on(dev driver.Device, raw C.uint64_t) driver.Stream {
	if c.stream == nil || c.raw != raw {
		c.stream, c.raw = dev.WrapStream(uintptr(raw)), raw
	}
	return c.stream
}

// shape sets the shapes of l for so many tokens.
func (c *call) shape(l *layer, tokens C.int64_t) {
	if c.shapes.X.IsZero() || c.tokens != tokens {
		c.shapes, c.gradients, c.tokens = l.Shapes(int(tokens)), l.Config().Gradients(int(tokens), l.Config().Type), tokens
	}
}

func (*device) String() string { return "device" }
func (*layer) String() string  { return "layer" }

// keep gives a handle.
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

// find gives the device or layer of a handle.
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

// borrow gives a call that is nobody else's, until it is given back: one of a
// pass that panicked never is.
func (l *layer) borrow() *call {
	l.lock.Lock()
	defer l.lock.Unlock()
	if n := len(l.idle); n > 0 {
		c := l.idle[n-1]
		l.idle = l.idle[:n-1]
		return c
	}
	return &call{Call: l.NewCall()}
}

// giveBack ends what borrow began.
func (l *layer) giveBack(c *call) {
	l.lock.Lock()
	defer l.lock.Unlock()
	l.idle = append(l.idle, c)
}

//export sm_close
func sm_close(any C.sm_handle) C.sm_status {
	return guarded(func() error {
		handles.Lock()
		v, ok := handles.of[any]
		delete(handles.of, any)
		handles.Unlock()
		if !ok {
			return &moe.ArgError{Field: "handle", Got: fmt.Sprint(any), Want: "that of an open device or layer"}
		}
		if d, ok := v.(*device); ok {
			jit.Forget(d.Device)
			return d.Close()
		}
		return nil
	})
}
