package cuda

import "sonicmoe/driver"

// result is what driver functions return, a CUresult.
type result int32

const (
	success  result = 0
	notReady result = 600
	// missingSymbol stands for a function that the library lacks.
	missingSymbol result = -1
)

// kinds are the results that have a sentinel.
var kinds = map[result]error{
	1:   driver.ErrInvalid,     // INVALID_VALUE
	2:   driver.ErrOutOfMemory, // OUT_OF_MEMORY
	34:  driver.ErrNoDevice,    // STUB_LIBRARY
	36:  driver.ErrUnsupported, // CALL_REQUIRES_NEWER_DRIVER
	46:  driver.ErrNoDevice,    // DEVICE_UNAVAILABLE
	100: driver.ErrNoDevice,    // NO_DEVICE
	101: driver.ErrNoDevice,    // INVALID_DEVICE
	102: driver.ErrNoDevice,    // DEVICE_NOT_LICENSED
	200: driver.ErrWrongImage,  // INVALID_IMAGE
	209: driver.ErrWrongImage,  // NO_BINARY_FOR_GPU
	218: driver.ErrCompile,     // INVALID_PTX
	221: driver.ErrCompile,     // JIT_COMPILER_NOT_FOUND
	222: driver.ErrCompile,     // UNSUPPORTED_PTX_VERSION
	223: driver.ErrCompile,     // JIT_COMPILATION_DISABLED
	300: driver.ErrWrongImage,  // INVALID_SOURCE
	400: driver.ErrInvalid,     // INVALID_HANDLE
	401: driver.ErrInvalid,     // ILLEGAL_STATE
	500: driver.ErrNotFound,    // NOT_FOUND
	701: driver.ErrInvalid,     // LAUNCH_OUT_OF_RESOURCES
	720: driver.ErrInvalid,     // COOPERATIVE_LAUNCH_TOO_LARGE
	801: driver.ErrUnsupported, // NOT_SUPPORTED
	803: driver.ErrNoDevice,    // SYSTEM_DRIVER_MISMATCH
	804: driver.ErrNoDevice,    // COMPAT_NOT_SUPPORTED_ON_DEVICE
	900: driver.ErrInvalid,     // STREAM_CAPTURE_UNSUPPORTED
	901: driver.ErrInvalid,     // STREAM_CAPTURE_INVALIDATED
	902: driver.ErrInvalid,     // STREAM_CAPTURE_MERGE
	903: driver.ErrInvalid,     // STREAM_CAPTURE_UNMATCHED
	904: driver.ErrInvalid,     // STREAM_CAPTURE_UNJOINED
	905: driver.ErrInvalid,     // STREAM_CAPTURE_ISOLATION
	906: driver.ErrInvalid,     // STREAM_CAPTURE_IMPLICIT
	907: driver.ErrInvalid,     // CAPTURED_EVENT
	908: driver.ErrInvalid,     // STREAM_CAPTURE_WRONG_THREAD
	912: driver.ErrInvalid,     // INVALID_CLUSTER_SIZE
}

// sticky are the results after which the context, or the whole process,
// answers every call with the same error.
var sticky = map[result]bool{
	4:   true, // DEINITIALIZED
	214: true, // ECC_UNCORRECTABLE
	220: true, // NVLINK_UNCORRECTABLE
	226: true, // CONTAINED
	700: true, // ILLEGAL_ADDRESS
	702: true, // LAUNCH_TIMEOUT
	709: true, // CONTEXT_IS_DESTROYED
	710: true, // ASSERT
	714: true, // HARDWARE_STACK_ERROR
	715: true, // ILLEGAL_INSTRUCTION
	716: true, // MISALIGNED_ADDRESS
	717: true, // INVALID_ADDRESS_SPACE
	718: true, // INVALID_PC
	719: true, // LAUNCH_FAILED
	721: true, // TENSOR_MEMORY_LEAK
	806: true, // MPS_RPC_FAILURE
	810: true, // MPS_CLIENT_TERMINATED
	911: true, // EXTERNAL_DEVICE
}

// kind is the sentinel that errors of this result match, or nil.
func (r result) kind() error {
	if sticky[r] {
		return driver.ErrBroken
	}
	return kinds[r]
}
