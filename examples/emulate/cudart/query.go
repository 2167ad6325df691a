//go:build cgo && linux

package main

import "C"

// Versions of runtime and driver: CUDA 13.0.
const (
	runtimeVersion = 13000
	driverVersion  = 13000
)

//export cudaGetDeviceProperties
func cudaGetDeviceProperties(to uintptr, device int32) int32 { return properties(to, device, layout13) }

//export cudaGetDeviceProperties_v2
func cudaGetDeviceProperties_v2(to uintptr, device int32) int32 {
	return properties(to, device, layout12)
}

//export cudaDeviceGetAttribute
func cudaDeviceGetAttribute(v *int32, a, device int32) int32 {
	if device != 0 {
		return result("cudaDeviceGetAttribute", failed(invalidDevice, "device %d, there is device 0 alone", device))
	}
	*v = dev().attribute(a)
	return 0
}

//export cudaGetDeviceCount
func cudaGetDeviceCount(n *int32) int32 {
	*n = 1
	return 0
}

//export cudaGetDevice
func cudaGetDevice(device *int32) int32 {
	*device = 0
	return 0
}

//export cudaSetDevice
func cudaSetDevice(device int32) int32 {
	if device != 0 {
		return result("cudaSetDevice", failed(invalidDevice, "device %d, there is device 0 alone", device))
	}
	return 0
}

//export cudaInitDevice
func cudaInitDevice(device int32, ignored1, ignored2 uint32) int32 { return cudaSetDevice(device) }

//export cudaChooseDevice
func cudaChooseDevice(device *int32, _ uintptr) int32 { return cudaGetDevice(device) }

//export cudaSetDeviceFlags
func cudaSetDeviceFlags(uint32) int32 { return 0 }

//export cudaGetDeviceFlags
func cudaGetDeviceFlags(flags *uint32) int32 {
	*flags = 8 // host memory is mapped
	return 0
}

//export cudaDeviceReset
func cudaDeviceReset() int32 { return result("cudaDeviceReset", dev().ready()) }

//export cudaRuntimeGetVersion
func cudaRuntimeGetVersion(v *int32) int32 {
	*v = runtimeVersion
	return 0
}

//export cudaDriverGetVersion
func cudaDriverGetVersion(v *int32) int32 {
	*v = driverVersion
	return 0
}

//export cudaGetLastError
func cudaGetLastError() int32 {
	if c := dev().sticky(); c != success {
		return int32(c)
	}
	return lastError.Swap(0)
}

//export cudaPeekAtLastError
func cudaPeekAtLastError() int32 {
	if c := dev().sticky(); c != success {
		return int32(c)
	}
	return lastError.Load()
}

// sticky returns the result of the first launch that failed.
func (d *device) sticky() code {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.broken
}

// constants has a C string for each text that the library returns.
var constants = newConstants()

//export cudaGetErrorString
func cudaGetErrorString(c int32) *C.char { return constants.of(codes[code(c)].text) }

//export cudaGetErrorName
func cudaGetErrorName(c int32) *C.char { return constants.of(codes[code(c)].runtime) }

//export cudaDeviceSetCacheConfig
func cudaDeviceSetCacheConfig(int32) int32 { return 0 }

//export cudaDeviceSetSharedMemConfig
func cudaDeviceSetSharedMemConfig(int32) int32 { return 0 }

//export cudaDeviceSetLimit
func cudaDeviceSetLimit(limit int32, v uintptr) int32 {
	d := dev()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.limits[limit] = uint64(v)
	return 0
}

// usualLimits has the default of each limit in bytes: 0 is a thread's stack, 1 the buffer of printf,
// and 2 the heap of malloc in kernels.
var usualLimits = map[int32]uint64{0: 1 << 10, 1: 1 << 20, 2: 8 << 20}

//export cudaDeviceGetLimit
func cudaDeviceGetLimit(v *uintptr, limit int32) int32 {
	d := dev()
	d.mu.Lock()
	defer d.mu.Unlock()
	n, ok := d.limits[limit]
	if !ok {
		n = usualLimits[limit]
	}
	*v = uintptr(n)
	return 0
}

//export cudaDeviceCanAccessPeer
func cudaDeviceCanAccessPeer(can *int32, ignored1, ignored2 int32) int32 {
	*can = 0
	return 0
}

//export cudaDeviceEnablePeerAccess
func cudaDeviceEnablePeerAccess(int32, uint32) int32 {
	return result("cudaDeviceEnablePeerAccess", failed(invalidDevice, "there is one device"))
}

//export cudaDeviceDisablePeerAccess
func cudaDeviceDisablePeerAccess(int32) int32 {
	return result("cudaDeviceDisablePeerAccess", peerNotEnabled.plain())
}

// memoryPool is the handle of the device's only memory pool.
const memoryPool = 1 << 12

//export cudaDeviceGetDefaultMemPool
func cudaDeviceGetDefaultMemPool(p *uintptr, _ int32) int32 {
	*p = memoryPool
	return 0
}

//export cudaDeviceGetMemPool
func cudaDeviceGetMemPool(p *uintptr, _ int32) int32 {
	*p = memoryPool
	return 0
}

//export cudaDeviceSetMemPool
func cudaDeviceSetMemPool(int32, uintptr) int32 { return 0 }

//export cudaMemPoolCreate
func cudaMemPoolCreate(p *uintptr, _ uintptr) int32 {
	*p = memoryPool
	return 0
}

//export cudaMemPoolDestroy
func cudaMemPoolDestroy(uintptr) int32 { return 0 }

//export cudaMemPoolSetAttribute
func cudaMemPoolSetAttribute(uintptr, int32, uintptr) int32 { return 0 }

//export cudaMemPoolGetAttribute
func cudaMemPoolGetAttribute(ignored1 uintptr, ignored2 int32, v *uint64) int32 {
	*v = uint64(dev().mem.Used())
	return 0
}

//export cudaMemPoolTrimTo
func cudaMemPoolTrimTo(uintptr, uintptr) int32 { return 0 }

//export cudaProfilerStart
func cudaProfilerStart() int32 { return 0 }

//export cudaProfilerStop
func cudaProfilerStop() int32 { return 0 }

//export cudaCtxResetPersistingL2Cache
func cudaCtxResetPersistingL2Cache() int32 { return 0 }
