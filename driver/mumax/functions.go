//go:build mumax && cgo

package mumax

import (
	"unsafe"

	"github.com/mumax/3/cuda/cu"
)

// functions maps names of driver functions to Go functions that make the same call through
// package cu. args are the arguments of the C function.
var functions = map[string]func(args []uintptr) int{
	"cuDeviceGetCount": func(a []uintptr) int {
		return try(func() { *out[int32](a, 0) = int32(cu.DeviceGetCount()) })
	},
	"cuDeviceGet": func(a []uintptr) int {
		return try(func() { *out[int32](a, 0) = int32(cu.DeviceGet(int(a[1]))) })
	},
	"cuDeviceGetName": func(a []uintptr) int {
		return try(func() {
			room := unsafe.Slice(out[byte](a, 0), int(a[1]))
			n := copy(room[:len(room)-1], cu.DeviceGetName(cu.Device(a[2])))
			room[n] = 0
		})
	},
	"cuDeviceGetAttribute": func(a []uintptr) int {
		return try(func() { *out[int32](a, 0) = int32(cu.DeviceGetAttribute(cu.DeviceAttribute(a[1]), cu.Device(a[2]))) })
	},

	"cuCtxSetCurrent":  func(a []uintptr) int { return try(func() { cu.CtxSetCurrent(cu.Context(a[0])) }) },
	"cuCtxSynchronize": func([]uintptr) int { return try(cu.CtxSynchronize) },

	"cuStreamQuery":       func(a []uintptr) int { return int(cu.StreamQuery(cu.Stream(a[0]))) },
	"cuStreamSynchronize": func(a []uintptr) int { return try(func() { cu.StreamSynchronize(cu.Stream(a[0])) }) },
	"cuStreamDestroy_v2": func(a []uintptr) int {
		s := cu.Stream(a[0])
		return try(func() { cu.StreamDestroy(&s) })
	},

	"cuMemAlloc_v2": func(a []uintptr) int {
		return try(func() { *out[uint64](a, 0) = uint64(cu.MemAlloc(int64(a[1]))) })
	},
	"cuMemFree_v2": func(a []uintptr) int { return try(func() { cu.MemFree(cu.DevicePtr(a[0])) }) },
	"cuMemGetInfo_v2": func(a []uintptr) int {
		return try(func() {
			free, total := cu.MemGetInfo()
			*out[uint64](a, 0), *out[uint64](a, 1) = uint64(free), uint64(total)
		})
	},
	"cuMemcpyHtoDAsync_v2": func(a []uintptr) int {
		return try(func() {
			cu.MemcpyHtoDAsync(cu.DevicePtr(a[0]), unsafe.Pointer(out[byte](a, 1)), int64(a[2]), cu.Stream(a[3]))
		})
	},
	"cuMemcpyDtoHAsync_v2": func(a []uintptr) int {
		return try(func() {
			cu.MemcpyDtoHAsync(unsafe.Pointer(out[byte](a, 0)), cu.DevicePtr(a[1]), int64(a[2]), cu.Stream(a[3]))
		})
	},
	"cuMemcpyDtoDAsync_v2": func(a []uintptr) int {
		return try(func() {
			cu.MemcpyDtoDAsync(cu.DevicePtr(a[0]), cu.DevicePtr(a[1]), int64(a[2]), cu.Stream(a[3]))
		})
	},
	"cuMemsetD32Async": func(a []uintptr) int {
		return try(func() { cu.MemsetD32Async(cu.DevicePtr(a[0]), uint32(a[1]), int64(a[2]), cu.Stream(a[3])) })
	},

	"cuModuleGetFunction": func(a []uintptr) int {
		return try(func() { *out[uintptr](a, 0) = uintptr(cu.ModuleGetFunction(cu.Module(a[1]), text(out[byte](a, 2)))) })
	},
	"cuFuncGetAttribute": func(a []uintptr) int {
		return try(func() { *out[int32](a, 0) = int32(cu.FuncGetAttribute(cu.FunctionAttribute(a[1]), cu.Function(a[2]))) })
	},
}

// loadModule loads machine code through package cu.
func loadModule(image []byte) (module uintptr, code int) {
	code = try(func() { module = uintptr(cu.ModuleLoadData(string(image))) })
	return module, code
}

// unknown is CUDA_ERROR_UNKNOWN. It is the result if package cu panics with a value that is not
// a result.
const unknown = 999

// try runs a call of package cu, which panics with the result if it fails, and
// returns the result.
func try(call func()) (code int) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case cu.Result:
			code = int(r)
		default:
			code = unknown
		}
	}()
	call()
	return 0
}

// out returns argument i as a pointer.
func out[T any](args []uintptr, i int) *T {
	return *(**T)(unsafe.Pointer(&args[i]))
}

// text copies a C string.
func text(p *byte) string {
	n := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(p), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(p, n))
}
