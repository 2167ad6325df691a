package cuda

import (
	"context"
	"fmt"
	"unsafe"

	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/devkit"
)

// Options say how a device is opened. The zero value suits most programs.
type Options struct {
	// Library is the file name or path of the driver library. If it is empty, SONICMOE_LIBCUDA
	// decides. If that is not set either, the usual names are tried.
	Library string
	// Context is a CUcontext made by another library on the GPU of the given ordinal.
	// It must exist until the device is closed. 0 means the GPU's primary context.
	Context uintptr
	// Binding replaces some functions of the library. Nil means none.
	Binding *Binding
}

// Binding replaces functions of the driver library. It is for a program that calls the library
// through another package, if both must share state. Package driver/mumax uses it.
type Binding struct {
	// Functions has the replacements by the names of the library's functions, including the
	// version suffix: "cuMemAlloc_v2". args are the arguments of the C function, and the result
	// is a CUresult. Objects whose addresses are in args stay in place until the call returns.
	Functions map[string]func(args []uintptr) int
	// LoadModule is called instead of cuModuleLoadDataEx. The machine code was already checked
	// to be complete. LoadModule returns a CUmodule and a CUresult.
	LoadModule func(image []byte) (module uintptr, code int)
}

// through returns the library with the binding's functions instead of its own.
func (l *library) through(b *Binding) (*library, error) {
	if b == nil {
		return l, nil
	}
	bound := *l
	bound.loadModule = b.LoadModule
	for name, f := range b.Functions {
		s, ok := symbolOf(name)
		if !ok {
			return nil, fmt.Errorf("a binding replaces %s, which this package never calls", name)
		}
		bound.bound[s] = f
	}
	return &bound, nil
}

// Open opens the GPU with an ordinal, which the driver counts from 0 (CUDA_VISIBLE_DEVICES
// applies). A GPU of any compute capability can be opened; see its Target. If no GPU can be
// used, the error wraps driver.ErrNoDevice and lists what was tried.
//
// If ctx ends before the driver has answered, Open returns ctx's error.
func Open(ctx context.Context, ordinal int, o Options) (gpu.Device, error) {
	if err := devkit.ContextErr("Open", ctx); err != nil {
		return nil, err
	}
	type answer struct {
		dev *device
		err error
	}
	answers := make(chan answer, 1)
	go func() {
		dev, err := open(ordinal, o)
		answers <- answer{dev, err}
	}()
	select {
	case a := <-answers:
		if a.err != nil {
			return nil, &driver.Error{Op: fmt.Sprintf("open GPU %d", ordinal), Kind: driver.ErrNoDevice, Cause: a.err}
		}
		return a.dev, nil
	case <-ctx.Done():
		go func() {
			if a := <-answers; a.err == nil {
				_ = a.dev.Close()
			}
		}()
		return nil, ctx.Err()
	}
}

func open(ordinal int, o Options) (*device, error) {
	lib, _, err := openLibrary(o.Library)
	if err != nil {
		return nil, err
	}
	if lib, err = lib.through(o.Binding); err != nil {
		return nil, err
	}
	var count int32
	if r := lib.call(symDeviceGetCount, uintptr(unsafe.Pointer(&count))); r != success {
		return nil, lib.failure(symDeviceGetCount, r)
	}
	if ordinal < 0 || ordinal >= int(count) {
		return nil, fmt.Errorf("%s (CUDA %s) shows %d GPUs, counted from 0", lib.name, versionText(lib.version), count)
	}
	d := &device{lib: lib, context: [1]uintptr{o.Context}}
	if r := lib.call(symDeviceGet, uintptr(unsafe.Pointer(&d.ordinal)), uintptr(ordinal)); r != success {
		return nil, lib.failure(symDeviceGet, r)
	}
	if d.target, err = lib.target(d.ordinal); err != nil {
		return nil, err
	}
	if o.Context == 0 {
		if r := lib.call(symPrimaryCtxRetain, uintptr(unsafe.Pointer(&d.context[0])), uintptr(d.ordinal)); r != success {
			return nil, lib.failure(symPrimaryCtxRetain, r)
		}
		d.owned = true
	}
	return d, nil
}

// These are device attributes (CUdevice_attribute).
const (
	attrClockRate         = 13
	attrSMs               = 16
	attrMemoryClockRate   = 36
	attrMemoryBusWidth    = 37
	attrL2Bytes           = 38
	attrMajor             = 75
	attrMinor             = 76
	attrSharedBytesPerSM  = 81
	attrRegistersPerSM    = 82
	attrSharedBytesPerCTA = 97
)

// target reads the properties of a GPU from the driver. It needs no context.
func (l *library) target(ordinal int32) (driver.Target, error) {
	var t driver.Target
	var name [256]byte
	if r := l.call(symDeviceGetName, uintptr(unsafe.Pointer(&name[0])), uintptr(len(name)-1), uintptr(ordinal)); r != success {
		return t, l.failure(symDeviceGetName, r)
	}
	t.Name = goString(&name[0])
	for _, a := range []struct {
		attribute uintptr
		to        *int
	}{
		{attrMajor, &t.Major}, {attrMinor, &t.Minor}, {attrSMs, &t.SMs},
		{attrSharedBytesPerCTA, &t.SharedBytesPerCTA}, {attrSharedBytesPerSM, &t.SharedBytesPerSM},
		{attrRegistersPerSM, &t.RegistersPerSM}, {attrL2Bytes, &t.L2Bytes},
		{attrClockRate, &t.ClockKHz}, {attrMemoryClockRate, &t.MemoryClockKHz}, {attrMemoryBusWidth, &t.MemoryBusBits},
	} {
		var v int32
		if r := l.call(symDeviceGetAttribute, uintptr(unsafe.Pointer(&v)), a.attribute, uintptr(ordinal)); r != success {
			return t, l.failure(symDeviceGetAttribute, r)
		}
		*a.to = int(v)
	}
	t.Arch = fmt.Sprintf("sm_%d%d", t.Major, t.Minor)
	if t.Major >= 9 {
		t.Arch += "a" // the suffix for features that only this architecture has
	}
	return t, nil
}
