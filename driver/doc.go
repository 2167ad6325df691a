// Package driver is one interface for all GPUs.
//
// A [Device] owns memory, streams, events and graphs. driver/open opens a device by
// name. Package driver/gpu extends Device and [Stream] by compiling, loading and
// launching kernels; users of a layer do not need it. driver/cuda implements both
// with the CUDA driver library, driver/emulated with an emulator of the same PTX.
// internal/drivertest is the conformance suite of all implementations.
//
// The package is independent of kernels. Sizes are in bytes unless a name says
// otherwise, times are [time.Duration].
package driver
