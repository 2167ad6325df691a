package emulated

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/devkit"
	"sonicmoe/ptx/emu"
	"sonicmoe/ptx/emu/layout"
)

// producer is the producer name of the emulator's machine code.
const producer = "emulated 1"

// maxPTXVersion is the newest PTX .version that Compile accepts, times ten.
const maxPTXVersion = 90

// Options configure an emulated device.
type Options struct {
	// Target describes the chip. The zero value is an H200 with only 4 multiprocessors, named
	// "emulated H200".
	Target driver.Target
	// MemoryBytes is the size of device memory. 0 means 8 GiB. Only allocated memory
	// uses host memory.
	MemoryBytes int64
	// Timing is the moment at which asynchronous copies and products complete. emu.Early is the
	// fastest to emulate. emu.Late and emu.Random reveal missing waits.
	Timing emu.Timing
	// Seed selects the random order of emu.Random.
	Seed uint64
	// Races makes launches report unordered accesses to the same memory. StrictProxy also
	// requires proxy fences after cp.async, which released kernels omit; see emu.Launch.
	Races, StrictProxy bool
	// Check makes each launch look for races. The launch then runs several times on the same
	// memory: with the earliest completion, with the latest, and in Check random orders with
	// seeds from Seed on. The launch's error, an [emu.Findings], has the findings of all runs.
	// If Check is 0, the launch runs once, with Timing.
	Check int
	// Explore makes each launch look for races in different orders of its steps, like
	// [emu.Kernel.Explore]. The launch runs until all orders, or Explore of them, have run.
	// Explored, if not nil, is then called with the number of orders. The launch's error is the
	// same as with Check. Check and Explore cannot be combined.
	Explore  int
	Explored func(k *emu.Kernel, e emu.Exploration)
	// Launching, if not nil, is called before each launch with the memory that the launch will
	// use. Tools use it to check or to measure kernels on an [emu.Memory.Clone]. Launching must
	// not change the memory itself.
	Launching func(k *emu.Kernel, mem *emu.Memory, l emu.Launch)
	// Parallel is the number of clusters of CTAs that run at once. 0 means GOMAXPROCS.
	Parallel int
	// Context ends the running launch and every later launch when it ends. It is an option
	// because a launch runs inside a call that has no context argument. Nil means that launches
	// never end early.
	Context context.Context
}

// Target returns the default chip: an H200 with 4 multiprocessors.
func Target() driver.Target {
	t := driver.H200()
	t.Name, t.SMs = "emulated H200", 4
	return t
}

// device implements gpu.Device.
type device struct {
	options Options
	mem     atomic.Pointer[emu.Memory]

	work   sync.Mutex      // guards device memory
	life   context.Context // ends the kernels of the device
	end    context.CancelFunc
	broken devkit.Breakage
	closed atomic.Bool
}

// Checking reports whether launches look for races. Callers may then check more of their own, too.
func (d *device) Checking() bool { return d.options.Check > 0 || d.options.Explore > 0 }

// devices counts the devices that were made, because each gets its own range of addresses.
var devices atomic.Uint64

// New returns an emulated device. Its range of addresses differs from that of every other
// device, so an address of another device is an error.
func New(o Options) (gpu.Device, error) {
	if o.Target == (driver.Target{}) {
		o.Target = Target()
	}
	if o.MemoryBytes == 0 {
		o.MemoryBytes = 8 << 30
	}
	if o.Context == nil {
		o.Context = context.Background()
	}
	switch {
	case o.Target.Major != 9 || o.Target.Minor != 0:
		return nil, invalid("emulated.New", "Target has compute capability %d.%d, must be 9.0", o.Target.Major, o.Target.Minor)
	case o.Target.SMs < 1:
		return nil, invalid("emulated.New", "Target has %d multiprocessors, must have one at least", o.Target.SMs)
	case o.MemoryBytes < 0:
		return nil, invalid("emulated.New", "MemoryBytes is %d, must not be negative", o.MemoryBytes)
	case o.Timing > emu.Random:
		return nil, invalid("emulated.New", "Timing is %d, must be a known one", o.Timing)
	case o.Check < 0:
		return nil, invalid("emulated.New", "Check is %d, must not be negative", o.Check)
	case o.Explore < 0:
		return nil, invalid("emulated.New", "Explore is %d, must not be negative", o.Explore)
	case o.Explore > 0 && o.Check > 0:
		return nil, invalid("emulated.New", "Explore is %d and Check %d, one of them must be 0", o.Explore, o.Check)
	case o.Parallel < 0:
		return nil, invalid("emulated.New", "Parallel is %d, must not be negative", o.Parallel)
	}
	d := &device{options: o}
	d.mem.Store(emu.NewMemoryAt(devices.Add(1)-1, o.MemoryBytes))
	d.life, d.end = context.WithCancel(o.Context)
	return d, nil
}

