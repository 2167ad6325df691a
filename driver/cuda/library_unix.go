//go:build (linux || darwin) && (amd64 || arm64)

package cuda

import (
	"runtime"

	"github.com/ebitengine/purego"
)

// defaultNames are tried in order. The system's loader finds the first. The second is the path
// in the Windows Subsystem for Linux.
var defaultNames = []string{"libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1"}

// dlopen opens a library. If this fails, a second call on the same thread returns the reason.
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
