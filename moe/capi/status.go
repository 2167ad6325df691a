//go:build cgo

package main

// #define SONICMOE_TYPES_ONLY
// #include "sonicmoe.h"
// #include "text.h"
import "C"

import (
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"unsafe"

	"sonicmoe/driver"
	"sonicmoe/moe"
)

// guarded runs the body of an exported function and converts its error or panic to
// a status. A panic must not reach C.
func guarded(f func() error) (status C.sm_status) {
	defer func() {
		if v := recover(); v != nil {
			say(fmt.Sprintf("a mistake in sonicmoe itself: %v\n%s", v, debug.Stack()))
			status = C.SM_FAILED
		}
	}()
	err := f()
	if err == nil {
		return C.SM_OK
	}
	say(err.Error())
	return statusOf(err)
}

// statusOf returns the status of an error. It tests for a broken device first, because the error
// that broke the device may also match another status.
func statusOf(err error) C.sm_status {
	var wrong *moe.ArgError
	switch {
	case errors.Is(err, driver.ErrBroken):
		return C.SM_BROKEN
	case errors.As(err, &wrong), errors.Is(err, driver.ErrInvalid):
		return C.SM_INVALID
	case errors.Is(err, driver.ErrNoDevice):
		return C.SM_NO_DEVICE
	case errors.Is(err, driver.ErrOutOfMemory):
		return C.SM_OUT_OF_MEMORY
	case errors.Is(err, driver.ErrUnsupported):
		return C.SM_UNSUPPORTED
	}
	return C.SM_FAILED
}

// say stores the text of the calling thread's last error. An exported function runs on its caller's
// thread from beginning to end.
func say(text string) {
	to := unsafe.Slice((*byte)(unsafe.Pointer(C.sm_text())), C.SM_TEXT_BYTES)
	text = strings.ToValidUTF8(text[:min(len(text), len(to)-1)], "")
	to[copy(to, text)] = 0
}
