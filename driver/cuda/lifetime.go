package cuda

import (
	"sync"
	"sync/atomic"
)

// lifetime protects an object that one goroutine may close while others use it. Once the object
// is closed, no use can begin. The object is destroyed when its last use has ended. No call of
// the driver library can therefore use a destroyed object.
type lifetime struct {
	// state is twice the number of uses, plus 1 once the object is closed.
	state   atomic.Int64
	closing atomic.Bool
	once    sync.Once
	destroy func() error
}

// enter begins a use, which leave ends. It returns false if the object is closed.
func (l *lifetime) enter() bool {
	if l.state.Add(2)&1 == 0 {
		return true
	}
	l.leave()
	return false
}

func (l *lifetime) leave() {
	if l.state.Add(-2) == 1 {
		_ = l.end() // Close has already returned, so the error cannot be reported
	}
}

// closed reports whether close was called.
func (l *lifetime) closed() bool { return l.state.Load()&1 != 0 }

// close ends the admission of uses. The object is destroyed at once, or when the last use ends.
// In the second case an error of destroy is dropped. A second close does nothing.
func (l *lifetime) close(destroy func() error) error {
	if l.closing.Swap(true) {
		return nil
	}
	l.destroy = destroy
	if l.state.Add(1) == 1 {
		return l.end()
	}
	return nil
}

func (l *lifetime) end() (err error) {
	l.once.Do(func() { err = l.destroy() })
	return err
}

// handle is a driver object with its lifetime.
type handle struct {
	raw uintptr
	lifetime
}

// use is enter, with an error if the object is closed. The error says which operation op was
// refused for which object what.
func (h *handle) use(op, what string) error {
	if h.enter() {
		return nil
	}
	return invalid(op, "the %s is closed", what)
}
