package emulated

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"regexp"
	"strconv"
	"sync/atomic"

	"sonicmoe/driver"
	"sonicmoe/ptx/emu"
)

// header starts machine code, before the checksum of the PTX and the PTX.
var header = []byte("emulated machine code 1\n")

// Compile checks that the emulator can run the PTX. An error's log reads like
// an assembler's, "line 12; error: ...".
func (d *device) Compile(ctx context.Context, text []byte, o driver.CompileOptions) (driver.Image, error) {
	if err := d.ready("compile"); err != nil {
		return driver.Image{}, err
	}
	if o.OptLevel < 0 || o.OptLevel > 4 {
		return driver.Image{}, invalid("compile", "OptLevel is %d, must be 0 to 4", o.OptLevel)
	}
	if err := ctx.Err(); err != nil {
		return driver.Image{}, err
	}
	text = bytes.TrimRight(text, "\x00")
	m, err := emu.Load(text)
	switch {
	case err != nil:
	case len(bytes.TrimSpace(text)) == 0:
		err = errors.New("line 1: the text is empty, it must start with .version")
	case m.Version() > maxPTXVersion:
		err = errors.New("line 1: .version is newer than 9.0, the newest that is known here")
	}
	if err != nil {
		e := &driver.Error{Op: "compile", Kind: driver.ErrCompile, Text: "the emulator refuses this PTX", Log: err.Error()}
		if at := lineNumber.FindStringSubmatch(e.Log); at != nil {
			e.Line, _ = strconv.Atoi(at[1])
		}
		return driver.Image{}, e
	}
	sum := sha256.Sum256(text)
	return driver.Image{Code: bytes.Join([][]byte{header, sum[:], text}, nil)}, nil
}

var lineNumber = regexp.MustCompile(`\bline (\d+)`)

func (d *device) Load(code []byte) (driver.Module, error) {
	if err := d.ready("load"); err != nil {
		return nil, err
	}
	rest, ok := bytes.CutPrefix(code, header)
	if ok && len(rest) > sha256.Size {
		sum, text := [sha256.Size]byte(rest), rest[sha256.Size:]
		if sha256.Sum256(text) == sum {
			m, err := emu.Load(text)
			if err != nil {
				return nil, &driver.Error{Op: "load", Kind: driver.ErrWrongImage, Cause: err}
			}
			return &module{dev: d, m: m}, nil
		}
	}
	return nil, &driver.Error{Op: "load", Kind: driver.ErrWrongImage, Text: "this is not what the emulated device compiled, or not all of it"}
}

// module implements driver.Module.
type module struct {
	dev *device
	m   *emu.Module
}

func (m *module) Function(name string) (driver.Function, error) {
	if err := m.dev.ready("function"); err != nil {
		return nil, err
	}
	k, err := m.m.Kernel(name)
	if err != nil {
		return nil, &driver.Error{Op: "function", Kind: driver.ErrNotFound, Text: "no kernel is named " + strconv.Quote(name)}
	}
	return &function{dev: m.dev, kernel: k, version: m.m.Version()}, nil
}

func (m *module) Unload() error { return nil }

// defaultShared is the dynamic shared memory that needs no asking.
const defaultShared = 48 << 10

// function implements driver.Function.
type function struct {
	dev     *device
	kernel  *emu.Kernel
	version int
	allowed atomic.Int64 // shared bytes, where more than the default
}

func (f *function) Name() string { return f.kernel.Name() }

func (f *function) Attributes() (driver.FunctionAttributes, error) {
	if err := f.dev.ready("attributes"); err != nil {
		return driver.FunctionAttributes{}, err
	}
	t := f.dev.o.Target
	return driver.FunctionAttributes{
		Registers: min(f.kernel.Registers(), 255), StaticSharedBytes: f.kernel.StaticSharedBytes(),
		ConstBytes: f.kernel.ParamBytes(), MaxThreadsPerCTA: f.kernel.MaxThreads(),
		PTXVersion: f.version, BinaryVersion: 10*t.Major + t.Minor,
	}, nil
}

func (f *function) AllowSharedBytes(n int) error {
	if err := f.dev.ready("AllowSharedBytes"); err != nil {
		return err
	}
	if most := f.dev.o.Target.SharedBytesPerCTA - f.kernel.StaticSharedBytes(); n < 0 || n > most {
		return invalid("AllowSharedBytes", "%d bytes for kernel %s, a CTA has at most %d here", n, f.Name(), most)
	}
	f.allowed.Store(int64(n))
	return nil
}

// own checks that the function is of this device and the launch legal.
func (d *device) own(op string, f driver.Function, l *driver.Launch) (*function, error) {
	if err := d.ready(op); err != nil {
		return nil, err
	}
	fn, ok := f.(*function)
	if !ok || fn.dev != d {
		return nil, invalid(op, "the function is not of this device")
	}
	if err := l.Check(); err != nil {
		return nil, err
	}
	most := max(int(fn.allowed.Load()), defaultShared-fn.kernel.StaticSharedBytes())
	if l.SharedBytes > most {
		return nil, invalid(op, "SharedBytes is %d, kernel %q allows %d: call AllowSharedBytes first", l.SharedBytes, fn.Name(), most)
	}
	if n := l.Block.Count(); n > fn.kernel.MaxThreads() {
		return nil, invalid(op, "Block is %d threads, kernel %q was compiled for at most %d", n, fn.Name(), fn.kernel.MaxThreads())
	}
	return fn, nil
}
