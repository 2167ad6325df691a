//go:build cgo && linux

package main

// #include "cuda.h"
import "C"

import (
	"sonicmoe/ptx"
	"sonicmoe/ptx/emu"
)

// defaultShared is the number of bytes of static and dynamic shared memory that a CTA may have
// without a call of cudaFuncSetAttribute.
const defaultShared = 48 << 10

// Attributes of launches.
const (
	attributeCooperative  = 2
	attributeCluster      = 4
	attributeProgrammatic = 6
)

// order is a launch that the program asks for.
type order struct {
	function    *function
	kernel      *emu.Kernel
	grid, block [3]int
	shared      int
	cluster     [3]int
	cooperative bool
	dependent   bool // programmatic dependent launch
	params      []byte
}

func dims(d C.dim3) [3]int { return [3]int{int(d.x), int(d.y), int(d.z)} }

// newOrder returns a launch whose parameters pack or unpack must still copy.
func (d *device) newOrder(function uintptr, grid, block [3]int, shared uintptr) (*order, error) {
	f, err := d.function(function)
	if err != nil {
		return nil, err
	}
	k, err := f.decoded()
	if err != nil {
		return nil, err
	}
	for i := range grid {
		if grid[i] < 1 || block[i] < 1 {
			return nil, failed(invalidConfig, "kernel %s: grid %v of blocks %v, want 1 at least in each dimension", f.name, grid, block)
		}
	}
	return &order{function: f, kernel: k, grid: grid, block: block, shared: int(shared)}, nil
}

// pack copies the parameters. The list has the address of each one.
func (o *order) pack(list *uintptr) error {
	want := o.kernel.Params()
	o.params = make([]byte, o.kernel.ParamBytes())
	if len(want) == 0 {
		return nil
	}
	if list == nil {
		return failed(invalidValue, "kernel %s: no list of parameters", o.function.name)
	}
	for i, at := range addresses(list, len(want)) {
		if at == 0 {
			return failed(invalidValue, "kernel %s: the address of parameter %d is 0", o.function.name, i)
		}
		p := want[i]
		copy(o.params[p.Offset:], hostBytes(at, p.Bytes))
	}
	return nil
}

// Names in the list "extra" of cuLaunchKernel: CU_LAUNCH_PARAM_END and so on.
const (
	extraEnd    = 0
	extraBuffer = 1
	extraSize   = 2
)

// unpack copies the parameters from the buffer that the list "extra" names.
func (o *order) unpack(extra *uintptr) error {
	var buffer, size uintptr
	for list := extra; ; {
		pair := addresses(list, 2)
		switch pair[0] {
		case extraEnd:
			o.params = make([]byte, o.kernel.ParamBytes())
			if n := copy(o.params, hostBytes(buffer, int(size))); n < len(o.params) && lastByte(o.kernel.Params()) > n {
				return failed(invalidValue, "kernel %s: %d bytes of parameters, want %d", o.function.name, size, len(o.params))
			}
			return nil
		case extraBuffer:
			buffer = pair[1]
		case extraSize:
			size = *(*uintptr)(at(pair[1]))
		default:
			return failed(invalidValue, "kernel %s: entry %d in the list of extra arguments", o.function.name, pair[0])
		}
		list = (*uintptr)(at(uintptr(ptrOf(list)) + 16))
	}
}

// lastByte returns the offset of the end of the last parameter.
func lastByte(list []ptx.Param) int {
	if len(list) == 0 {
		return 0
	}
	p := list[len(list)-1]
	return p.Offset + p.Bytes
}

// attribute applies an attribute of a launch. It ignores attributes that change only the speed.
func (o *order) attribute(a *C.launch_attribute) {
	words := (*[3]uint32)(ptrOf(&a.value))
	switch a.id {
	case attributeCooperative:
		o.cooperative = words[0] != 0
	case attributeCluster:
		o.cluster = [3]int{int(words[0]), int(words[1]), int(words[2])}
	case attributeProgrammatic:
		o.dependent = words[0] != 0
	}
}