func invalid(op, format string, args ...any) error {
	return &driver.Error{Op: op, Name: "invalid value", Text: fmt.Sprintf(format, args...), Kind: driver.ErrInvalid}
}

// ready returns an error if the device is broken or closed.
func (d *device) ready(op string) error {
	if err := d.broken.Refuse(op); err != nil {
		return err
	}
	if d.closed.Load() {
		return invalid(op, "the device is closed")
	}
	return nil
}

func (d *device) Target() driver.Target { return d.options.Target }

func (d *device) Producer() string { return producer }

func (d *device) Accepts(by string) bool { return by == producer }

func (d *device) MaxPTXVersion() int { return maxPTXVersion }

// Alloc implements driver.Device. New memory is filled with 0xff, which reads as NaN.
func (d *device) Alloc(bytes int64) (driver.DevicePtr, error) { return d.alloc("Alloc", bytes) }

func (d *device) alloc(op string, bytes int64) (driver.DevicePtr, error) {
	mem := d.mem.Load() // if the device is closed after this line, the call counts as made before
	if err := d.ready(op); err != nil {
		return 0, err
	}
	if bytes < 1 {
		return 0, invalid(op, "bytes is %d, must be at least 1", bytes)
	}
	p, err := mem.Alloc(bytes)
	if err != nil {
		return 0, &driver.Error{Op: op, Kind: driver.ErrOutOfMemory, Cause: err}
	}
	return driver.DevicePtr(p), nil
}

func (d *device) Free(p driver.DevicePtr) error { return d.free("Free", p) }

func (d *device) free(op string, p driver.DevicePtr) error {
	if err := d.ready(op); err != nil {
		return err
	}
	d.work.Lock()
	defer d.work.Unlock()
	return wrongAddress(op, d.mem.Load().Free(uint64(p)))
}

// wrongAddress returns the error of a device for an error of the emulated memory.
func wrongAddress(op string, err error) error {
	if err == nil {
		return nil
	}
	return &driver.Error{Op: op, Kind: driver.ErrInvalid, Cause: err}
}

func (d *device) Memory() (free, total int64, err error) {
	mem := d.mem.Load()
	if err := d.ready("Memory"); err != nil {
		return 0, 0, err
	}
	return mem.Limit() - mem.Used(), mem.Limit(), nil
}

// Synchronize implements driver.Device. It does not wait, because all work has already run.
func (d *device) Synchronize(ctx context.Context) error {
	if err := d.ready("Synchronize"); err != nil {
		return err
	}
	return devkit.ContextErr("Synchronize", ctx)
}

// Err implements driver.Device.
func (d *device) Err() error {
	if cause := d.broken.Cause(); cause != nil {
		return cause
	}
	return d.ready("Err")
}

// Close implements driver.Device. It ends a running kernel. The kernel's launch, and launches
// that wait for it, return an error.
func (d *device) Close() error {
	d.closed.Store(true)
	d.end()
	d.work.Lock()
	defer d.work.Unlock()
	d.mem.Store(emu.NewMemory(0))
	return nil
}

// breakDown records the first fault of the device, and returns the first.
func (d *device) breakDown(kernel string, cause error) error {
	e := &driver.Error{Op: "launch", Kernel: kernel, Kind: driver.ErrBroken, Cause: cause}
	var fault *emu.Fault
	if errors.As(cause, &fault) {
		e.Name, e.Line = fault.Kind.String(), fault.Line
	}
	return d.broken.By(e)
}

// elements maps the element types of tensor maps to those of the emulator.
var elements = map[gpu.ElemType]layout.ElemType{
	gpu.BF16: layout.ElemBF16, gpu.F16: layout.ElemF16, gpu.F32: layout.ElemF32,
	gpu.U8: layout.ElemU8, gpu.U16: layout.ElemU16, gpu.U32: layout.ElemU32, gpu.S32: layout.ElemS32,
}

// EncodeTensorMap implements gpu.Device. For a legal map with a feature that the emulator does
// not have, the error is driver.ErrUnsupported.
func (d *device) EncodeTensorMap(m gpu.TensorMap) (gpu.EncodedTensorMap, error) {
	if err := d.ready("EncodeTensorMap"); err != nil {
		return gpu.EncodedTensorMap{}, err
	}
	if err := m.Check(); err != nil {
		return gpu.EncodedTensorMap{}, err
	}
	e := layout.TensorMap{Elem: elements[m.Elem], Rank: m.Rank, Address: uint64(m.Address),
		Dims: m.Dims, Strides: m.Strides, Box: m.Box, Swizzle: layout.Swizzle(m.Swizzle)}
	if err := e.Check(); err != nil {
		return gpu.EncodedTensorMap{}, &driver.Error{Op: "EncodeTensorMap", Kind: driver.ErrUnsupported, Cause: err}
	}
	return gpu.EncodedTensorMap(e.Encode()), nil
}
