package emulated

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"sonicmoe/driver"
	"sonicmoe/ptx/emu"
)

// producer names this device's machine code; the number is the header's.
const producer = "emulated 1"

// maxPTXVersion is the newest .version that the table of ptx/isa has forms of.
const maxPTXVersion = 90

// Options change an emulated device. The zero value is good.
type Options struct {
	// Target is the chip to pretend to be: an H200 with 4 SMs where it has no
	// SMs.
	Target driver.Target
	// MemoryBytes is the size of device memory; 0 means 8 GiB. Only what is
	// allocated takes room.
	MemoryBytes int64
	// Timing is when asynchronous work completes, Seed chooses among the
	// orders of emu.Random.
	Timing emu.Timing
	Seed   uint64
	// Parallel is how many CTAs run at once; 0 means GOMAXPROCS.
	Parallel int
}

// device implements driver.Device.
type device struct {
	o   Options
	mem *emu.Memory

	mu     sync.Mutex // one piece of work at a time
	broken atomic.Pointer[driver.Error]
	closed atomic.Bool
}

// New makes an emulated device.
func New(o Options) (driver.Device, error) {
	if o.Target.SMs == 0 {
		o.Target = driver.H200()
		o.Target.Name, o.Target.SMs = "emulated H200", 4
	}
	if o.MemoryBytes == 0 {
		o.MemoryBytes = 8 << 30
	}
	if o.MemoryBytes < 0 {
		return nil, invalid("emulated device", "MemoryBytes is %d, must not be negative", o.MemoryBytes)
	}
	return &device{o: o, mem: emu.NewMemory(o.MemoryBytes)}, nil
}

func invalid(op, format string, args ...any) error {
	return &driver.Error{Op: op, Kind: driver.ErrInvalid, Text: fmt.Sprintf(format, args...)}
}

// ready reports why no work may be done now.
func (d *device) ready(op string) error {
	if first := d.broken.Load(); first != nil {
		return &driver.Error{Op: op, Kind: driver.ErrBroken, Text: "not tried, the device broke before", Cause: first}
	}
	if d.closed.Load() {
		return invalid(op, "the device is closed")
	}
	return nil
}

// memory turns an error of emulated memory into a device's.
func memory(op string, err error) error {
	if err == nil {
		return nil
	}
	kind := driver.ErrInvalid
	if errors.Is(err, emu.ErrOutOfMemory) {
		kind = driver.ErrOutOfMemory
	}
	return &driver.Error{Op: op, Kind: kind, Cause: err}
}

func (d *device) Target() driver.Target          { return d.o.Target }
func (d *device) Producer() string               { return producer }
func (d *device) Accepts(producedBy string) bool { return producedBy == producer }
func (d *device) MaxPTXVersion() int             { return maxPTXVersion }

func (d *device) Alloc(bytes int64) (driver.DevicePtr, error) {
	if err := d.ready("alloc"); err != nil {
		return 0, err
	}
	if bytes < 1 {
		return 0, invalid("alloc", "%d bytes, must be at least 1", bytes)
	}
	p, err := d.mem.Alloc(bytes)
	return driver.DevicePtr(p), memory("alloc", err)
}

func (d *device) Free(p driver.DevicePtr) error {
	if p == 0 {
		return nil
	}
	if err := d.ready("free"); err != nil {
		return err
	}
	return memory("free", d.mem.Free(uint64(p)))
}

func (d *device) Memory() (free, total int64, err error) {
	if err := d.ready("memory"); err != nil {
		return 0, 0, err
	}
	return d.mem.Limit() - d.mem.Used(), d.mem.Limit(), nil
}

// elemTypes are the emulator's names of element types.
var elemTypes = map[driver.ElemType]emu.ElemType{
	driver.BF16: emu.ElemBF16, driver.F16: emu.ElemF16, driver.F32: emu.ElemF32,
	driver.U8: emu.ElemU8, driver.U16: emu.ElemU16, driver.U32: emu.ElemU32, driver.S32: emu.ElemS32,
}

func (d *device) EncodeTensorMap(m driver.TensorMap) (driver.EncodedTensorMap, error) {
	if err := d.ready("tensor map"); err != nil {
		return driver.EncodedTensorMap{}, err
	}
	if err := m.Check(); err != nil {
		return driver.EncodedTensorMap{}, err
	}
	e := emu.TensorMap{
		Elem: elemTypes[m.Elem], Rank: m.Rank, Address: uint64(m.Address),
		Dims: m.Dims, Strides: m.Strides, Box: m.Box, Swizzle: emu.Swizzle(m.Swizzle),
	}
	if err := e.Check(); err != nil {
		return driver.EncodedTensorMap{}, &driver.Error{Op: "tensor map", Kind: driver.ErrInvalid, Cause: err}
	}
	return e.Encode(), nil
}

// MaxActiveClusters counts by shared memory, registers and threads of an SM.
func (d *device) MaxActiveClusters(f driver.Function, l driver.Launch) (int, error) {
	fn, err := d.own("MaxActiveClusters", f, &l)
	if err != nil {
		return 0, err
	}
	const reservedBytes, threadsPerSM, ctasPerSM = 1024, 2048, 32
	t, threads := d.o.Target, l.Block.Count()
	perSM := min(ctasPerSM, threadsPerSM/threads)
	perSM = min(perSM, t.SharedBytesPerSM/(l.SharedBytes+fn.kernel.StaticSharedBytes()+reservedBytes))
	perSM = min(perSM, t.RegistersPerSM/(fn.kernel.Registers()*((threads+31)/32*32)))
	return perSM * t.SMs / l.Cluster.Count(), nil
}

func (d *device) Synchronize(ctx context.Context) error {
	if err := d.ready("synchronize"); err != nil {
		return err
	}
	return ctx.Err()
}

func (d *device) Err() error {
	if e := d.broken.Load(); e != nil {
		return e
	}
	return nil
}

func (d *device) Close() error {
	d.closed.Store(true)
	return nil
}
