//go:build cgo && linux

package main

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"

	"sonicmoe/examples/emulate/fatbin"
	"sonicmoe/ptx/emu"
)

// module is one fat binary or PTX text of the program. The library decodes it at its first use.
type module struct {
	text   func() ([]byte, error)
	once   sync.Once
	code   *emu.Module
	err    error
	ptx    []byte
	number int // counts the modules whose PTX was read, from 1

	binding sync.Mutex
	managed []managed // variables whose addresses the program does not know yet
}

// function is a kernel of a module.
type function struct {
	module *module
	name   string

	mu           sync.Mutex
	kernel       *emu.Kernel
	dynamic      int // bytes of dynamic shared memory that the program has asked for, or 0
	nonPortable  bool
	carveout     int32
	mustSpecify  bool
	needsCluster [3]int
}

// variable is a variable of a module in global or constant memory.
type variable struct {
	module *module
	name   string
}

var modulesRead atomic.Int32

// load decodes the module's PTX.
func (m *module) load() (*emu.Module, error) {
	m.once.Do(func() {
		text, err := m.text()
		if err != nil {
			m.err = err
			return
		}
		m.ptx, m.number = text, int(modulesRead.Add(1))
		m.save(dev().options.PTX)
		if m.code, err = emu.Load(text); err != nil {
			m.err = failed(invalidPTX, "%v", err)
		}
	})
	return m.code, m.err
}

// fromMemory returns a module from an address at which a fat binary, its wrapper or a PTX text
// begins.
func fromMemory(address uintptr) *module {
	return &module{text: func() ([]byte, error) {
		if address == 0 {
			return nil, failed(invalidValue, "the module's address is 0")
		}
		const wrapper = 0x466243b1
		if *(*uint32)(at(address)) == wrapper {
			address = *(*uintptr)(at(address + 8))
		}
		return content(hostBytes(address, fatbin.HeaderBytes), func(n int) []byte { return hostBytes(address, n) }, func() []byte { return []byte(hostText(address)) })
	}}
}

// fromFile returns the module of a file with a fat binary or a PTX text.
func fromFile(name string) *module {
	return &module{text: func() ([]byte, error) {
		data, err := os.ReadFile(name)
		if err != nil {
			return nil, failed(fileNotFound, "%v", err)
		}
		return content(data, func(n int) []byte { return data[:min(n, len(data))] }, func() []byte { return data })
	}}
}

// content returns the PTX of a module, whose first bytes are begin. binary returns the first n bytes
// of a fat binary, and text returns a PTX text.
func content(begin []byte, binary func(n int) []byte, text func() []byte) ([]byte, error) {
	if n, err := fatbin.Size(begin); err == nil {
		ptx, err := fatbin.PTX(binary(n))
		if errors.Is(err, fatbin.ErrNoPTX) {
			return nil, failed(noImage, "%v", err)
		}
		return ptx, err
	}
	if len(begin) >= 4 && string(begin[:4]) == "\x7fELF" {
		return nil, failed(noImage, "the module is machine code: the emulator needs PTX")
	}
	return text(), nil
}

// decoded returns the function's kernel.
func (f *function) decoded() (*emu.Kernel, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.kernel != nil {
		return f.kernel, nil
	}
	m, err := f.module.load()
	if err != nil {
		return nil, err
	}
	if f.kernel, err = m.Kernel(f.name); err != nil {
		return nil, failed(notFound, "%v", err)
	}
	return f.kernel, nil
}

// place returns the address and the size of the variable with a handle.
func (d *device) place(h uintptr) (address uintptr, bytes int, err error) {
	d.mu.Lock()
	v, ok := d.variables[h]
	d.mu.Unlock()
	if !ok {
		return 0, 0, failed(invalidSymbol, "%#x is not a __device__ or __constant__ variable", h)
	}
	return d.variable(v.module, v.name)
}

func (d *device) variable(m *module, name string) (address uintptr, bytes int, err error) {
	code, err := m.load()
	if err != nil {
		return 0, 0, err
	}
	to, n, err := d.mem.Variable(code, name)
	if err != nil {
		return 0, 0, failed(notFound, "%v", err)
	}
	return uintptr(to), int(n), nil
}

// function returns the kernel with a handle. In the runtime the handle of a kernel is the address of
// the kernel's host function, the function of the program that launches the kernel. In the driver
// it is a CUfunction.
func (d *device) function(h uintptr) (*function, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f, ok := d.functions[h]
	if !ok {
		return nil, failed(invalidFunction, "%#x is not a kernel", h)
	}
	return f, nil
}
