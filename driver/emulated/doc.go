// Package emulated is a device without a GPU: it runs the PTX text itself, on
// ptx/emu, slowly and with a GPU's bits.
//
// Its machine code is the PTX behind a short header with a checksum. Work runs
// when it is queued, in the order of the calls, whatever the stream: streams,
// events and graphs keep their meaning, but nothing overlaps. A kernel's fault
// is the error of the launch; it wraps an *emu.Fault and breaks the device, as
// on a GPU.
package emulated
