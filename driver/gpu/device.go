// Package gpu has the interfaces that a device must implement to run kernels: it compiles PTX,
// loads machine code, encodes tensor maps and launches kernels.
//
// Every device of driver/open implements [Device], and every stream of such a device implements
// [Stream]. Users of a layer need only the parts of both that are in package driver. The names
// here are for authors of kernels and of devices, and may change without notice.
// internal/drivertest is the conformance suite.
package gpu

import (
	"context"
	"fmt"

	"sonicmoe/driver"
)

// Device is a driver.Device that compiles and launches kernels.
type Device interface {
	driver.Device

	// Accepts reports whether machine code of the named producer is worth loading. If Accepts
	// is wrong, Load fails, but no result of a kernel is ever wrong.
	Accepts(producer string) bool
	// MaxPTXVersion returns the newest PTX .version that Compile accepts, times ten: 90 for
	// 9.0. 0 means any version.
	MaxPTXVersion() int

	// Compile turns PTX into machine code. Several modules may be compiled at once,
	// which saves time. A failure is a *driver.Error whose Log is the assembler's log.
	Compile(ctx context.Context, ptx []byte, o CompileOptions) (Image, error)
	// Load loads machine code, so that its kernels can be launched.
	Load(code []byte) (Module, error)

	// EncodeTensorMap checks and encodes a tensor map for TMA.
	EncodeTensorMap(m TensorMap) (EncodedTensorMap, error)
	// MaxActiveClusters returns the number of clusters, in the shape of the launch, that can be
	// resident on the device at the same time. If the launch has no cluster, it returns the
	// number of CTAs.
	MaxActiveClusters(f Function, l Launch) (int, error)
}

// Stream is a driver.Stream that runs kernels.
type Stream interface {
	driver.Stream

	// Launch queues a kernel. params is the packed parameter buffer, in the layout that the
	// kernel's PTX declares. Parameters begin at byte 0x210 of the constant bank, and
	// alignments apply to addresses in the bank. A tensor map as the first parameter is
	// therefore at byte 112 of the buffer. params may be used again after Launch has returned.
	// Launch allocates nothing.
	Launch(f Function, l *Launch, params []byte) error
}

// Of returns dev as a [Device], which can run kernels. If its type lacks the methods, the error
// names the type and matches driver.ErrUnsupported.
func Of(dev driver.Device) (Device, error) {
	if d, ok := dev.(Device); ok {
		return d, nil
	}
	return nil, unable(fmt.Sprintf("the device is a %T, which cannot compile kernels: want a gpu.Device, such as one from sonicmoe/driver/open", dev))
}

// Enqueue queues a kernel on a stream: see [Stream].Launch. If the stream's type cannot launch
// kernels, the error names the type and matches driver.ErrUnsupported.
func Enqueue(s driver.Stream, f Function, l *Launch, params []byte) error {
	if q, ok := s.(Stream); ok {
		return q.Launch(f, l, params)
	}
	return unable(fmt.Sprintf("the stream is a %T, which cannot launch kernels: want a gpu.Stream, such as one from the layer's device", s))
}

func unable(text string) error {
	return &driver.Error{Op: "launch kernels", Kind: driver.ErrUnsupported, Text: text}
}
