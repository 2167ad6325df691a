//go:build cgo && linux

package main

// #include <stdlib.h>
// #include "cuda.h"
import "C"

import "unsafe"

// The driver's functions about devices and contexts. There is one device with one context.

// onlyContext is the handle of the context.
const onlyContext = 1 << 13

//export cuInit
func cuInit(uint32) int32 { return 0 }

//export cuDriverGetVersion
func cuDriverGetVersion(v *int32) int32 { return cudaDriverGetVersion(v) }

//export cuDeviceGetCount
func cuDeviceGetCount(n *int32) int32 { return cudaGetDeviceCount(n) }

//export cuDeviceGet
func cuDeviceGet(device *int32, ordinal int32) int32 {
	if ordinal != 0 {
		return status("cuDeviceGet", failed(invalidDevice, "device %d, there is device 0 alone", ordinal))
	}
	*device = 0
	return 0
}

//export cuDeviceGetName
func cuDeviceGetName(name uintptr, bytes, _ int32) int32 {
	if bytes > 0 {
		to := hostBytes(name, int(bytes))
		clear(to)
		copy(to[:bytes-1], dev().target.Name)
	}
	return 0
}

//export cuDeviceGetUuid
func cuDeviceGetUuid(to uintptr, _ int32) int32 {
	clear(hostBytes(to, 16))
	return 0
}

//export cuDeviceTotalMem_v2
func cuDeviceTotalMem_v2(bytes *uintptr, _ int32) int32 {
	*bytes = memoryBytes
	return 0
}

//export cuDeviceGetAttribute
func cuDeviceGetAttribute(v *int32, a, _ int32) int32 {
	*v = dev().attribute(a)
	return 0
}

//export cuDeviceComputeCapability
func cuDeviceComputeCapability(major, minor *int32, _ int32) int32 {
	*major, *minor = int32(dev().target.Major), int32(dev().target.Minor)
	return 0
}

//export cuDeviceCanAccessPeer
func cuDeviceCanAccessPeer(can *int32, ignored1, ignored2 int32) int32 {
	return cudaDeviceCanAccessPeer(can, 0, 0)
}

//export cudaDeviceGetPCIBusId
func cudaDeviceGetPCIBusId(text uintptr, bytes, _ int32) int32 {
	const id = "0000:01:00.0"
	if int(bytes) <= len(id) {
		return result("cudaDeviceGetPCIBusId", failed(invalidValue, "%d bytes, want %d", bytes, len(id)+1))
	}
	copy(hostBytes(text, len(id)+1), id+"\x00")
	return 0
}

//export cuDeviceGetPCIBusId
func cuDeviceGetPCIBusId(text uintptr, bytes, _ int32) int32 {
	return cudaDeviceGetPCIBusId(text, bytes, 0)
}

//export cuCtxGetApiVersion
func cuCtxGetApiVersion(_ uintptr, v *uint32) int32 {
	*v = 3020
	return 0
}

func giveContext(c *uintptr) int32 {
	*c = onlyContext
	return 0
}

//export cuDevicePrimaryCtxRetain
func cuDevicePrimaryCtxRetain(c *uintptr, _ int32) int32 { return giveContext(c) }

//export cuDevicePrimaryCtxRelease_v2
func cuDevicePrimaryCtxRelease_v2(int32) int32 { return 0 }

//export cuDevicePrimaryCtxSetFlags_v2
func cuDevicePrimaryCtxSetFlags_v2(int32, uint32) int32 { return 0 }

//export cuDevicePrimaryCtxGetState
func cuDevicePrimaryCtxGetState(_ int32, flags *uint32, active *int32) int32 {
	*flags, *active = 0, 1
	return 0
}

//export cuDevicePrimaryCtxReset_v2
func cuDevicePrimaryCtxReset_v2(int32) int32 { return 0 }

//export cuCtxCreate_v2
func cuCtxCreate_v2(c *uintptr, ignored1 uint32, ignored2 int32) int32 { return giveContext(c) }

