// Package cuda drives NVIDIA GPUs through the CUDA driver library.
//
// The library is found by name when a device is opened and called without
// cgo: neither a C compiler nor CUDA's headers nor its toolkit take part in
// building or running a program. A driver of CUDA 12.0 or newer is needed.
//
// A device uses the GPU's primary context, which other libraries of the
// process share. Each call makes that context current on the calling
// goroutine's thread for the length of the call, so methods may be called
// from any goroutine. Launching a kernel allocates no memory.
//
// When no device can be opened the error wraps [driver.ErrNoDevice] and says
// what was tried; [Diagnose] tells the whole story.
package cuda
