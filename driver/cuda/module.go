package cuda

import (
	"fmt"
	"strings"
	"sync/atomic"
	"unsafe"

	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/devkit"
)

// module is loaded machine code.
type module struct {
	dev *device
	raw uintptr
}

// Load implements gpu.Device. The driver copies code.
func (d *device) Load(code []byte) (gpu.Module, error) {
	if err := d.ready(symModuleLoadDataEx); err != nil {
		return nil, err
	}
	// The driver is not given the image's length, and would read past the end of a truncated
	// image.
	if err := devkit.CheckImage(code, ""); err != nil {
		return nil, err
	}
	j := newJIT()
	defer j.release()
	m := &module{dev: d}
	if load := d.lib.loadModule; load != nil {
		if err := d.loadThrough(load, m, code); err != nil {
			return nil, j.fail(err, gpu.ErrWrongImage)
		}
		return m, nil
	}
	err := d.do(symModuleLoadDataEx, uintptr(unsafe.Pointer(&m.raw)), uintptr(unsafe.Pointer(&code[0])),
		uintptr(j.count), uintptr(unsafe.Pointer(&j.keys[0])), uintptr(unsafe.Pointer(&j.values[0])))
	if err != nil {
		return nil, j.fail(err, gpu.ErrWrongImage)
	}
	return m, nil
}

// loadThrough loads machine code through a Binding's function.
func (d *device) loadThrough(load func([]byte) (uintptr, int), m *module, image []byte) error {
	if err := d.enter(symModuleLoadDataEx); err != nil {
		return err
	}
	defer d.leave()
	d.calls[symModuleLoadDataEx].Add(1)
	raw, code := load(image)
	m.raw = raw
	return d.check(symModuleLoadDataEx, result(code))
}

// Function implements gpu.Module.
func (m *module) Function(name string) (gpu.Function, error) {
	if name == "" || strings.Contains(name, "\x00") {
		return nil, &driver.Error{Op: symModuleGetFunction.String(), Kind: gpu.ErrNotFound,
			Text: fmt.Sprintf("no function can be named %q", name)}
	}
	f := &function{dev: m.dev, name: name}
	text := append([]byte(name), 0)
	err := m.dev.do(symModuleGetFunction, uintptr(unsafe.Pointer(&f.raw)), m.raw, uintptr(unsafe.Pointer(&text[0])))
	if err != nil {
		return nil, withText(err, "function %q", name)
	}
	// Drivers from version 12.4 on load a kernel at its first launch, unless cuFuncLoad was
	// called. Loading may wait for the device, and is not allowed during a capture.
	if m.dev.lib.addr[symFuncLoad] != 0 {
		if err := m.dev.doNumbers(symFuncLoad, f.raw); err != nil {
			return nil, withText(err, "function %q", name)
		}
	}
	return f, nil
}

// Unload implements gpu.Module.
func (m *module) Unload() error { return m.dev.doNumbers(symModuleUnload, m.raw) }

// function is a kernel.
type function struct {
	dev  *device
	raw  uintptr
	name string
	// big reports whether clusters of more than 8 CTAs have been allowed for the function.
	big atomic.Bool
}

// Name implements gpu.Function.
func (f *function) Name() string { return f.name }

// These are function attributes (CUfunction_attribute).
const (
	funcMaxThreads      = 0
	funcStaticShared    = 1
	funcConst           = 2
	funcLocal           = 3
	funcRegisters       = 4
	funcPTXVersion      = 5
	funcBinaryVersion   = 6
	funcMaxDynamic      = 8
	funcCarveout        = 9
	funcBigClusters     = 14
	portableClusterCTAs = 8
)

func (f *function) attribute(a uintptr) (int, error) {
	var v int32
	err := f.dev.do(symFuncGetAttribute, uintptr(unsafe.Pointer(&v)), a, f.raw)
	return int(v), withText(err, "attribute %d of function %q", a, f.name)
}

// Attributes implements gpu.Function.
func (f *function) Attributes() (gpu.FunctionAttributes, error) {
	var a gpu.FunctionAttributes
	for _, q := range []struct {
		attribute uintptr
		to        *int
	}{
		{funcRegisters, &a.Registers}, {funcLocal, &a.LocalBytes}, {funcStaticShared, &a.StaticSharedBytes},
		{funcConst, &a.ConstBytes}, {funcMaxThreads, &a.MaxThreadsPerCTA},
		{funcPTXVersion, &a.PTXVersion}, {funcBinaryVersion, &a.BinaryVersion},
	} {
		v, err := f.attribute(q.attribute)
		if err != nil {
			return gpu.FunctionAttributes{}, err
		}
		*q.to = v
	}
	return a, nil
}

// AllowSharedBytes implements gpu.Function.
func (f *function) AllowSharedBytes(bytes int) error {
	limit := f.dev.target.SharedBytesPerCTA
	if bytes < 0 || bytes > limit {
		return invalid("AllowSharedBytes", "bytes is %d for function %q, must be 0 to %d on %s", bytes, f.name, limit, f.dev.target.Name)
	}
	err := f.dev.doNumbers(symFuncSetAttribute, f.raw, funcMaxDynamic, uintptr(bytes))
	if err == nil {
		// An SM can change the division of its memory between shared memory and L1 only while
		// it has no CTAs. If every kernel uses the same division, the maximum of shared memory,
		// the next kernel can start before this one has ended.
		err = f.dev.doNumbers(symFuncSetAttribute, f.raw, funcCarveout, 100)
	}
	return withText(err, "%d dynamic shared bytes for function %q (%s has %d for a CTA, static ones included)",
		bytes, f.name, f.dev.target.Name, limit)
}
