package devkit

import (
	"sync/atomic"
	"time"

	"sonicmoe/driver"
)

// Breakage records the first error that broke a device. Implementations of devices use it. The
// zero value belongs to a device that works.
type Breakage struct {
	first atomic.Pointer[fault]
}

type fault struct {
	cause *driver.Error
	at    time.Time
}

// By records that the device broke with the error e. It returns the first error that broke the
// device, which is e or an earlier error.
func (b *Breakage) By(e *driver.Error) *driver.Error {
	b.first.CompareAndSwap(nil, &fault{e, time.Now()})
	return b.first.Load().cause
}

// Cause returns the error that broke the device, or nil while the device works.
func (b *Breakage) Cause() *driver.Error {
	if f := b.first.Load(); f != nil {
		return f.cause
	}
	return nil
}

// Refuse returns the error of an operation on a broken device, or nil while the device works.
// The error names the operation, the cause and the time of the cause. It wraps the cause, and
// has the cause's kernel and line.
func (b *Breakage) Refuse(op string) error {
	f := b.first.Load()
	if f == nil {
		return nil
	}
	return &driver.Error{Op: op, Text: "not tried, the device broke at " + f.at.Format("15:04:05.000"),
		Kernel: f.cause.Kernel, Line: f.cause.Line, Kind: driver.ErrBroken, Cause: f.cause}
}
