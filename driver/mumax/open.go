//go:build mumax && cgo

package mumax

import (
	"context"

	"github.com/mumax/3/cuda/cu"

	"sonicmoe/driver"
	"sonicmoe/driver/cuda"
	"sonicmoe/driver/gpu"
)

// init registers this kind of device, so that a program that imports the package can open
// "mumax" and "mumax:1" through package driver/open.
func init() {
	// Register fails only if the program has already registered the name.
	_ = gpu.Register(gpu.Kind{Name: "mumax", Numbered: true,
		Open:  func(ctx context.Context, n int) (driver.Device, error) { return Open(ctx, n, Options{}) },
		Count: func() (int, error) { return cuda.Count(cuda.Options{}) }})
}

// Built reports whether this program was built with the tag mumax and with cgo.
const Built = true

// Options say how a device is opened.
type Options struct {
	// Context is a context of package cu on the GPU that Open opens. It must exist until the
	// device is closed. 0 means the GPU's primary context.
	Context cu.Context
}

// Open opens the GPU with an ordinal, counted from 0. It returns the same errors as Open of
// package driver/cuda.
func Open(ctx context.Context, ordinal int, o Options) (gpu.Device, error) {
	return cuda.Open(ctx, ordinal, cuda.Options{Context: uintptr(o.Context), Binding: &cuda.Binding{
		Functions: functions, LoadModule: loadModule,
	}})
}
