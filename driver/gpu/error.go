package gpu

import "errors"

// Kinds of failure, for errors.Is, next to those of package driver.
var (
	// ErrCompile: the assembler refused the PTX; driver.Error.Log has the reason.
	ErrCompile = errors.New("compilation failed")
	// ErrWrongImage: machine code is damaged or for another device.
	ErrWrongImage = errors.New("machine code does not fit the device")
	// ErrNotFound: a module has no kernel of that name.
	ErrNotFound = errors.New("not found")
)
