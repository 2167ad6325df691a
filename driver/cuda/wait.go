package cuda

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// pollFor is how long a wait asks again and again before it blocks a thread.
// Most waits in a step of training are shorter.
const pollFor = 200 * time.Microsecond

// handle is a driver object that may be waited for.
type handle struct {
	raw    uintptr
	closed atomic.Bool
	waits  sync.RWMutex // held for reading by calls that Close must outlast
}

// wait waits for what the handle stands for: it polls, then blocks.
func (d *device) wait(ctx context.Context, h *handle, query, block symbol) error {
	for start := time.Now(); time.Since(start) < pollFor; {
		if err := ctx.Err(); err != nil {
			return err
		}
		if done, err := d.done(h, query); done || err != nil {
			return err
		}
		runtime.Gosched()
	}
	return d.block(ctx, &h.waits, block, h.raw)
}

// done asks whether the work that the handle stands for has finished.
func (d *device) done(h *handle, query symbol) (bool, error) {
	if err := d.enter(query); err != nil {
		return false, err
	}
	args := [1]uintptr{h.raw}
	r := d.raw(query, args[:])
	d.leave()
	if r == notReady {
		return false, nil
	}
	return r == success, d.check(query, r)
}

// block makes a call that returns when work is done. When ctx ends first it
// returns ctx's error and leaves the call to a goroutine.
func (d *device) block(ctx context.Context, waits *sync.RWMutex, s symbol, args ...uintptr) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := d.ready(s); err != nil {
		return err
	}
	waits.RLock()
	if ctx.Done() == nil {
		defer waits.RUnlock()
		return d.doSlice(s, args)
	}
	finished := make(chan error, 1)
	go func() {
		defer waits.RUnlock()
		finished <- d.doSlice(s, args)
	}()
	select {
	case err := <-finished:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// afterWaits runs destroy when no call holds waits any more: now, or later
// and in the background where one does. What fails later is not reported.
func afterWaits(waits *sync.RWMutex, destroy func() error) error {
	if waits.TryLock() {
		defer waits.Unlock()
		return destroy()
	}
	go func() {
		waits.Lock()
		defer waits.Unlock()
		_ = destroy()
	}()
	return nil
}
