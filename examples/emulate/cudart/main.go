// Command cudart is a library that stands in the place of CUDA's runtime (libcudart) and driver
// (libcuda). A program that nvcc built with -gencode arch=compute_90a,code=compute_90a then runs on
// the emulator, unmodified.
// Command emulate starts programs with it:
//
//	go build -buildmode=c-shared -o libcudart-emulated.so ./examples/emulate/cudart
//	go run ./examples/emulate run -library libcudart-emulated.so PROGRAM ARGS...
//
// The library has the functions that kernels' programs use: memory, copies, launches, streams,
// events, graphs, tensor maps, and questions about the device. A program that needs another
// function does not start, and the loader names the function. Textures, surfaces, dynamic
// parallelism and several devices are not emulated.
//
// All work of a stream runs inside the call that queues it. A kernel that waits for the host, or
// for a kernel that the program queues later, therefore reports a deadlock.
package main

import (
	"fmt"
	"os"
)

// main runs if someone builds the library as a program.
func main() {
	fmt.Fprintln(os.Stderr, "cudart is a library: go build -buildmode=c-shared -o libcudart-emulated.so ./examples/emulate/cudart")
	os.Exit(2)
}
