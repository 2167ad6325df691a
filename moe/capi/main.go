// Command capi is package moe behind a C interface, for Python and whatever
// else calls C. It is a shared library, not a program:
//
//	go build -buildmode=c-shared -o libsonicmoe.so ./moe/capi
//
// sonicmoe.h is its documentation; the header that go build writes beside the
// library is of no use. Building wants cgo and a C compiler, using it neither:
// the library needs libc, and a GPU's driver when a GPU is opened.
//
// The folder python holds a package for PyTorch that is made of it,
// examples/c a program in C11.
package main

import (
	"fmt"
	"os"
)

// main is what runs when the library was built as a program.
func main() {
	fmt.Fprintln(os.Stderr, "capi is a library: go build -buildmode=c-shared -o libsonicmoe.so ./moe/capi")
	os.Exit(2)
}
