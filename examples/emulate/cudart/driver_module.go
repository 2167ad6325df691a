//go:build cgo && linux

package main

// #include "cuda.h"
// static size_t shared_bytes(uintptr_t f, int threads) { return ((shared_of_block)f)(threads); }
import "C"

// The driver's functions about modules, kernels and launches.

// loadModule reads a module at once and returns its handle.
func (d *device) loadModule(to *uintptr, m *module) error {
	if _, err := m.load(); err != nil {
		return err
	}
	*to = add(d, d.modules, m)
	return nil
}

//export cuModuleLoad
func cuModuleLoad(to *uintptr, file uintptr) int32 {
	return status("cuModuleLoad", dev().loadModule(to, fromFile(hostText(file))))
}

//export cuModuleLoadData
func cuModuleLoadData(to *uintptr, image uintptr) int32 {
	return status("cuModuleLoadData", dev().loadModule(to, fromMemory(image)))
}

//export cuModuleLoadDataEx
func cuModuleLoadDataEx(to *uintptr, image uintptr, _ uint32, ignored1, ignored2 uintptr) int32 {
	return cuModuleLoadData(to, image)
}

//export cuModuleLoadFatBinary
func cuModuleLoadFatBinary(to *uintptr, image uintptr) int32 { return cuModuleLoadData(to, image) }

//export cuModuleUnload
func cuModuleUnload(h uintptr) int32 {
	return status("cuModuleUnload", drop(dev(), dev().modules, h, "module"))
}

// getFunction returns the handle of a kernel of a module.
func (d *device) getFunction(to *uintptr, h uintptr, name string) error {
	m, err := look(d, d.modules, h, "module")
	if err != nil {
		return err
	}
	f := &function{module: m, name: name}
	if _, err := f.decoded(); err != nil {
		return err
	}
	*to = add(d, d.functions, f)
	return nil
}

//export cuModuleGetFunction
func cuModuleGetFunction(to *uintptr, h, name uintptr) int32 {
	return status("cuModuleGetFunction", dev().getFunction(to, h, hostText(name)))
}

//export cuModuleGetGlobal_v2
func cuModuleGetGlobal_v2(to, bytes *uintptr, h, name uintptr) int32 {
	d := dev()
	m, err := look(d, d.modules, h, "module")
	if err != nil {
		return status("cuModuleGetGlobal", err)
	}
	at, n, err := d.variable(m, hostText(name))
	if err == nil && to != nil {
		*to = at
	}
	if err == nil && bytes != nil {
		*bytes = uintptr(n)
	}
	return status("cuModuleGetGlobal", err)
}

//export cuLibraryLoadData
func cuLibraryLoadData(to *uintptr, image, ignored1, ignored2 uintptr, ignored3 uint32, ignored4, ignored5 uintptr, ignored6 uint32) int32 {
	return cuModuleLoadData(to, image)
}

//export cuLibraryUnload
func cuLibraryUnload(h uintptr) int32 { return cuModuleUnload(h) }

//export cuLibraryGetKernel
func cuLibraryGetKernel(to *uintptr, h, name uintptr) int32 { return cuModuleGetFunction(to, h, name) }

//export cuKernelGetFunction
func cuKernelGetFunction(to *uintptr, h uintptr) int32 {
	*to = h
	return 0
}

//export cuFuncSetAttribute
func cuFuncSetAttribute(h uintptr, a, v int32) int32 {
	return status("cuFuncSetAttribute", dev().set(h, a, v))
}

//export cuFuncSetCacheConfig
func cuFuncSetCacheConfig(h uintptr, _ int32) int32 {
	_, err := dev().function(h)
	return status("cuFuncSetCacheConfig", err)
}

//export cuFuncGetAttribute
func cuFuncGetAttribute(v *int32, a int32, h uintptr) int32 {
	var list C.func_attributes
	if c := cudaFuncGetAttributes(&list, h); c != 0 {
		return c
	}
	values := []int32{int32(list.threads), int32(list.shared), int32(list.constant), int32(list.local), int32(list.registers), int32(list.ptx), int32(list.binary), 0, int32(list.dynamic)}
	*v = 0
	if a >= 0 && int(a) < len(values) {
		*v = values[a]
	}
	return 0
}

//export cuOccupancyMaxActiveBlocksPerMultiprocessor
func cuOccupancyMaxActiveBlocksPerMultiprocessor(n *int32, h uintptr, threads int32, dynamic uintptr) int32 {
	return cudaOccupancyMaxActiveBlocksPerMultiprocessor(n, h, threads, dynamic)
}

