//go:build !(mumax && cgo)

package mumax

import (
	"context"

	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
)

// Built reports whether this program was built with the tag mumax and with cgo.
const Built = false

// Options say how a device is opened.
type Options struct {
	// Context is a context of package cu; 0 means the GPU's primary context.
	Context uintptr
}

// Open returns an error, because this program was built without package cu.
func Open(context.Context, int, Options) (gpu.Device, error) {
	return nil, &driver.Error{Op: "open GPU through mumax", Kind: driver.ErrUnsupported,
		Text: "this program was built without the tag mumax or without cgo; see go doc sonicmoe/driver/mumax, or use \"cuda\""}
}
