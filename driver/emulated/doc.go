// Package emulated is a GPU that is not there: a [driver.Device] on the
// emulator of package ptx/emu. It runs the same PTX as a Hopper GPU, slowly and
// exactly, and stops a kernel that breaks a rule with the line at fault.
//
// Work runs when it is called for, in the order of the calls: Launch returns
// when the kernel has ended, whatever its stream. So waits return at once,
// events take host time, and a launch allocates host memory, which on a GPU it
// does not. Machine code is the PTX text with a checksum.
//
// After a kernel's fault the device is broken, as a GPU would be: the launch
// and every later call return one error that matches [driver.ErrBroken] and
// wraps the *emu.Fault. Memory that the host names wrongly is
// [driver.ErrInvalid] and breaks nothing.
package emulated
