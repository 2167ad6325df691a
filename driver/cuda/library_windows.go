//go:build windows && (amd64 || arm64)

package cuda

import (
	"syscall"

	"github.com/ebitengine/purego"
)

var defaultNames = []string{"nvcuda.dll"}

func dlopen(name string) (uintptr, error) {
	h, err := syscall.LoadLibrary(name)
	return uintptr(h), err
}

func dlsym(handle uintptr, name string) (uintptr, error) {
	return syscall.GetProcAddress(syscall.Handle(handle), name)
}

func syscallN(fn uintptr, args []uintptr) uintptr {
	r, _, _ := purego.SyscallN(fn, args...)
	return r
}
