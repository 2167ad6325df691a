//go:build linux || darwin

package cuda

import (
	_ "embed"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/outside"
)

//go:embed testdata/fakecuda.c
var fakeSource []byte

// fake is a library compiled from fakecuda.c: a driver library that records its calls.
type fake struct {
	path   string
	handle uintptr
	t      *testing.T
}

// built holds the libraries that were compiled so far, by their compiler flags.
var built = map[string][]byte{}

// newFake compiles a fake library. Each has a file of its own, and therefore a state of its
// own.
func newFake(t *testing.T, flags ...string) *fake {
	cc := outside.CC(t)
	path, key := filepath.Join(t.TempDir(), "libfakecuda.so"), strings.Join(flags, " ")
	if built[key] == nil {
		source := filepath.Join(t.TempDir(), "fakecuda.c")
		require.NoError(t, os.WriteFile(source, fakeSource, 0o600))
		args := append([]string{"-shared", "-fPIC", "-pthread", "-Wall", "-Werror", "-Wno-unused", "-o", path, source}, flags...)
		if runtime.GOOS == "linux" && !strings.Contains(key, "--build-id") {
			args = append(args, "-Wl,--build-id=none")
		}
		out, err := exec.Command(cc, args...).CombinedOutput()
		require.NoError(t, err, "%s", out)
		built[key], err = os.ReadFile(path)
		require.NoError(t, err)
	}
	require.NoError(t, os.WriteFile(path, built[key], 0o700))
	f := &fake{path: path, t: t}
	var err error
	f.handle, err = dlopen(path)
	require.NoError(t, err)
	return f
}

// control calls a function of the fake library that exists only for tests.
//
//go:uintptrescapes
func (f *fake) control(name string, args ...uintptr) {
	addr, err := dlsym(f.handle, name)
	require.NoError(f.t, err)
	syscallN(addr, args)
}

// fail makes a driver function return code until fail is called again. Code 0 means success.
func (f *fake) fail(s symbol, code int) {
	name := append([]byte(s.String()), 0)
	f.control("fake_fail", uintptr(unsafe.Pointer(&name[0])), uintptr(code))
}

// set sets the number of queries for which work is not ready, the duration of a blocking wait
// in milliseconds, and the number of GPUs.
func (f *fake) set(notReady, blockMS, gpus int) {
	f.control("fake_set", uintptr(notReady), uintptr(blockMS), uintptr(gpus))
}

// late returns the number of calls that used a context or a stream after it was destroyed.
func (f *fake) late() int {
	addr, err := dlsym(f.handle, "fake_late")
	require.NoError(f.t, err)
	return int(int32(syscallN(addr, nil)))
}

// log returns the calls that the library received since the previous log.
func (f *fake) log() string {
	var text *byte
	f.control("fake_log", uintptr(unsafe.Pointer(&text)))
	s := goString(text)
	f.control("fake_clear")
	return s
}

// open opens the first GPU of the fake library.
func (f *fake) open() *device {
	dev, err := Open(f.t.Context(), 0, Options{Library: f.path})
	require.NoError(f.t, err)
	f.log()
	return dev.(*device)
}

// kernel compiles and loads a kernel with the fake library.
func (f *fake) kernel(dev gpu.Device) *function {
	image, err := dev.Compile(f.t.Context(), []byte("kernel"), gpu.CompileOptions{})
	require.NoError(f.t, err)
	m, err := dev.Load(image.Code)
	require.NoError(f.t, err)
	k, err := m.Function("kernel")
	require.NoError(f.t, err)
	f.log()
	return k.(*function)
}

func (f *fake) stream(dev driver.Device) *stream {
	s, err := dev.NewStream()
	require.NoError(f.t, err)
	f.log()
	return s.(*stream)
}
