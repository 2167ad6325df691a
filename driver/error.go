package driver

import (
	"errors"
	"strconv"
	"strings"
)

// These are kinds of failure. Test for them with errors.Is.
var (
	// ErrNoDevice means that no usable device was found.
	ErrNoDevice = errors.New("no device")
	// ErrInvalid means that an argument was wrong and nothing was done.
	ErrInvalid = errors.New("invalid argument")
	// ErrOutOfMemory means that there was not enough device memory.
	ErrOutOfMemory = errors.New("out of device memory")
	// ErrUnsupported means that this driver or device lacks the feature.
	ErrUnsupported = errors.New("unsupported")
	// ErrBroken means that the device had an error from which it cannot recover. Every later
	// call fails with this first error.
	ErrBroken = errors.New("device is broken")
)

// Error is a failed device operation.
type Error struct {
	// Op is the operation that failed: the name of a driver function, or a description.
	Op string
	// Code and Name are the driver's error code and the name of the code: 700 and
	// "CUDA_ERROR_ILLEGAL_ADDRESS".
	Code int
	Name string
	// Text says what was wrong and what would be right.
	Text string
	// Kernel and Line are the kernel at fault and the line of its PTX, if the device
	// knows them.
	Kernel string
	Line   int
	// Log is the assembler's output if a kernel could not be compiled or loaded.
	Log string
	// Kind is the sentinel error that errors.Is matches. Cause is the wrapped error, if any.
	Kind  error
	Cause error
}

// Error returns a text with op, name, text and log.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Op)
	if e.Name != "" {
		b.WriteString(": " + e.Name)
	}
	if e.Code != 0 {
		b.WriteString(" (" + strconv.Itoa(e.Code) + ")")
	}
	if e.Text != "" {
		b.WriteString(": " + e.Text)
	}
	if e.Cause != nil {
		b.WriteString(": " + e.Cause.Error())
	}
	if e.Log != "" {
		b.WriteString("\n" + strings.TrimRight(e.Log, "\n\x00"))
	}
	return b.String()
}

// Is reports whether the error is of the given kind.
func (e *Error) Is(target error) bool { return e.Kind != nil && target == e.Kind }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }
