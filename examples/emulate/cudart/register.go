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
func __cudaInitModule(h uintptr) int8 {
	d := dev()
	m, err := look(d, d.modules, h, "module")
	if err == nil {
		err = m.bind(d)
	}
	if result("__cudaInitModule", err) != 0 {
		return 0
	}
	return 1
}

//export __cudaRegisterFunction
func __cudaRegisterFunction(module, hostFunction, ignored1, name uintptr, ignored2 int32, ignored3, ignored4, ignored5, ignored6, ignored7 uintptr) {
	d := dev()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.functions[hostFunction] = &function{module: d.modules[module], name: hostText(name)}
}

//export __cudaRegisterVar
func __cudaRegisterVar(module, host, ignored1, name uintptr, ignored2 int32, ignored3 uintptr, ignored4, ignored5 int32) {
	d := dev()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.variables[host] = &variable{d.modules[module], hostText(name)}
}

// managed is a __managed__ variable, which host and kernels share.
type managed struct {
	module *module
	name   string
	to     uintptr // where the program keeps the variable's address
}

//export __cudaRegisterManagedVar
func __cudaRegisterManagedVar(module uintptr, to, host, name uintptr, _ int32, ignored1 uintptr, ignored2, ignored3 int32) {
	d := dev()
	d.mu.Lock()
	defer d.mu.Unlock()
	m := d.modules[module]
	m.managed = append(m.managed, managed{m, hostText(name), to})
	d.variables[host] = &variable{m, hostText(name)}
}

// bind tells the program the addresses of the module's managed variables. Kernels can access a
// variable at the same address.
func (m *module) bind(d *device) error {
	m.binding.Lock()
	defer m.binding.Unlock()
	for _, v := range m.managed {
		at, n, err := d.variable(m, v.name)
		if err != nil {
			return err
		}
		b, err := d.mem.Bytes(uint64(at), n)
		if err != nil {
			return err
		}
		p := uintptr(ptrOf(&b[0]))
		if err := d.pin(p, pinned{bytes: n, managed: true}); err != nil {
			return err
		}
		put(v.to, p)
	}
	m.managed = nil
	return nil
}

// pushed is the configuration of a launch <<<grid, block, shared, stream>>>. The program pushes it,
// and the kernel's host function pops it before it calls cudaLaunchKernel.
type pushed struct {
	grid, block C.dim3
	shared      uintptr
	stream      uintptr
}

var configurations struct {
	sync.Mutex
	stacks map[uintptr][]pushed // the stack of each thread, by thread()
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
func __cudaGetKernel(kernel *uintptr, hostFunction uintptr) int32 {
	_, err := dev().function(hostFunction)
	if err == nil {
		*kernel = hostFunction
	}
	return result("cudaGetKernel", err)
}