//export cuCtxCreate_v4
func cuCtxCreate_v4(c *uintptr, ignored1 uintptr, ignored2 uint32, ignored3 int32) int32 {
	return giveContext(c)
}

//export cuCtxDestroy_v2
func cuCtxDestroy_v2(uintptr) int32 { return 0 }

//export cuCtxGetCurrent
func cuCtxGetCurrent(c *uintptr) int32 { return giveContext(c) }

//export cuCtxSetCurrent
func cuCtxSetCurrent(uintptr) int32 { return 0 }

//export cuCtxPushCurrent_v2
func cuCtxPushCurrent_v2(uintptr) int32 { return 0 }

//export cuCtxPopCurrent_v2
func cuCtxPopCurrent_v2(c *uintptr) int32 {
	if c != nil {
		*c = onlyContext
	}
	return 0
}

//export cuCtxGetDevice
func cuCtxGetDevice(device *int32) int32 {
	*device = 0
	return 0
}

//export cuCtxSynchronize
func cuCtxSynchronize() int32 { return status("cuCtxSynchronize", dev().finishAll()) }

//export cuCtxSetLimit
func cuCtxSetLimit(limit int32, v uintptr) int32 { return cudaDeviceSetLimit(limit, v) }

//export cuCtxGetLimit
func cuCtxGetLimit(v *uintptr, limit int32) int32 { return cudaDeviceGetLimit(v, limit) }

//export cuCtxSetCacheConfig
func cuCtxSetCacheConfig(int32) int32 { return 0 }

//export cuCtxGetStreamPriorityRange
func cuCtxGetStreamPriorityRange(least, greatest *int32) int32 {
	return cudaDeviceGetStreamPriorityRange(least, greatest)
}

//export cuGetErrorString
func cuGetErrorString(c int32, text **C.char) int32 {
	*text = constants.of(codes[code(c)].text)
	return 0
}

//export cuGetErrorName
func cuGetErrorName(c int32, text **C.char) int32 {
	*text = constants.of(codes[code(c)].driver)
	return 0
}

//export cuGetExportTable
func cuGetExportTable(uintptr, uintptr) int32 {
	return status("cuGetExportTable", failed(notFound, "the program has its own copy of CUDA's runtime, but no symbol table: link it with -cudart=shared, or do not strip it"))
}

// suffixes are the endings of the versions of a function of the driver, the newest first.
var suffixes = []string{"_v4", "_v2", ""}

// entry returns the address of the newest version of a function of the driver, or 0.
func entry(name string) uintptr {
	for _, suffix := range suffixes {
		s := C.CString(name + suffix)
		at := uintptr(C.own_symbol(s))
		C.free(unsafe.Pointer(s))
		if at != 0 {
			return at
		}
	}
	return 0
}

// find stores the address of a function of the driver. state becomes 0 if there is one, else 1.
func find(op, name string, to *uintptr, state *int32) error {
	*to = entry(name)
	if state != nil {
		if *state = 0; *to == 0 {
			*state = 1
		}
	}
	if *to == 0 {
		return failed(notFound, "%s is not emulated", name)
	}
	return nil
}

//export cuGetProcAddress_v2
func cuGetProcAddress_v2(name uintptr, to *uintptr, ignored1 int32, ignored2 uint64, state *int32) int32 {
	return status("cuGetProcAddress", find("cuGetProcAddress", hostText(name), to, state))
}

//export cudaGetDriverEntryPoint
func cudaGetDriverEntryPoint(name uintptr, to *uintptr, _ uint64, state *int32) int32 {
	return result("cudaGetDriverEntryPoint", find("cudaGetDriverEntryPoint", hostText(name), to, state))
}

//export cudaGetDriverEntryPointByVersion
func cudaGetDriverEntryPointByVersion(name uintptr, to *uintptr, ignored1 uint32, ignored2 uint64, state *int32) int32 {
	return cudaGetDriverEntryPoint(name, to, 0, state)
}