// permits returns an error for a launch that a device refuses. The emulator itself would run it.
func (d *device) permits(o *order) error {
	f := o.function
	f.mu.Lock()
	allowed, portable := max(f.dynamic, defaultShared-o.kernel.StaticSharedBytes()), !f.nonPortable
	f.mu.Unlock()
	threads := o.block[0] * o.block[1] * o.block[2]
	ctas := max(o.cluster[0], 1) * max(o.cluster[1], 1) * max(o.cluster[2], 1)
	switch most := o.kernel.MaxThreads(); {
	case threads > 1024:
		return failed(invalidConfig, "kernel %s: %d threads in a CTA, want at most 1024", f.name, threads)
	case threads > most:
		return failed(invalidValue, "kernel %s: %d threads in a CTA, its launch bounds allow %d", f.name, threads, most)
	case o.shared > allowed:
		return failed(invalidValue, "kernel %s: %d bytes of dynamic shared memory, want at most %d, or more after cudaFuncSetAttribute", f.name, o.shared, allowed)
	case ctas > 8 && portable:
		return failed(invalidValue, "kernel %s: clusters of %d CTAs, want at most 8 without cudaFuncAttributeNonPortableClusterSizeAllowed", f.name, ctas)
	case o.cooperative && o.grid[0]*o.grid[1]*o.grid[2] > d.target.SMs*d.resident(o.kernel, threads, o.shared):
		return failed(cooperativeTooLarge, "kernel %s: %v CTAs do not fit on the device of %d multiprocessors: want at most %d for each, or -sms", f.name, o.grid, d.target.SMs, d.resident(o.kernel, threads, o.shared))
	}
	return nil
}

// node returns the launch as a node.
func (o *order) node(d *device) *node {
	n := &node{kind: nodeKernel, order: o}
	n.launch = func(s *stream) error {
		if err := d.permits(o); err != nil {
			return err
		}
		return d.run(o.function, o.kernel, emu.Launch{Grid: o.grid, Block: o.block, Cluster: o.cluster, SharedBytes: o.shared, Params: o.params,
			Cooperative: o.cooperative, Programmatic: o.dependent, Stream: &s.launches})
	}
	return n
}

// start queues a launch.
func (d *device) start(o *order, stream uintptr) error { return d.queue(stream, o.node(d)) }

func (d *device) launchKernel(function uintptr, grid, block C.dim3, params *uintptr, shared, stream uintptr, cooperative bool) error {
	if err := d.ready(); err != nil {
		return err
	}
	o, err := d.newOrder(function, dims(grid), dims(block), shared)
	if err != nil {
		return err
	}
	o.cooperative = cooperative
	if err := o.pack(params); err != nil {
		return err
	}
	return d.start(o, stream)
}

//export cudaLaunchKernel
func cudaLaunchKernel(function uintptr, grid, block C.dim3, params *uintptr, shared, stream uintptr) int32 {
	return result("cudaLaunchKernel", dev().launchKernel(function, grid, block, params, shared, stream, false))
}

//export __cudaLaunchKernel
func __cudaLaunchKernel(function uintptr, grid, block C.dim3, params *uintptr, shared, stream uintptr) int32 {
	return cudaLaunchKernel(function, grid, block, params, shared, stream)
}

//export cudaLaunchCooperativeKernel
func cudaLaunchCooperativeKernel(function uintptr, grid, block C.dim3, params *uintptr, shared, stream uintptr) int32 {
	return result("cudaLaunchCooperativeKernel", dev().launchKernel(function, grid, block, params, shared, stream, true))
}

func (d *device) launchWith(c *C.launch_config, function uintptr, params *uintptr) error {
	if err := d.ready(); err != nil {
		return err
	}
	o, err := d.newOrder(function, dims(c.grid), dims(c.block), uintptr(c.shared))
	if err != nil {
		return err
	}
	for i := range uintptr(c.count) {
		o.attribute((*C.launch_attribute)(at(uintptr(ptrOf(c.attributes)) + i*C.sizeof_launch_attribute)))
	}
	if err := o.pack(params); err != nil {
		return err
	}
	return d.start(o, uintptr(c.stream))
}

//export cudaLaunchKernelExC
func cudaLaunchKernelExC(c *C.launch_config, function uintptr, params *uintptr) int32 {
	return result("cudaLaunchKernelExC", dev().launchWith(c, function, params))
}
