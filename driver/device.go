package driver

import (
	"context"
	"time"
)

// DevicePtr is an address in a device's global memory; 0 is no address.
type DevicePtr uint64

// Device is one GPU, or the emulation of one. Its methods may be called from
// any goroutine.
//
// After an error that leaves the device unusable (an illegal address, a hung
// kernel) every later call fails at once, saying what it was and wrapping that first
// cause, which [Device.Err] reports.
type Device interface {
	// Target describes the chip.
	Target() Target
	// Producer names who turns PTX into machine code here, with the exact
	// version, such as "driver 13000 580.95.05" or "emulated 1". Machine code of
	// one producer may be refused by another; see Accepts.
	Producer() string
	// Accepts reports whether machine code made by the named producer may be
	// tried here. A wrong yes costs a failed Load, never a wrong result.
	Accepts(producer string) bool
	// MaxPTXVersion is the newest PTX .version that Compile takes, times ten:
	// 90 for 9.0. 0 means any.
	MaxPTXVersion() int

	// Compile turns PTX into machine code. It is safe, and useful, to compile
	// several modules at once. On failure the error is an *Error whose Log
	// is the assembler's own text.
	Compile(ctx context.Context, ptx []byte, o CompileOptions) (Image, error)
	// Load makes machine code callable.
	Load(code []byte) (Module, error)

	// Alloc reserves device memory, at least 1 byte, aligned to at least 256
	// bytes. Its content is unspecified.
	Alloc(bytes int64) (DevicePtr, error)
	// Free returns what Alloc gave. Freeing 0 does nothing.
	Free(p DevicePtr) error
	// Memory reports free and total device memory in bytes.
	Memory() (free, total int64, err error)

	// NewStream makes a stream that does not wait for the legacy default one.
	NewStream() (Stream, error)
	// WrapStream gives a stream that somebody else made (a CUstream); closing
	// it leaves theirs alone.
	WrapStream(handle uintptr) Stream
	NewEvent() (Event, error)
	// EncodeTensorMap checks and encodes a tensor map for TMA.
	EncodeTensorMap(m TensorMap) (EncodedTensorMap, error)
	// MaxActiveClusters is how many clusters of the launch's shape can be
	// resident on the device at once (CTAs when the launch has no cluster).
	MaxActiveClusters(f Function, l Launch) (int, error)

	// Synchronize waits for all work of the device. When ctx ends first it
	// returns ctx's error; the work goes on.
	Synchronize(ctx context.Context) error
	// Err is why the device can't be used any more: the first error that broke
	// it, or, of kind ErrInvalid, that it is closed; nil while it can.
	Err() error
	// Close releases the device; what it made must no longer be used.
	Close() error
}

// CompileOptions are the choices that change machine code. They are part of
// every cache key, so the struct is comparable.
type CompileOptions struct {
	// LineInfo keeps PTX line numbers for profilers.
	LineInfo bool
	// OptLevel is the assembler's level 1..4; 0 means its default.
	OptLevel int
}

// Image is machine code with what its assembler said.
type Image struct {
	Code []byte
	Log  string
}

// Module is loaded machine code.
type Module interface {
	Function(name string) (Function, error)
	Unload() error
}

// Function is a kernel that can be launched.
type Function interface {
	Name() string
	Attributes() (FunctionAttributes, error)
	// AllowSharedBytes raises the dynamic shared memory that a launch may ask
	// for, up to Target.SharedBytesPerCTA.
	AllowSharedBytes(bytes int) error
}

// FunctionAttributes are facts about a compiled kernel, for one thread or CTA.
type FunctionAttributes struct {
	Registers         int // a thread
	LocalBytes        int // a thread; more than 0 usually means spills
	StaticSharedBytes int
	ConstBytes        int
	MaxThreadsPerCTA  int
	PTXVersion        int // times ten
	BinaryVersion     int // times ten, 90 for sm_90
}

// Dim3 counts in x, y and z; a zero field counts as one.
type Dim3 struct{ X, Y, Z int }

// Count is the number of elements, zero fields counting as one.
func (d Dim3) Count() int {
	return max(d.X, 1) * max(d.Y, 1) * max(d.Z, 1)
}

// Launch is the shape of a kernel launch.
type Launch struct {
	Grid, Block Dim3
	// Cluster is the CTAs of a cluster; the zero value means no clusters.
	Cluster Dim3
	// SharedBytes is dynamic shared memory for each CTA.
	SharedBytes int
	// Programmatic lets this kernel start before the previous one of the
	// stream has ended (programmatic dependent launch): it must execute
	// griddepcontrol.wait before it touches what that one wrote.
	Programmatic bool
}

// Stream is a queue of device work that runs in order.
type Stream interface {
	// Launch queues a kernel. params is the packed parameter buffer, laid out as
	// the kernel's PTX declares. Parameters begin at byte 0x210 of the constant
	// bank, and their alignments hold for addresses there: a tensor map that is the
	// first parameter lies at byte 112 of the buffer. params may be reused when
	// Launch returns. Launch allocates nothing.
	Launch(f Function, l *Launch, params []byte) error

	// CopyToDevice copies src to dst; src may be reused when it returns.
	// Copies between host and device can't be captured: they fail and leave
	// the capture as it was. Copies and fills of size 0 do nothing.
	CopyToDevice(dst DevicePtr, src []byte) error
	// CopyToHost copies src to dst and returns when dst holds the bytes.
	CopyToHost(dst []byte, src DevicePtr) error
	// Copy moves bytes between two places of the device.
	Copy(dst, src DevicePtr, bytes int64) error
	// Fill32 writes count copies of a 32-bit value; dst must be 4-aligned.
	Fill32(dst DevicePtr, value uint32, count int64) error

	// AllocAsync and FreeAsync are memory ordered with the stream's work.
	AllocAsync(bytes int64) (DevicePtr, error)
	FreeAsync(p DevicePtr) error

	// Wait makes later work of this stream wait for the event.
	Wait(e Event) error
	// Synchronize waits until the stream's work is done. When ctx ends first
	// it returns ctx's error; the work goes on.
	Synchronize(ctx context.Context) error

	// BeginCapture starts recording this stream's work instead of running it.
	BeginCapture() error
	// EndCapture ends the recording and makes it launchable.
	EndCapture() (Graph, error)

	// Handle is the raw stream handle (a CUstream), 0 on an emulated device.
	Handle() uintptr
	Close() error
}

// Event marks a place in a stream.
type Event interface {
	Record(s Stream) error
	// Done reports whether the marked work has finished.
	Done() (bool, error)
	Synchronize(ctx context.Context) error
	// Since is the device time from start to this event, both finished. On an
	// emulated device it is host time.
	Since(start Event) (time.Duration, error)
	Close() error
}

// Graph is captured work that replays with one call. What its kernels read
// and write are the addresses of the capture.
type Graph interface {
	Launch(s Stream) error
	// Nodes is the number of captured operations.
	Nodes() int
	Close() error
}
