// Package cuda drives NVIDIA GPUs through the CUDA driver library.
//
// The library is found by name when a device is opened, and is called without cgo.
// Neither a C compiler nor CUDA's headers or toolkit are needed to build or run a
// program. The driver must support CUDA 12.0 or newer.
//
// A device uses the GPU's primary context, which it shares with other libraries of
// the process. Each call makes that context current on its thread for the duration
// of the call, so methods may be called from any goroutine. Launching a kernel
// allocates no memory.
//
// If no device can be opened, the error wraps [driver.ErrNoDevice] and lists what
// was tried. [Diagnose] returns all details.
package cuda
