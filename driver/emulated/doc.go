// Package emulated is a [gpu.Device] that needs no GPU. It runs kernels on the emulator of
// package ptx/emu: the same PTX as on a Hopper GPU, slowly and exactly. If a kernel breaks a
// rule, the kernel stops, and the error names the line at fault.
//
// Work runs inside the call that queues it: Launch returns when the kernel has ended, on any
// stream. Waits therefore return at once, and events measure host time. Unlike on a GPU, a
// launch allocates host memory. Machine code is the PTX text with a checksum.
//
// After a fault of a kernel the device is broken, like a GPU. The launch and every later call
// return the same error, which matches [driver.ErrBroken] and wraps the *emu.Fault. A wrong
// address from the host is [driver.ErrInvalid] and does not break the device.
package emulated
