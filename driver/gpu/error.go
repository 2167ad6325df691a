package gpu

import "errors"

// These are kinds of failure in addition to those of package driver. Test for them with
// errors.Is.
var (
	// ErrCompile means that the assembler refused the PTX. driver.Error.Log has the reason.
	ErrCompile = errors.New("compilation failed")
	// ErrWrongImage means that machine code is damaged or for another device.
	ErrWrongImage = errors.New("machine code does not fit the device")
	// ErrNotFound means that a module has no kernel of the given name.
	ErrNotFound = errors.New("not found")
)
