// Package driver is the GPU behind one interface.
//
// A [Device] compiles PTX to machine code, loads it, owns memory, streams,
// events and graphs. driver/cuda implements it over the CUDA driver library,
// driver/emulated over an emulator of the same PTX; driver/open picks one by
// name and internal/drivertest is the conformance suite that each of them passes.
//
// The package knows nothing of kernels. Sizes are in bytes unless a name says
// otherwise, times are [time.Duration].
package driver
