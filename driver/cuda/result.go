package cuda

import (
	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
)

// result is a CUresult, the return value of driver functions.
type result int32

const (
	success  result = 0
	notReady result = 600
	// missingSymbol means that the library lacks the function.
	missingSymbol result = -1
)

// results lists the results that have a sentinel error, by name without CUDA_ERROR_. After a
// result of kind ErrBroken, every call in the context or in the whole process returns the same
// error.
var results = map[result]struct {
	name string
	kind error
}{
	1:   {"INVALID_VALUE", driver.ErrInvalid},
	2:   {"OUT_OF_MEMORY", driver.ErrOutOfMemory},
	4:   {"DEINITIALIZED", driver.ErrBroken},
	34:  {"STUB_LIBRARY", driver.ErrNoDevice},
	36:  {"CALL_REQUIRES_NEWER_DRIVER", driver.ErrUnsupported},
	46:  {"DEVICE_UNAVAILABLE", driver.ErrNoDevice},
	100: {"NO_DEVICE", driver.ErrNoDevice},
	101: {"INVALID_DEVICE", driver.ErrNoDevice},
	102: {"DEVICE_NOT_LICENSED", driver.ErrNoDevice},
	200: {"INVALID_IMAGE", gpu.ErrWrongImage},
	209: {"NO_BINARY_FOR_GPU", gpu.ErrWrongImage},
	214: {"ECC_UNCORRECTABLE", driver.ErrBroken},
	218: {"INVALID_PTX", gpu.ErrCompile},
	220: {"NVLINK_UNCORRECTABLE", driver.ErrBroken},
	221: {"JIT_COMPILER_NOT_FOUND", gpu.ErrCompile},
	222: {"UNSUPPORTED_PTX_VERSION", gpu.ErrCompile},
	223: {"JIT_COMPILATION_DISABLED", gpu.ErrCompile},
	226: {"CONTAINED", driver.ErrBroken},
	300: {"INVALID_SOURCE", gpu.ErrWrongImage},
	400: {"INVALID_HANDLE", driver.ErrInvalid},
	401: {"ILLEGAL_STATE", driver.ErrInvalid},
	500: {"NOT_FOUND", gpu.ErrNotFound},
	700: {"ILLEGAL_ADDRESS", driver.ErrBroken},
	701: {"LAUNCH_OUT_OF_RESOURCES", driver.ErrInvalid},
	702: {"LAUNCH_TIMEOUT", driver.ErrBroken},
	709: {"CONTEXT_IS_DESTROYED", driver.ErrBroken},
	710: {"ASSERT", driver.ErrBroken},
	714: {"HARDWARE_STACK_ERROR", driver.ErrBroken},
	715: {"ILLEGAL_INSTRUCTION", driver.ErrBroken},
	716: {"MISALIGNED_ADDRESS", driver.ErrBroken},
	717: {"INVALID_ADDRESS_SPACE", driver.ErrBroken},
	718: {"INVALID_PC", driver.ErrBroken},
	719: {"LAUNCH_FAILED", driver.ErrBroken},
	720: {"COOPERATIVE_LAUNCH_TOO_LARGE", driver.ErrInvalid},
	721: {"TENSOR_MEMORY_LEAK", driver.ErrBroken},
	801: {"NOT_SUPPORTED", driver.ErrUnsupported},
	803: {"SYSTEM_DRIVER_MISMATCH", driver.ErrNoDevice},
	804: {"COMPAT_NOT_SUPPORTED_ON_DEVICE", driver.ErrNoDevice},
	806: {"MPS_RPC_FAILURE", driver.ErrBroken},
	810: {"MPS_CLIENT_TERMINATED", driver.ErrBroken},
	900: {"STREAM_CAPTURE_UNSUPPORTED", driver.ErrInvalid},
	901: {"STREAM_CAPTURE_INVALIDATED", driver.ErrInvalid},
	902: {"STREAM_CAPTURE_MERGE", driver.ErrInvalid},
	903: {"STREAM_CAPTURE_UNMATCHED", driver.ErrInvalid},
	904: {"STREAM_CAPTURE_UNJOINED", driver.ErrInvalid},
	905: {"STREAM_CAPTURE_ISOLATION", driver.ErrInvalid},
	906: {"STREAM_CAPTURE_IMPLICIT", driver.ErrInvalid},
	907: {"CAPTURED_EVENT", driver.ErrInvalid},
	908: {"STREAM_CAPTURE_WRONG_THREAD", driver.ErrInvalid},
	911: {"EXTERNAL_DEVICE", driver.ErrBroken},
	912: {"INVALID_CLUSTER_SIZE", driver.ErrInvalid},
}

// kind returns the sentinel error of this result, or nil.
func (r result) kind() error { return results[r].kind }

// sticky reports whether every later call fails after this result.
func (r result) sticky() bool { return r.kind() == driver.ErrBroken }
