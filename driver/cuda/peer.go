package cuda

import (
	"errors"
	"fmt"
	"unsafe"

	"sonicmoe/driver"
)

// peerEnabled is CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED.
const peerEnabled = 704

// Reach reports whether copies and kernels of this device may use memory of the device other.
// If so, it enables the access. It is false if other is a device of another package or of
// another driver library, and if the driver allows no access between the two GPUs.
func (d *device) Reach(other driver.Device) (bool, error) {
	o, ok := other.(*device)
	if !ok || o.lib != d.lib {
		return false, nil
	}
	if o.context == d.context {
		return true, nil
	}
	var can int32
	if err := d.do(symDeviceCanAccessPeer, uintptr(unsafe.Pointer(&can)), uintptr(d.ordinal), uintptr(o.ordinal)); err != nil || can == 0 {
		if errors.Is(err, driver.ErrUnsupported) {
			err = nil
		}
		return false, err
	}
	err := d.doNumbers(symCtxEnablePeerAccess, o.context[0], 0)
	var of *driver.Error
	if errors.As(err, &of) && of.Code == peerEnabled {
		err = nil
	}
	return err == nil, err
}

// Within calls f on a thread on which the device's context is current. It is for libraries that
// work in the current context. It fails for a device of another package.
func Within(dev driver.Device, f func() error) error {
	d, ok := dev.(*device)
	if !ok {
		return &driver.Error{Op: symCtxSetCurrent.String(), Kind: driver.ErrUnsupported, Text: fmt.Sprintf("the device is a %T, want one of this package", dev)}
	}
	if err := d.enter(symCtxSetCurrent); err != nil {
		return err
	}
	defer d.leave()
	return f()
}
