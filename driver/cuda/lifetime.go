package cuda

import (
	"sync"
	"sync/atomic"
)

// lifetime protects an object that one goroutine may close while others use it.
// Closing destroys the object when its last user has left. After that no user can
// enter, so that no call of the driver library uses a destroyed object.
type lifetime struct {
	// state is twice the number of users, plus 1 after close.
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

// close admits no more users and destroys the object, now or when the last user
// leaves. In the second case an error of destroy is dropped. A second close does
// nothing.
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

// handle is an object of the driver.
type handle struct {
	raw uintptr
	lifetime
}

// use is enter with an error if the object is closed. what names the object.
func (h *handle) use(op, what string) error {
	if h.enter() {
		return nil
	}
	return invalid(op, "the %s is closed", what)
}
