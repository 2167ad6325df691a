//go:build cgo && linux

package main

// #include "cuda.h"
import "C"

import "sync"

// The functions of this file are called by code that nvcc adds to a program, before main.

//export __cudaRegisterFatBinary
func __cudaRegisterFatBinary(wrapper uintptr) uintptr {
	d := dev()
	return add(d, d.modules, fromMemory(wrapper))
}

//export __cudaRegisterFatBinaryEnd
func __cudaRegisterFatBinaryEnd(uintptr) {}

//export __cudaUnregisterFatBinary
func __cudaUnregisterFatBinary(uintptr) {}

//export __cudaInitModule
func __cudaInitModule(uintptr) int8 { return 1 }

//export __cudaRegisterFunction
func __cudaRegisterFunction(module, stub, ignored1, name uintptr, ignored2 int32, ignored3, ignored4, ignored5, ignored6, ignored7 uintptr) {
	d := dev()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.functions[stub] = &function{module: d.modules[module], name: hostText(name)}
}

//export __cudaRegisterVar
func __cudaRegisterVar(module, host, ignored1, name uintptr, ignored2 int32, ignored3 uintptr, ignored4, ignored5 int32) {
	d := dev()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.variables[host] = &variable{d.modules[module], hostText(name)}
}

// pushed has the configuration of a launch between the call of the kernel's stub and the launch.
type pushed struct {
	grid, block C.dim3
	shared      uintptr
	stream      uintptr
}

var configurations struct {
	sync.Mutex
	stacks map[uintptr][]pushed // by thread
}

//export __cudaPushCallConfiguration
func __cudaPushCallConfiguration(grid, block C.dim3, shared, stream uintptr) uint32 {
	c := &configurations
	c.Lock()
	defer c.Unlock()
	if c.stacks == nil {
		c.stacks = map[uintptr][]pushed{}
	}
	c.stacks[thread()] = append(c.stacks[thread()], pushed{grid, block, shared, stream})
	return 0
}

//export __cudaPopCallConfiguration
func __cudaPopCallConfiguration(grid, block *C.dim3, shared, stream *uintptr) int32 {
	c := &configurations
	c.Lock()
	defer c.Unlock()
	stack := c.stacks[thread()]
	if len(stack) == 0 {
		return result("__cudaPopCallConfiguration", failed(invalidConfig, "the launch has no configuration"))
	}
	p := stack[len(stack)-1]
	c.stacks[thread()] = stack[:len(stack)-1]
	*grid, *block, *shared, *stream = p.grid, p.block, p.shared, p.stream
	return 0
}

//export __cudaGetKernel
func __cudaGetKernel(kernel *uintptr, stub uintptr) int32 {
	_, err := dev().function(stub)
	if err == nil {
		*kernel = stub
	}
	return result("cudaGetKernel", err)
}
