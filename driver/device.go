package driver

import (
	"context"
	"time"
)

// DevicePtr is an address in a device's global memory; 0 is no address.
type DevicePtr uint64

// Device is a GPU or an emulated one. Its methods may be called from any
// goroutine.
//
// After an error that makes the device unusable (an illegal address, a hung
// kernel) every later call fails at once with an error that wraps this first
// error. [Device.Err] returns it.
type Device interface {
	// Target describes the chip.
	Target() Target
	// Producer is the name and exact version of the program that turns PTX into
	// machine code, such as "driver 13000 580.95.05" or "emulated 1". A device may
	// refuse machine code of another producer; see Accepts.
	Producer() string
	// Accepts reports whether to try loading machine code of the named producer. If it
	// returns true wrongly, Load fails, but no result is ever wrong.
	Accepts(producer string) bool
	// MaxPTXVersion is the newest PTX .version that Compile accepts, times ten: 90 for
	// 9.0. 0 means any.
	MaxPTXVersion() int

	// Compile turns PTX into machine code. Several modules may be compiled at once,
	// which saves time. A failure is an *Error whose Log is the assembler's log.
	Compile(ctx context.Context, ptx []byte, o CompileOptions) (Image, error)
	// Load makes machine code callable.
	Load(code []byte) (Module, error)

	// Alloc reserves device memory, at least 1 byte, aligned to at least 256
	// bytes. Its content is unspecified.
	Alloc(bytes int64) (DevicePtr, error)
	// Free releases memory from Alloc. Freeing 0 does nothing.
	Free(p DevicePtr) error
	// Memory returns free and total device memory in bytes.
	Memory() (free, total int64, err error)

	// NewStream returns a stream that does not wait for the legacy default stream.
	NewStream() (Stream, error)
	// WrapStream returns a Stream for a CUstream that another library made. Closing it
	// does not close the CUstream.
	WrapStream(handle uintptr) Stream
	NewEvent() (Event, error)
	// EncodeTensorMap checks and encodes a tensor map for TMA.
	EncodeTensorMap(m TensorMap) (EncodedTensorMap, error)
	// MaxActiveClusters returns the number of clusters of the launch's shape that can
	// be resident on the device at once, or of CTAs if the launch has no cluster.
	MaxActiveClusters(f Function, l Launch) (int, error)

	// Synchronize waits for all work of the device. If ctx ends first, it returns
	// ctx's error and the work continues.
	Synchronize(ctx context.Context) error
	// Err returns nil while the device is usable. Otherwise it returns the first error
	// that broke the device, or an ErrInvalid if the device is closed.
	Err() error
	// Close releases the device. Objects made from it must no longer be used.
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

// Image is machine code with the assembler's log.
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
	// AllowSharedBytes raises the limit of a launch's dynamic shared memory, up to
	// Target.SharedBytesPerCTA.
	AllowSharedBytes(bytes int) error
}

// FunctionAttributes are facts about a compiled kernel, for one thread or CTA.
type FunctionAttributes struct {
	Registers         int // for each thread
	LocalBytes        int // for each thread; more than 0 usually means spills
	StaticSharedBytes int
	ConstBytes        int
	MaxThreadsPerCTA  int
	PTXVersion        int // times ten
	BinaryVersion     int // times ten, 90 for sm_90
}

// Dim3 has extents in x, y and z. A zero field counts as one.
type Dim3 struct{ X, Y, Z int }

// Count returns the number of elements. A zero field counts as one.
func (d Dim3) Count() int {
	return max(d.X, 1) * max(d.Y, 1) * max(d.Z, 1)
}

// Launch is the shape of a kernel launch.
type Launch struct {
	Grid, Block Dim3
	// Cluster has the extents of a cluster in CTAs. The zero value means no clusters.
	Cluster Dim3
	// SharedBytes is dynamic shared memory for each CTA.
	SharedBytes int
	// Programmatic lets this kernel start before its predecessor in the stream has
	// ended (programmatic dependent launch). The kernel must execute
	// griddepcontrol.wait before it uses data that the predecessor wrote.
	Programmatic bool
}

// Stream is a queue of device work that runs in order.
type Stream interface {
	// Launch queues a kernel. params is the packed parameter buffer, in the layout
	// that the kernel's PTX declares. Parameters begin at byte 0x210 of the constant
	// bank, and alignments apply to addresses in the bank: a tensor map that is the
	// first parameter is at byte 112 of the buffer. params may be reused after Launch
	// has returned. Launch allocates nothing.
	Launch(f Function, l *Launch, params []byte) error

	// CopyToDevice copies src to dst. src may be reused after it has returned. Copies
	// between host and device cannot be captured: they fail, and the capture
	// continues. Copies and fills of size 0 do nothing.
	CopyToDevice(dst DevicePtr, src []byte) error
	// CopyToHost copies src to dst and returns when dst holds the bytes.
	CopyToHost(dst []byte, src DevicePtr) error
	// Copy copies bytes within the device.
	Copy(dst, src DevicePtr, bytes int64) error
	// Fill32 writes count copies of a 32-bit value. dst must be aligned to 4 bytes.
	Fill32(dst DevicePtr, value uint32, count int64) error

	// AllocAsync and FreeAsync allocate and free memory in the order of the stream's
	// work.
	AllocAsync(bytes int64) (DevicePtr, error)
	FreeAsync(p DevicePtr) error

	// Wait makes later work of this stream wait for the event.
	Wait(e Event) error
	// Synchronize waits for the stream's work. If ctx ends first, it returns ctx's
	// error and the work continues.
	Synchronize(ctx context.Context) error

	// BeginCapture starts recording this stream's work instead of running it.
	BeginCapture() error
	// EndCapture ends the recording and makes it launchable.
	EndCapture() (Graph, error)

	// Handle returns the stream's CUstream, 0 on an emulated device.
	Handle() uintptr
	Close() error
}

// Event marks a place in a stream.
type Event interface {
	Record(s Stream) error
	// Done reports whether the marked work has finished.
	Done() (bool, error)
	Synchronize(ctx context.Context) error
	// Since returns the device time from start to this event. Both must have finished.
	// On an emulated device it is host time.
	Since(start Event) (time.Duration, error)
	Close() error
}

// Graph is captured work that one call repeats. Its kernels use the addresses of
// the capture.
type Graph interface {
	Launch(s Stream) error
	// Nodes is the number of captured operations.
	Nodes() int
	Close() error
}
