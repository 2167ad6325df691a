//go:build cgo

package main

// #define SONICMOE_TYPES_ONLY
// #include "sonicmoe.h"
import "C"

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"unsafe"

	"sonicmoe/cache"
	"sonicmoe/driver"
	"sonicmoe/driver/open"
	"sonicmoe/moe"
	"sonicmoe/moe/checkpoint"
)

//export sm_go_open
func sm_go_open(name *C.char, out *C.sm_handle) C.sm_status {
	return guarded(func() error {
		if name == nil || out == nil {
			return &moe.ArgError{Field: "name or device", Got: "NULL", Want: "an address"}
		}
		dev, err := open.Device(context.Background(), C.GoString(name))
		if err != nil {
			return err
		}
		*out = keep(&device{dev})
		return nil
	})
}

//export sm_go_layer_new
func sm_go_layer_new(dev C.sm_handle, config *C.sm_config, out *C.sm_handle) C.sm_status {
	return using(dev, func(d *device) error {
		if out == nil {
			return &moe.ArgError{Field: "layer", Got: "NULL", Want: "an address"}
		}
		c, opts, err := configOf(config)
		if err != nil {
			return err
		}
		l, err := moe.New(context.Background(), d.Device, c, append(opts, withBundles())...)
		if err != nil {
			return err
		}
		made := &layer{Layer: l, dev: d.Device}
		made.handle = keep(made)
		*out = made.handle
		return nil
	})
}

//export sm_go_config_of_model
func sm_go_config_of_model(json *C.char, out *C.sm_config) C.sm_status {
	return guarded(func() error {
		if json == nil {
			return &moe.ArgError{Field: "json", Got: "NULL", Want: "a model's config.json"}
		}
		m, err := checkpoint.Read([]byte(C.GoString(json)))
		if err != nil {
			return fmt.Errorf("%w: %w", driver.ErrInvalid, err)
		}
		if len(m.Outside) > 0 {
			return refuseOutside(m)
		}
		return write("config", out, structOf(m.Config))
	})
}

// refuseOutside returns the error for a model whose block is more than a layer.
func refuseOutside(m checkpoint.Model) error {
	return &moe.ArgError{Field: cmp.Or(m.Type, "the file"), Got: "a block with parts that no Config has: " + strings.Join(m.Outside, "; "), Want: "a block without them"}
}

//export sm_go_sizes
func sm_go_sizes(of C.sm_handle, tokens, entries C.int64_t, out *C.sm_sizes_of) C.sm_status {
	return using(of, func(l *layer) error {
		s, err := l.Sizes(int(tokens))
		if entries != 0 {
			s, err = l.ListSizes(int(tokens), int(entries))
		}
		if err != nil {
			return err
		}
		return write("sizes", out, C.sm_sizes_of{
			workspace: C.int64_t(s.Workspace), backward_workspace: C.int64_t(s.BackwardWorkspace),
			h: C.int64_t(s.H), o: C.int64_t(s.O), scores: C.int64_t(s.Scores), expert_ids: C.int64_t(s.ExpertIDs), shared_h: C.int64_t(s.SharedH),
			rounded_rows: C.int64_t(l.RoundedRows(int(tokens))), units: C.int64_t(s.Units), lora_u: C.int64_t(s.LoraU),
		})
	})
}

//export sm_go_forward
func sm_go_forward(of C.sm_handle, pass *C.sm_forward_pass) C.sm_status {
	return forward(of, pass, forwardPass, (*moe.Call).Forward)
}

//export sm_go_route
func sm_go_route(of C.sm_handle, pass *C.sm_forward_pass) C.sm_status {
	return forward(of, pass, routePass, (*moe.Call).Route)
}

//export sm_go_experts
func sm_go_experts(of C.sm_handle, pass *C.sm_forward_pass) C.sm_status {
	return forward(of, pass, expertsPass, (*moe.Call).ForwardExperts)
}

// forward queues one of the forward passes.
func forward(of C.sm_handle, pass *C.sm_forward_pass, kind passKind, which func(*moe.Call, driver.Stream, moe.ForwardArgs) error) C.sm_status {
	return using(of, func(l *layer) error {
		p, err := read("pass", pass)
		if err != nil {
			return err
		}
		c := l.borrow(uint64(p.w1))
		s := c.on(l.dev, p.stream)
		p.stream = 0
		err = c.launch(l.dev, s, kind, bytesIn(&p), func(s driver.Stream) error {
			c.setForward(l, &p)
			return which(c.Call, s, c.forward)
		})
		l.giveBack(uint64(p.w1), c)
		return err
	})
}

//export sm_go_arrange
func sm_go_arrange(of C.sm_handle, pass *C.sm_forward_pass) C.sm_status {
	return forward(of, pass, neverReplayed, func(c *moe.Call, s driver.Stream, f moe.ForwardArgs) error { return c.Arrange(s, f.Weights, f.Units) })
}

//export sm_go_backward
func sm_go_backward(of C.sm_handle, pass *C.sm_backward_pass) C.sm_status {
	return backward(of, pass, backwardPass, (*moe.Call).Backward)
}

