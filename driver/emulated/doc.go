// Package emulated is a [gpu.Device] without a GPU, on the emulator of package
// ptx/emu. It runs the same PTX as a Hopper GPU, slowly and exactly. If a kernel
// breaks a rule, it stops and names the line at fault.
//
// Work runs inside the call that queues it: Launch returns when the kernel has
// ended, on any stream. Waits therefore return at once, and events take host time.
// Unlike on a GPU, a launch allocates host memory. Machine code is the PTX text
// with a checksum.
//
// After a kernel's fault the device is broken, like a GPU: the launch and every
// later call return one error that matches [driver.ErrBroken] and wraps the
// *emu.Fault. A wrong address from the host is [driver.ErrInvalid] and does not
// break the device.
package emulated