// best returns the size of a CTA at which most threads run on the device at the same time, and the
// number of CTAs that then run. Of equally good sizes it returns the largest. of is the address of a
// function that returns the dynamic shared memory for a CTA of some size. If of is 0, CTAs of all
// sizes have `dynamic` bytes.
func (d *device) best(h uintptr, of, dynamic uintptr, limit int32) (ctas, threads int32, err error) {
	if limit < 1 || limit > 1024 {
		limit = 1024
	}
	most := int32(0)
	for n := limit / 32 * 32; n > 0; n -= 32 {
		if of != 0 {
			dynamic = uintptr(C.shared_bytes(C.uintptr_t(of), C.int(n)))
		}
		count, err := d.occupancy(h, n, dynamic)
		if err != nil {
			return 0, 0, err
		}
		if count*n > most {
			most, threads, ctas = count*n, n, count*int32(d.target.SMs)
		}
	}
	return ctas, threads, nil
}

//export cuOccupancyMaxPotentialBlockSize
func cuOccupancyMaxPotentialBlockSize(ctas, threads *int32, h, of, dynamic uintptr, limit int32) int32 {
	n, t, err := dev().best(h, of, dynamic, limit)
	*ctas, *threads = n, t
	return status("cuOccupancyMaxPotentialBlockSize", err)
}

//export cuOccupancyMaxPotentialBlockSizeWithFlags
func cuOccupancyMaxPotentialBlockSizeWithFlags(ctas, threads *int32, h, of, dynamic uintptr, limit int32, _ uint32) int32 {
	return cuOccupancyMaxPotentialBlockSize(ctas, threads, h, of, dynamic, limit)
}

//export cuOccupancyMaxActiveClusters
func cuOccupancyMaxActiveClusters(n *int32, h uintptr, c *C.driver_launch_config) int32 {
	r := runtimeConfig(c)
	return cudaOccupancyMaxActiveClusters(n, h, &r)
}

// runtimeConfig converts the configuration of a launch from the driver's struct to the runtime's.
func runtimeConfig(c *C.driver_launch_config) C.launch_config {
	three := func(d [3]C.uint32_t) C.dim3 { return C.dim3{d[0], d[1], d[2]} }
	return C.launch_config{grid: three(c.grid), block: three(c.block), shared: C.size_t(c.shared), stream: c.stream, attributes: c.attributes, count: c.count}
}

// driverLaunch queues a launch that has the arguments of the driver's functions.
func (d *device) driverLaunch(c *C.launch_config, h uintptr, params, extra *uintptr, cooperative bool) error {
	if extra == nil && !cooperative {
		return d.launchWith(c, h, params)
	}
	o, err := d.newOrder(h, dims(c.grid), dims(c.block), uintptr(c.shared))
	if err != nil {
		return err
	}
	o.cooperative = cooperative
	if extra != nil {
		err = o.unpack(extra)
	} else {
		err = o.pack(params)
	}
	if err != nil {
		return err
	}
	return d.start(o, uintptr(c.stream))
}

//export cuLaunchKernel
func cuLaunchKernel(h uintptr, gx, gy, gz, bx, by, bz, shared uint32, stream uintptr, params, extra *uintptr) int32 {
	c := C.launch_config{grid: C.dim3{C.uint32_t(gx), C.uint32_t(gy), C.uint32_t(gz)}, block: C.dim3{C.uint32_t(bx), C.uint32_t(by), C.uint32_t(bz)}, shared: C.size_t(shared), stream: C.uintptr_t(stream)}
	return status("cuLaunchKernel", dev().driverLaunch(&c, h, params, extra, false))
}

//export cuLaunchCooperativeKernel
func cuLaunchCooperativeKernel(h uintptr, gx, gy, gz, bx, by, bz, shared uint32, stream uintptr, params *uintptr) int32 {
	c := C.launch_config{grid: C.dim3{C.uint32_t(gx), C.uint32_t(gy), C.uint32_t(gz)}, block: C.dim3{C.uint32_t(bx), C.uint32_t(by), C.uint32_t(bz)}, shared: C.size_t(shared), stream: C.uintptr_t(stream)}
	return status("cuLaunchCooperativeKernel", dev().driverLaunch(&c, h, params, nil, true))
}

//export cuLaunchKernelEx
func cuLaunchKernelEx(c *C.driver_launch_config, h uintptr, params, extra *uintptr) int32 {
	r := runtimeConfig(c)
	return status("cuLaunchKernelEx", dev().driverLaunch(&r, h, params, extra, false))
}

//export cuLaunchHostFunc
func cuLaunchHostFunc(stream, function, data uintptr) int32 {
	return status("cuLaunchHostFunc", dev().queue(stream, hostNode(function, data)))
}
