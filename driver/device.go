package driver

import (
	"context"
	"time"
)

// DevicePtr is an address in a device's global memory. 0 is no address.
type DevicePtr uint64

// Device is a GPU or an emulated one. Its methods may be called from any goroutine. Package
// driver/open opens devices.
//
// The devices of driver/open also have the methods with which package moe compiles and launches
// kernels (see package driver/gpu). A type that has only the methods of Device cannot run a
// layer.
//
// After an error that makes the device unusable (an illegal address, a hung kernel) every later
// call fails at once, with an error that wraps this first error. [Device.Err] returns the first
// error.
type Device interface {
	// Target describes the chip.
	Target() Target
	// Producer is the name and exact version of the program that turns PTX into
	// machine code, such as "driver 13000 580.95.05" or "emulated 1". A device may
	// refuse machine code of another producer.
	Producer() string

	// Alloc reserves device memory, at least 1 byte, aligned to at least 256
	// bytes. Its content is unspecified.
	Alloc(bytes int64) (DevicePtr, error)
	// Free releases memory from Alloc. Freeing 0 does nothing.
	Free(p DevicePtr) error
	// Memory returns free and total device memory in bytes.
	Memory() (free, total int64, err error)

	// NewStream returns a stream that does not wait for the legacy default stream.
	NewStream() (Stream, error)
	// WrapStream returns a Stream for a CUstream that another library made. Closing the Stream
	// does not close the CUstream.
	WrapStream(handle uintptr) Stream
	NewEvent() (Event, error)

	// Synchronize waits for all work of the device. If ctx ends first, it returns
	// ctx's error and the work continues.
	Synchronize(ctx context.Context) error
	// Err returns nil while the device is usable. Otherwise it returns the first error
	// that broke the device, or an ErrInvalid if the device is closed.
	Err() error
	// Close releases the device. Objects made by it must not be used afterwards.
	Close() error
}

// Stream is a queue of device work that runs in order.
type Stream interface {
	// CopyToDevice copies src to dst. src may be used again after CopyToDevice has returned.
	// Copies between host and device cannot be captured: they fail, and the capture continues.
	// Copies and fills of size 0 do nothing.
	CopyToDevice(dst DevicePtr, src []byte) error
	// CopyToHost copies src to dst and returns when dst holds the bytes.
	CopyToHost(dst []byte, src DevicePtr) error
	// Copy copies bytes from one device address to another.
	Copy(dst, src DevicePtr, bytes int64) error
	// Fill32 writes count copies of a 32-bit value. dst must be aligned to 4 bytes.
	Fill32(dst DevicePtr, value uint32, count int64) error

	// AllocAsync and FreeAsync allocate and free memory in the order of the stream's
	// work.
	AllocAsync(bytes int64) (DevicePtr, error)
	FreeAsync(p DevicePtr) error

	// Wait makes later work of this stream wait for the event. The event may be of another device
	// that the same driver library has opened.
	Wait(e Event) error
	// Synchronize waits for the stream's work. If ctx ends first, it returns ctx's
	// error and the work continues.
	Synchronize(ctx context.Context) error

	// BeginCapture starts to record this stream's work instead of running it.
	BeginCapture() error
	// EndCapture ends the recording and returns it as a graph that can be launched.
	EndCapture() (Graph, error)

	// Handle returns the stream's CUstream, or 0 on an emulated device.
	Handle() uintptr
	Close() error
}

// Event marks a position in the work of a stream.
type Event interface {
	Record(s Stream) error
	// Done reports whether the marked work has finished.
	Done() (bool, error)
	Synchronize(ctx context.Context) error
	// Since returns the device time from start to this event. Both events must have finished.
	// On an emulated device it is host time.
	Since(start Event) (time.Duration, error)
	Close() error
}

// Graph is captured work that one call repeats. Its kernels use the addresses that they were
// captured with.
type Graph interface {
	Launch(s Stream) error
	// Nodes is the number of captured operations.
	Nodes() int
	Close() error
}
