package cuda

import (
	"errors"
	"fmt"
	"unsafe"

	"sonicmoe/driver"
)

// peerEnabled is CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED.
const peerEnabled = 704

// Reach reports whether copies and kernels of this device may use memory of the other one, and
// enables that access. It is false for devices of other packages, of other driver libraries,
// and of GPUs without a connection that the driver allows.
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

// Within calls f on a thread in which the device's context is current, for libraries that work
// in the current context. It fails for a device of another package.
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