//export sm_go_experts_backward
func sm_go_experts_backward(of C.sm_handle, pass *C.sm_backward_pass) C.sm_status {
	return backward(of, pass, expertsBackwardPass, (*moe.Call).BackwardExperts)
}

// backward queues one of the backward passes.
func backward(of C.sm_handle, pass *C.sm_backward_pass, kind passKind, which func(*moe.Call, driver.Stream, moe.BackwardArgs) error) C.sm_status {
	return using(of, func(l *layer) error {
		p, err := read("pass", pass)
		if err != nil {
			return err
		}
		c := l.borrow(uint64(p.w1))
		s := c.on(l.dev, p.stream)
		p.stream = 0
		err = c.launch(l.dev, s, kind, bytesIn(&p), func(s driver.Stream) error {
			if err := c.setBackward(l, &p); err != nil {
				return err
			}
			return which(c.Call, s, c.backward)
		})
		l.giveBack(uint64(p.w1), c)
		return err
	})
}

//export sm_go_loads
func sm_go_loads(of C.sm_handle, stream C.uint64_t, tokens C.int64_t, ids, loads C.uint64_t) C.sm_status {
	return using(of, func(l *layer) error {
		c := l.borrow(0)
		c.shape(l, tokens)
		err := c.Loads(c.on(l.dev, stream), tensor(ids, c.shapes.ExpertIDs), tensor(loads, l.loads()))
		l.giveBack(0, c)
		return err
	})
}

//export sm_go_update_selection_bias
func sm_go_update_selection_bias(of C.sm_handle, stream C.uint64_t, loads, bias C.uint64_t, rate C.double) C.sm_status {
	return using(of, func(l *layer) error {
		c := l.borrow(0)
		c.shape(l, 0)
		err := c.UpdateSelectionBias(c.on(l.dev, stream), tensor(loads, l.loads()), weight(bias, c.shapes.SelectionBias), float32(rate))
		l.giveBack(0, c)
		return err
	})
}

//export sm_go_warm
func sm_go_warm(chip *C.char, config *C.sm_config, directory *C.char) C.sm_status {
	return guarded(func() error {
		c, opts, err := configOf(config)
		if err != nil {
			return err
		}
		if chip == nil {
			return &moe.ArgError{Field: "chip", Got: "NULL", Want: "H200 or H100"}
		}
		target, ok := map[string]driver.Target{"H200": driver.H200(), "H100": driver.H100()}[C.GoString(chip)]
		if !ok {
			return &moe.ArgError{Field: "chip", Got: C.GoString(chip), Want: "H200 or H100"}
		}
		var o cache.Options
		if directory != nil {
			o.Dir = C.GoString(directory)
		}
		return moe.Warm(context.Background(), cache.Open(o), target, c, opts...)
	})
}

//export sm_go_alloc
func sm_go_alloc(dev C.sm_handle, bytes C.int64_t, address *C.uint64_t) C.sm_status {
	return using(dev, func(d *device) error {
		if address == nil {
			return &moe.ArgError{Field: "address", Got: "NULL", Want: "an address"}
		}
		p, err := d.Alloc(int64(bytes))
		if err != nil {
			return err
		}
		*address = C.uint64_t(p)
		return nil
	})
}

//export sm_go_free
func sm_go_free(dev C.sm_handle, address C.uint64_t) C.sm_status {
	return using(dev, func(d *device) error {
		return d.Free(driver.DevicePtr(address))
	})
}

//export sm_go_write
func sm_go_write(dev C.sm_handle, stream C.uint64_t, to C.uint64_t, from unsafe.Pointer, bytes C.int64_t) C.sm_status {
	return guarded(func() error {
		d, host, err := copied(dev, from, bytes)
		if err != nil {
			return err
		}
		return d.WrapStream(uintptr(stream)).CopyToDevice(driver.DevicePtr(to), host)
	})
}

//export sm_go_read
func sm_go_read(dev C.sm_handle, stream C.uint64_t, to unsafe.Pointer, from C.uint64_t, bytes C.int64_t) C.sm_status {
	return guarded(func() error {
		d, host, err := copied(dev, to, bytes)
		if err != nil {
			return err
		}
		return d.WrapStream(uintptr(stream)).CopyToHost(host, driver.DevicePtr(from))
	})
}

// copied checks the host memory of a copy, and returns it as bytes.
func copied(dev C.sm_handle, host unsafe.Pointer, bytes C.int64_t) (*device, []byte, error) {
	d, err := find[*device](dev)
	switch {
	case err != nil:
		return nil, nil, err
	case bytes < 0:
		return nil, nil, &moe.ArgError{Field: "bytes", Got: fmt.Sprint(bytes), Want: "0 or more"}
	case host == nil && bytes > 0:
		return nil, nil, &moe.ArgError{Field: "host memory", Got: "NULL", Want: fmt.Sprintf("the address of %d bytes", bytes)}
	}
	return d, unsafe.Slice((*byte)(host), bytes), nil
}
