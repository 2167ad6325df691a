package cuda

import (
	"sync"
	"sync/atomic"
)

// lifetime is that of something which one goroutine may close while others use
// it: it is destroyed when the last of them has left, and nobody enters any more
// once it is closed. Calls of the driver library must not meet what is gone.
type lifetime struct {
	// state is twice the number of users, and 1 more once it is closed.
	state   atomic.Int64
	closing atomic.Bool
	once    sync.Once
	destroy func() error
}

// enter begins a use, which leave ends; false means that it is closed.
func (l *lifetime) enter() bool {
	if l.state.Add(2)&1 == 0 {
		return true
	}
	l.leave()
	return false
}

func (l *lifetime) leave() {
	if l.state.Add(-2) == 1 {
		_ = l.end() // Close has returned: nobody hears of it
	}
}

// closed reports whether close was called.
func (l *lifetime) closed() bool { return l.state.Load()&1 != 0 }

// close lets nobody in any more and destroys: now, or when the last user leaves,
// and then what fails is not reported. A second close does nothing.
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

// use is enter with the error of a closed object, which what names.
func (h *handle) use(op, what string) error {
	if h.enter() {
		return nil
	}
	return invalid(op, "the %s is closed", what)
}
