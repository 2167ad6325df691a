//go:build (linux || darwin) && (amd64 || arm64)

package cuda

import (
	"runtime"

	"github.com/ebitengine/purego"
)

// defaultNames are tried in order: the bare name, which the system's loader
// resolves, then where Windows' Linux subsystem keeps it.
var defaultNames = []string{"libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1"}

// dlopen opens a library. Why it could not is a second call, whose answer is
// the calling thread's.
func dlopen(name string) (uintptr, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_LOCAL)
}

func dlsym(handle uintptr, name string) (uintptr, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return purego.Dlsym(handle, name)
}

func syscallN(fn uintptr, args []uintptr) uintptr {
	r, _, _ := purego.SyscallN(fn, args...)
	return r
}
