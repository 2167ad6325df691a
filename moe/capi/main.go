// Command capi is the C interface of package moe, for Python and other languages that can call C.
// It is built as a shared library, not as a program:
//
//	go build -buildmode=c-shared -o libsonicmoe.so ./moe/capi
//
// sonicmoe.h documents the interface. The header that go build writes is not used. Building needs
// cgo and a C compiler. The library needs libc, and a GPU's driver when a program opens a GPU.
//
// The folder python has a package for PyTorch. examples/c has a program in C11.
package main

import (
	"fmt"
	"os"
)

// main runs if someone builds the library as a program.
func main() {
	fmt.Fprintln(os.Stderr, "capi is a library: go build -buildmode=c-shared -o libsonicmoe.so ./moe/capi")
	os.Exit(2)
}
