package cuda

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/devkit"
)

// device is a GPU used through the driver library.
type device struct {
	lib     *library
	ordinal int32 // the driver's number of the GPU, a CUdevice
	target  driver.Target
	// context is the CUcontext. It is an array because it also serves as the argument list of
	// cuCtxSetCurrent. owned reports whether Close must release the primary context.
	context [1]uintptr
	owned   bool

	broken devkit.Breakage
	// life counts the calls that are in the library at the moment.
	life  lifetime
	calls [symbolCount]atomic.Int64
}

var _ gpu.Device = (*device)(nil)

// Calls returns the number of calls of each function of the driver library that were made for
// dev since it was opened. The map's key is the function's name. The map is nil if dev is a
// device of another package.
func Calls(dev driver.Device) map[string]int64 {
	d, ok := dev.(*device)
	if !ok {
		return nil
	}
	calls := make(map[string]int64)
	for s := range symbolCount {
		if n := d.calls[s].Load(); n > 0 {
			calls[s.String()] = n
		}
	}
	return calls
}

// PCIBusID returns the address of dev on the PCI bus, such as "0000:1b:00.0", by which
// other libraries find the same GPU. It fails for a device of another package.
func PCIBusID(dev driver.Device) (string, error) {
	d, ok := dev.(*device)
	if !ok {
		return "", &driver.Error{Op: symDeviceGetPCIBusID.String(), Kind: driver.ErrUnsupported, Text: fmt.Sprintf("the device is a %T, want one of this package", dev)}
	}
	var bus [32]byte
	if err := d.do(symDeviceGetPCIBusID, uintptr(unsafe.Pointer(&bus[0])), uintptr(len(bus)-1), uintptr(d.ordinal)); err != nil {
		return "", err
	}
	return goString(&bus[0]), nil
}

// ready returns the reason why no call is possible now, or nil.
func (d *device) ready(s symbol) error {
	if err := d.broken.Refuse(s.String()); err != nil {
		return err
	}
	if d.life.closed() {
		return d.closedError(s)
	}
	return nil
}

func (d *device) closedError(s symbol) error {
	return &driver.Error{Op: s.String(), Text: "the device is closed", Kind: driver.ErrInvalid}
}

// enter makes the context current on this thread. Until leave, it keeps the goroutine on the
// thread and the context alive. All calls of the library between enter and leave go through
// raw.
//
// Only life decides whether the device is closed, because the device may be closed after any
// earlier check.
func (d *device) enter(s symbol) error {
	if err := d.broken.Refuse(s.String()); err != nil {
		return err
	}
	if !d.life.enter() {
		return d.closedError(s)
	}
	runtime.LockOSThread()
	if r := d.raw(symCtxSetCurrent, d.context[:]); r != success {
		d.leave()
		return d.check(symCtxSetCurrent, r)
	}
	return nil
}

func (d *device) leave() {
	runtime.UnlockOSThread()
	d.life.leave()
}

// raw makes one call of the library and counts the call. The caller keeps alive the objects to
// which args point.
func (d *device) raw(s symbol, args []uintptr) result {
	d.calls[s].Add(1)
	return d.lib.callSlice(s, args)
}

// do makes one complete call: enter, the function, leave, check. Convert pointers to uintptr in
// the argument list itself, because then they stay valid during the call.
//
//go:uintptrescapes
func (d *device) do(s symbol, args ...uintptr) error { return d.doSlice(s, args) }

// numbers is a pool of argument lists for doNumbers.
var numbers = sync.Pool{New: func() any { return new([12]uintptr) }}

// doNumbers is do for arguments that do not point to Go memory. It allocates nothing, while do
// allocates its argument list.
func (d *device) doNumbers(s symbol, args ...uintptr) error {
	list := numbers.Get().(*[12]uintptr)
	defer numbers.Put(list)
	return d.doSlice(s, list[:copy(list[:], args)])
}

// doSlice is do for arguments that point to heap objects which the caller keeps alive. It
// allocates nothing.
func (d *device) doSlice(s symbol, args []uintptr) error {
	if err := d.enter(s); err != nil {
		return err
	}
	r := d.raw(s, args)
	d.leave()
	return d.check(s, r)
}

// check turns a result into an error. It records the first error that broke the device.
func (d *device) check(s symbol, r result) error {
	if r == success {
		return nil
	}
	err := d.lib.failure(s, r)
	if r.sticky() {
		err.Text += "; the fault may be of work queued earlier, and the GPU's context can't be used again in this process"
		if d.broken.By(err) != err {
			return d.ready(s)
		}
	}
	return err
}

// Err implements driver.Device.
func (d *device) Err() error {
	if cause := d.broken.Cause(); cause != nil {
		return cause
	}
	if d.life.closed() {
		return invalid("Err", "the device is closed")
	}
	return nil
}

// Target implements driver.Device.
func (d *device) Target() driver.Target { return d.target }

// Alloc implements driver.Device.
func (d *device) Alloc(bytes int64) (driver.DevicePtr, error) {
	if bytes <= 0 {
		return 0, invalid("Alloc", "bytes is %d, must be at least 1", bytes)
	}
	var p uint64
	if err := d.do(symMemAlloc, uintptr(unsafe.Pointer(&p)), uintptr(bytes)); err != nil {
		return 0, withText(err, "%d bytes", bytes)
	}
	return driver.DevicePtr(p), nil
}

// Free implements driver.Device.
func (d *device) Free(p driver.DevicePtr) error {
	if p == 0 {
		return nil
	}
	return withText(d.doNumbers(symMemFree, uintptr(p)), "address %#x", uint64(p))
}

// Memory implements driver.Device.
func (d *device) Memory() (free, total int64, err error) {
	var f, t uint64
	if err := d.do(symMemGetInfo, uintptr(unsafe.Pointer(&f)), uintptr(unsafe.Pointer(&t))); err != nil {
		return 0, 0, err
	}
	return int64(f), int64(t), nil
}

// Synchronize implements driver.Device.
func (d *device) Synchronize(ctx context.Context) error {
	return d.block(ctx, &d.life, symCtxSynchronize)
}

// Close implements driver.Device. It releases the context after the last call of other
// goroutines has returned. A second Close does nothing.
func (d *device) Close() error {
	return d.life.close(func() error {
		if !d.owned {
			return nil
		}
		r := d.lib.call(symPrimaryCtxRelease, uintptr(d.ordinal))
		// Releasing a broken context fails, but this error says nothing new.
		if r == success || d.broken.Cause() != nil {
			return nil
		}
		return d.lib.failure(symPrimaryCtxRelease, r)
	})
}

// invalid returns the error for a wrong argument of an operation.
func invalid(op, format string, args ...any) *driver.Error {
	return &driver.Error{Op: op, Name: "invalid value", Text: fmt.Sprintf(format, args...), Kind: driver.ErrInvalid}
}

// withText appends a text to an error of this package. A nil error stays nil.
func withText(err error, format string, args ...any) error {
	e, ok := err.(*driver.Error)
	if !ok || e.Kind == driver.ErrBroken {
		return err
	}
	with := *e
	if with.Text != "" {
		with.Text += ": "
	}
	with.Text += fmt.Sprintf(format, args...)
	return &with
}
