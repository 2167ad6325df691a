// Package driver has one interface for all kinds of GPUs.
//
// A [Device] owns memory, streams, events and graphs. Package driver/open opens a device by
// name. Package driver/gpu extends Device and [Stream] with methods for compiling, loading and
// launching kernels, which users of a layer do not need. Package driver/cuda implements both
// packages' interfaces with the CUDA driver library, and driver/emulated with an emulator of
// the same PTX. internal/drivertest is the conformance suite of all implementations.
//
// The package is independent of kernels. Sizes are in bytes unless a name says otherwise, and
// times are [time.Duration].
package driver
