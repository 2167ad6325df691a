package faulty

import (
	"fmt"
	"sync/atomic"

	"sonicmoe/driver"
)

// Fault describes a call that fails.
type Fault struct {
	// Op is the operation that fails. If Op is [Any], calls of all operations are counted.
	Op Op
	// N is the number of the call that fails, counted from 1 after Arm.
	N int64
	// Err is the error of the call. If it is nil, the error is a *driver.Error that names the
	// operation and the number of the call.
	Err error
	// Break reports whether the fault breaks the device. The call and every later call then
	// fail with a *driver.Error of kind driver.ErrBroken.
	Break bool
}

// armed is a Fault, with the state that shows whether it has happened.
type armed struct {
	Fault
	left atomic.Int64
}

// Arm makes one call fail. It replaces an earlier fault.
func (d *Device) Arm(f Fault) {
	a := &armed{Fault: f}
	a.left.Store(f.N)
	d.fault.Store(a)
}

// Disarm removes the fault and reports whether it has happened.
func (d *Device) Disarm() (struck bool) {
	a := d.fault.Swap(nil)
	return a != nil && a.left.Load() <= 0
}

// Before sets a hook that is called before each operation. If the hook returns an error, the
// operation returns the error and has no effect. The hook may block, and several goroutines may
// call it at once. A nil hook removes the hook.
func (d *Device) Before(hook func(Op) error) {
	if hook == nil {
		d.hook.Store(nil)
		return
	}
	d.hook.Store(&hook)
}

// Count returns the number of calls of an operation since Wrap or ResetCounts, including failed
// calls.
func (d *Device) Count(o Op) int64 { return d.counts[o].Load() }

// ResetCounts sets all counts to 0.
func (d *Device) ResetCounts() {
	for i := range d.counts {
		d.counts[i].Store(0)
	}
}

// try makes a call, unless enter returns an error.
func (d *Device) try(o Op, call func() error) error {
	if err := d.enter(o); err != nil {
		return err
	}
	return call()
}

func try[T any](d *Device, o Op, call func() (T, error)) (result T, err error) {
	if err := d.enter(o); err != nil {
		return result, err
	}
	return call()
}

// made makes a call that creates an object, counts the object as live, and wraps it.
func made[T, W any](d *Device, o Op, alive *atomic.Int64, call func() (T, error), wrap func(T) W) (wrapped W, err error) {
	inner, err := try(d, o, call)
	if err != nil {
		return wrapped, err
	}
	alive.Add(1)
	return wrap(inner), nil
}

// release makes a call that releases an object. The first call that succeeds lowers the count
// of live objects.
func (d *Device) release(o Op, alive *atomic.Int64, closed *atomic.Bool, call func() error) error {
	err := d.try(o, call)
	if err == nil && !closed.Swap(true) {
		alive.Add(-1)
	}
	return err
}

// enter counts a call and returns the error that the call must fail with, or nil.
func (d *Device) enter(o Op) error {
	d.counts[Any].Add(1)
	n := d.counts[o].Add(1)
	if err := d.broken.Refuse(o.String()); err != nil && !o.releases() {
		return err
	}
	if hook := d.hook.Load(); hook != nil {
		if err := (*hook)(o); err != nil {
			return err
		}
	}
	a := d.fault.Load()
	if a == nil || a.Op != Any && a.Op != o || a.left.Add(-1) != 0 {
		return nil
	}
	if a.Break {
		return d.broken.By(&driver.Error{Op: o.String(), Name: "injected fault", Text: fmt.Sprintf("call %d broke the device", n), Kind: driver.ErrBroken, Cause: a.Err})
	}
	if a.Err != nil {
		return a.Err
	}
	return &driver.Error{Op: o.String(), Name: "injected fault", Text: fmt.Sprintf("call %d was made to fail", n)}
}
