package cuda

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/devkit"
)

// These are options of compiling and loading (CUjit_option), and CU_JIT_INPUT_PTX.
const (
	jitInfoLog      = 3
	jitInfoLogSize  = 4
	jitErrorLog     = 5
	jitErrorLogSize = 6
	jitOptLevel     = 7
	jitLogVerbose   = 12
	jitLineInfo     = 13

	jitInputPTX = 1
)

// logBytes is the size of each log buffer. The driver cuts longer logs.
const logBytes = 64 << 10

// jit holds the option list of one call, with the log buffers that the driver fills. The driver
// uses the addresses of these arrays until release is called.
type jit struct {
	keys   [8]uint32
	values [8]uintptr // void* slots that hold integers and addresses
	count  int
	info   [logBytes]byte
	errors [logBytes]byte
	pin    runtime.Pinner
}

func newJIT() *jit {
	j := new(jit)
	j.pin.Pin(j)
	j.add(jitInfoLog, uintptr(unsafe.Pointer(&j.info[0])))
	j.add(jitInfoLogSize, logBytes)
	j.add(jitErrorLog, uintptr(unsafe.Pointer(&j.errors[0])))
	j.add(jitErrorLogSize, logBytes)
	j.add(jitLogVerbose, 0)
	return j
}

func (j *jit) add(key uint32, value uintptr) {
	j.keys[j.count], j.values[j.count] = key, value
	j.count++
}

func (j *jit) release() { j.pin.Unpin() }

// log returns the driver's error log, followed by its information log.
func (j *jit) log() string {
	text := func(b []byte) string {
		if n := bytes.IndexByte(b, 0); n >= 0 {
			b = b[:n]
		}
		return strings.TrimSpace(string(b))
	}
	return strings.TrimSpace(text(j.errors[:]) + "\n" + text(j.info[:]))
}

// fail adds the log to an error of compiling or loading, and sets the error's kind. An error of
// a broken device, or an error because memory ran out, keeps its kind.
func (j *jit) fail(err error, kind error) error {
	e, ok := err.(*driver.Error)
	if !ok || errors.Is(e, driver.ErrBroken) || errors.Is(e, driver.ErrOutOfMemory) || errors.Is(e, driver.ErrUnsupported) {
		return err
	}
	with := *e
	with.Kind, with.Log = kind, j.log()
	return &with
}

// Compile implements gpu.Device. If ctx ends first, the driver still finishes compiling, and
// the result is dropped.
func (d *device) Compile(ctx context.Context, ptx []byte, o gpu.CompileOptions) (gpu.Image, error) {
	if err := devkit.ContextErr("Compile", ctx); err != nil {
		return gpu.Image{}, err
	}
	if o.OptLevel < 0 || o.OptLevel > 4 {
		return gpu.Image{}, invalid("compile", "OptLevel is %d, must be 1 to 4, or 0 for the default", o.OptLevel)
	}
	if len(bytes.TrimSpace(ptx)) == 0 || bytes.IndexByte(ptx, 0) >= 0 {
		return gpu.Image{}, &driver.Error{Op: "compile", Kind: gpu.ErrCompile,
			Text: "the PTX is empty or holds a zero byte, must be text"}
	}
	if err := d.ready(symLinkCreate); err != nil {
		return gpu.Image{}, err
	}
	if ctx.Done() == nil {
		return d.compile(ptx, o)
	}
	type answer struct {
		image gpu.Image
		err   error
	}
	answers := make(chan answer, 1)
	go func() {
		image, err := d.compile(ptx, o)
		answers <- answer{image, err}
	}()
	select {
	case a := <-answers:
		return a.image, a.err
	case <-ctx.Done():
		return gpu.Image{}, ctx.Err()
	}
}

// compile compiles PTX with the driver's linker, because only the linker returns
// the machine code.
func (d *device) compile(ptx []byte, o gpu.CompileOptions) (gpu.Image, error) {
	j := newJIT()
	defer j.release()
	if o.OptLevel > 0 {
		j.add(jitOptLevel, uintptr(o.OptLevel))
	}
	if o.LineInfo {
		j.add(jitLineInfo, 1)
	}
	// All calls below must run on one thread, because the linker belongs to the context that is
	// current on it.
	if err := d.enter(symLinkCreate); err != nil {
		return gpu.Image{}, err
	}
	defer d.leave()
	code, s, r := d.link(j, append(bytes.Clone(ptx), 0))
	if err := d.check(s, r); err != nil {
		return gpu.Image{}, j.fail(d.explainVersion(err, ptx), gpu.ErrCompile)
	}
	return gpu.Image{Code: code, Log: j.log()}, nil
}

// link makes machine code from PTX that ends with a zero byte. It also returns the last driver
// function that was called and its result.
func (d *device) link(j *jit, ptx []byte) ([]byte, symbol, result) {
	var state uintptr
	r := d.call(symLinkCreate, uintptr(j.count), uintptr(unsafe.Pointer(&j.keys[0])),
		uintptr(unsafe.Pointer(&j.values[0])), uintptr(unsafe.Pointer(&state)))
	if r != success {
		return nil, symLinkCreate, r
	}
	defer func() { d.call(symLinkDestroy, state) }()
	name := [...]byte{'p', 't', 'x', 0}
	r = d.call(symLinkAddData, state, jitInputPTX, uintptr(unsafe.Pointer(&ptx[0])), uintptr(len(ptx)),
		uintptr(unsafe.Pointer(&name[0])), 0, 0, 0)
	if r != success {
		return nil, symLinkAddData, r
	}
	var image *byte // in the linker's memory, which is freed with the linker
	var size uint64
	r = d.call(symLinkComplete, state, uintptr(unsafe.Pointer(&image)), uintptr(unsafe.Pointer(&size)))
	if r != success {
		return nil, symLinkComplete, r
	}
	return bytes.Clone(unsafe.Slice(image, size)), symLinkComplete, success
}

// call calls function s of the driver library and counts the call. The device's context must be
// current on this thread (see enter).
//
//go:uintptrescapes
func (d *device) call(s symbol, args ...uintptr) result { return d.raw(s, args) }

// explainVersion adds two PTX versions to the error if the text needs a newer version than the
// driver supports: the needed and the supported one. The driver's message does not name both.
func (d *device) explainVersion(err error, ptx []byte) error {
	v := ptxVersion(ptx)
	if limit := d.MaxPTXVersion(); v > limit {
		return withText(err, "the text is PTX %d.%d, this driver (CUDA %s) takes up to %d.%d",
			v/10, v%10, versionText(d.lib.version), limit/10, limit%10)
	}
	return err
}

// ptxVersion returns the version in a .version directive, such as 80 for 8.0, or 0 if there is
// none.
func ptxVersion(ptx []byte) int {
	for line := range strings.Lines(string(ptx[:min(len(ptx), 4096)])) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != ".version" {
			continue
		}
		major, minor, _ := strings.Cut(fields[1], ".")
		a, err1 := strconv.Atoi(major)
		b, err2 := strconv.Atoi(minor)
		if err1 == nil && err2 == nil {
			return 10*a + b
		}
	}
	return 0
}
