package emulated

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"

	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/devkit"
	"sonicmoe/ptx/emu"
)

// imageMagic begins machine code. The SHA-256 of the PTX text and the text itself follow.
const imageMagic = "sonicmoe " + producer + "\n"

var logLine = regexp.MustCompile(`\bline (\d+)(?:: )?`)

// Compile implements gpu.Device: it parses and verifies the PTX.
func (d *device) Compile(ctx context.Context, ptx []byte, o gpu.CompileOptions) (gpu.Image, error) {
	if err := d.ready("Compile"); err != nil {
		return gpu.Image{}, err
	}
	if err := devkit.ContextErr("Compile", ctx); err != nil {
		return gpu.Image{}, err
	}
	if o.OptLevel < 0 || o.OptLevel > 4 {
		return gpu.Image{}, invalid("Compile", "OptLevel is %d, must be 0 to 4", o.OptLevel)
	}
	sum := sha256.Sum256(ptx)
	m, err := decode(ptx, sum)
	switch {
	case err != nil:
		return gpu.Image{}, &driver.Error{Op: "Compile", Kind: gpu.ErrCompile, Log: compilerLog(err)}
	case m.Version() == 0:
		return gpu.Image{}, &driver.Error{Op: "Compile", Kind: gpu.ErrCompile,
			Log: "ptxas emulated, line 1; fatal   : Missing .version directive"}
	case m.Version() > maxPTXVersion:
		return gpu.Image{}, &driver.Error{Op: "Compile", Kind: gpu.ErrCompile,
			Log: fmt.Sprintf("ptxas emulated, line 1; fatal   : Unsupported .version %d.%d; current version is '%d.%d'",
				m.Version()/10, m.Version()%10, maxPTXVersion/10, maxPTXVersion%10)}
	}
	return gpu.Image{Code: append(append([]byte(imageMagic), sum[:]...), ptx...)}, nil
}

// compilerLog formats an error of the emulator like an assembler's log: one line for each
// error, which starts with the number of the PTX line.
func compilerLog(err error) string {
	var log strings.Builder
	for _, text := range strings.Split(err.Error(), "\n") {
		line := "1"
		if at := logLine.FindStringSubmatchIndex(text); at != nil {
			line = text[at[2]:at[3]]
			text = text[:at[0]] + text[at[1]:]
		}
		fmt.Fprintf(&log, "ptxas emulated, line %s; error   : %s\n", line, strings.TrimPrefix(text, "ptx: "))
	}
	return log.String()
}

// module implements gpu.Module.
type module struct {
	dev    *device
	code   *emu.Module
	closed atomic.Bool

	mu        sync.Mutex
	functions map[string]*function
}

// Load implements gpu.Device.
func (d *device) Load(code []byte) (gpu.Module, error) {
	if err := d.ready("Load"); err != nil {
		return nil, err
	}
	wrong := func(text string) error {
		return &driver.Error{Op: "Load", Kind: gpu.ErrWrongImage, Text: text}
	}
	rest, ok := bytes.CutPrefix(code, []byte(imageMagic))
	if !ok || len(rest) < sha256.Size {
		return nil, wrong("this is no machine code of " + producer)
	}
	text := rest[sha256.Size:]
	sum := sha256.Sum256(text)
	if !bytes.Equal(sum[:], rest[:sha256.Size]) {
		return nil, wrong("the checksum is wrong: the image is damaged")
	}
	m, err := decode(text, sum)
	if err != nil {
		return nil, &driver.Error{Op: "Load", Kind: gpu.ErrWrongImage, Cause: err}
	}
	return &module{dev: d, code: m, functions: map[string]*function{}}, nil
}

func (m *module) Function(name string) (gpu.Function, error) {
	if err := m.dev.ready("Function"); err != nil {
		return nil, err
	}
	if m.closed.Load() {
		return nil, invalid("Function", "the module is unloaded")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if f := m.functions[name]; f != nil {
		return f, nil
	}
	k, err := m.code.Kernel(name)
	if err != nil {
		return nil, &driver.Error{Op: "Function", Text: fmt.Sprintf("the module has no kernel %q", name), Kind: gpu.ErrNotFound}
	}
	f := &function{module: m, kernel: k}
	m.functions[name] = f
	return f, nil
}

func (m *module) Unload() error {
	m.closed.Store(true)
	return nil
}

// defaultShared is the largest dynamic shared memory of a launch, in bytes, unless
// AllowSharedBytes raises it.
const defaultShared = 48 << 10

// function implements gpu.Function.
type function struct {
	module  *module
	kernel  *emu.Kernel
	allowed atomic.Int64 // largest dynamic shared memory in bytes, if above the default
}

func (f *function) Name() string { return f.kernel.Name() }

// Attributes implements gpu.Function. Registers is the number of registers that the kernel's
// launch bounds allow for a thread, because the emulator allocates no registers.
func (f *function) Attributes() (gpu.FunctionAttributes, error) {
	if err := f.module.dev.ready("Attributes"); err != nil {
		return gpu.FunctionAttributes{}, err
	}
	return gpu.FunctionAttributes{
		Registers:         min(f.kernel.Registers(), 255),
		StaticSharedBytes: f.kernel.StaticSharedBytes(),
		ConstBytes:        devkit.ParamBase + f.kernel.ParamBytes(),
		MaxThreadsPerCTA:  f.kernel.MaxThreads(),
		PTXVersion:        f.module.code.Version(),
		BinaryVersion:     90,
	}, nil
}

func (f *function) AllowSharedBytes(bytes int) error {
	if err := f.module.dev.ready("AllowSharedBytes"); err != nil {
		return err
	}
	limit := f.module.dev.options.Target.SharedBytesPerCTA - f.kernel.StaticSharedBytes()
	if bytes < 0 || bytes > limit {
		return invalid("AllowSharedBytes", "bytes is %d, must be 0 to %d", bytes, limit)
	}
	f.allowed.Store(int64(bytes))
	return nil
}

// sharedLimit returns the largest dynamic shared memory of a launch, in bytes.
func (f *function) sharedLimit() int {
	return max(int(f.allowed.Load()), defaultShared-f.kernel.StaticSharedBytes())
}
