// Package driver is one interface for all GPUs.
//
// A [Device] compiles PTX to machine code, loads it, and owns memory, streams,
// events and graphs. driver/cuda implements it with the CUDA driver library,
// driver/emulated with an emulator of the same PTX. driver/open opens a device by
// name. internal/drivertest is the conformance suite of all implementations.
//
// The package is independent of kernels. Sizes are in bytes unless a name says
// otherwise, times are [time.Duration].
package driver
