//go:build !((linux || darwin || windows) && (amd64 || arm64))

package cuda

import (
	"errors"
	"runtime"
)

var defaultNames = []string{"libcuda.so.1"}

var errPlatform = errors.New("NVIDIA has no driver for " + runtime.GOOS + "/" + runtime.GOARCH)

func dlopen(string) (uintptr, error)         { return 0, errPlatform }
func dlsym(uintptr, string) (uintptr, error) { return 0, errPlatform }

// syscallN is never called, because no library can be opened on this system.
func syscallN(uintptr, []uintptr) uintptr { return 0 }
