//go:build !(linux && (amd64 || arm64))

package nccl

import (
	"context"
	"errors"
	"runtime"

	"sonicmoe/driver"
	"sonicmoe/moe/parallel"
)

// Connect returns an error, because NCCL exists for Linux only.
func Connect(context.Context, driver.Device, Options) (parallel.Transport, error) {
	return nil, errors.New("NVIDIA has no NCCL for " + runtime.GOOS + "/" + runtime.GOARCH)
}
