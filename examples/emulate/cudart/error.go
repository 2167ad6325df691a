//go:build cgo && linux

package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"

	"sonicmoe/ptx/emu"
)

// code is the result of a call. A result that runtime and driver share has one number.
type code int32

// The results that the library returns.
const (
	success             code = 0
	invalidValue        code = 1
	outOfMemory         code = 2
	invalidConfig       code = 9
	invalidSymbol       code = 13
	invalidFunction     code = 98
	invalidDevice       code = 101
	invalidImage        code = 200
	noImage             code = 209
	invalidPTX          code = 218
	fileNotFound        code = 301
	invalidHandle       code = 400
	notFound            code = 500
	notReady            code = 600
	illegalAddress      code = 700
	tooManyResources    code = 701
	peerNotEnabled      code = 705
	assertFailed        code = 710
	illegalInstruction  code = 715
	misaligned          code = 716
	launchFailed        code = 719
	cooperativeTooLarge code = 720
	notSupported        code = 801
	captureUnsupported  code = 900
)

// codes has the names and texts of results.
var codes = map[code]struct{ runtime, driver, text string }{
	success:             {"cudaSuccess", "CUDA_SUCCESS", "no error"},
	invalidValue:        {"cudaErrorInvalidValue", "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
	outOfMemory:         {"cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
	invalidConfig:       {"cudaErrorInvalidConfiguration", "CUDA_ERROR_UNKNOWN", "invalid configuration argument"},
	invalidSymbol:       {"cudaErrorInvalidSymbol", "CUDA_ERROR_UNKNOWN", "invalid device symbol"},
	invalidFunction:     {"cudaErrorInvalidDeviceFunction", "CUDA_ERROR_UNKNOWN", "invalid device function"},
	invalidDevice:       {"cudaErrorInvalidDevice", "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
	invalidImage:        {"cudaErrorInvalidKernelImage", "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
	noImage:             {"cudaErrorNoKernelImageForDevice", "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
	invalidPTX:          {"cudaErrorInvalidPtx", "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
	fileNotFound:        {"cudaErrorFileNotFound", "CUDA_ERROR_FILE_NOT_FOUND", "file not found"},
	invalidHandle:       {"cudaErrorInvalidResourceHandle", "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
	notFound:            {"cudaErrorSymbolNotFound", "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
	notReady:            {"cudaErrorNotReady", "CUDA_ERROR_NOT_READY", "device not ready"},
	illegalAddress:      {"cudaErrorIllegalAddress", "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
	tooManyResources:    {"cudaErrorLaunchOutOfResources", "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
	peerNotEnabled:      {"cudaErrorPeerAccessNotEnabled", "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", "peer access has not been enabled"},
	assertFailed:        {"cudaErrorAssert", "CUDA_ERROR_ASSERT", "device-side assert triggered"},
	illegalInstruction:  {"cudaErrorIllegalInstruction", "CUDA_ERROR_ILLEGAL_INSTRUCTION", "an illegal instruction was encountered"},
	misaligned:          {"cudaErrorMisalignedAddress", "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
	launchFailed:        {"cudaErrorLaunchFailure", "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
	cooperativeTooLarge: {"cudaErrorCooperativeLaunchTooLarge", "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "too many blocks in cooperative launch"},
	notSupported:        {"cudaErrorNotSupported", "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
	captureUnsupported:  {"cudaErrorStreamCaptureUnsupported", "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
}

// failure is an error with its result code.
type failure struct {
	code code
	text string // what was wrong; "" if the code says it all
}

func (f *failure) Error() string { return f.text }

func failed(c code, format string, args ...any) error {
	return &failure{c, fmt.Sprintf(format, args...)}
}

// plain returns an error without a message. It is for results that a program expects, such as
// notReady.
func (c code) plain() error {
	if c == success {
		return nil
	}
	return &failure{code: c}
}

// say writes a message of this library to standard error.
func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "emulate: "+format+"\n", args...)
}

// codeOf returns the result of the call op, which ended with err. It writes the text of the error to
// standard error.
func codeOf(op string, err error) code {
	if err == nil {
		return success
	}
	var f *failure
	if errors.As(err, &f) {
		if f.text != "" {
			say("%s: %s", op, f.text)
		}
		return f.code
	}
	say("%s: %s", op, strings.TrimPrefix(err.Error(), "emu: "))
	switch {
	case errors.Is(err, emu.ErrOutOfMemory):
		return outOfMemory
	default:
		return invalidValue
	}
}

// lastError is the latest error of a runtime call, which cudaGetLastError returns.
var lastError atomic.Int32

// result returns the result of the runtime's function op, and stores an error as the last one.
func result(op string, err error) int32 {
	c := codeOf(op, err)
	if c != success && c != notReady {
		lastError.Store(int32(c))
	}
	return int32(c)
}

// status returns the result of the driver's function op.
func status(op string, err error) int32 { return int32(codeOf(op, err)) }

// faults maps the kinds of faults to results.
var faults = map[emu.FaultKind]code{
	emu.OutOfBounds: illegalAddress, emu.CTALifetime: illegalAddress, emu.Misaligned: misaligned,
	emu.IllegalInstruction: illegalInstruction, emu.IllegalDescriptor: illegalInstruction,
}

// faultCode returns the result of a launch that ended with a fault.
func faultCode(f *emu.Fault) code {
	if f.Kind == emu.Trap && strings.HasPrefix(f.Text, "assertion failed") {
		return assertFailed
	}
	if c, ok := faults[f.Kind]; ok {
		return c
	}
	return launchFailed
}
