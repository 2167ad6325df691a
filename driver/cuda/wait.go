package cuda

import (
	"context"
	"runtime"
	"time"

	"sonicmoe/internal/devkit"
)

// pollFor is the time for which a wait polls before it blocks its thread. Most waits in a
// training step are shorter.
const pollFor = 200 * time.Microsecond

// wait waits for the work of the handle, for which the caller has called use. It first polls
// and then blocks.
func (d *device) wait(ctx context.Context, h *handle, query, block symbol) error {
	for start := time.Now(); time.Since(start) < pollFor; {
		if err := devkit.ContextErr(block.String(), ctx); err != nil {
			return err
		}
		if done, err := d.done(h, query); done || err != nil {
			return err
		}
		runtime.Gosched()
	}
	return d.block(ctx, &h.lifetime, block, h.raw)
}

// done reports whether the work of the handle has finished. It allocates nothing.
func (d *device) done(h *handle, query symbol) (bool, error) {
	if err := d.enter(query); err != nil {
		return false, err
	}
	args := numbers.Get().(*[12]uintptr)
	args[0] = h.raw
	r := d.raw(query, args[:1])
	numbers.Put(args)
	d.leave()
	if r == notReady {
		return false, nil
	}
	return r == success, d.check(query, r)
}

// block makes a call that returns once the work is done. If ctx ends first, block returns ctx's
// error. The call then continues in a goroutine, which keeps the object of l in use.
func (d *device) block(ctx context.Context, l *lifetime, s symbol, args ...uintptr) error {
	if err := devkit.ContextErr(s.String(), ctx); err != nil {
		return err
	}
	if ctx.Done() == nil {
		return d.doSlice(s, args)
	}
	if err := d.ready(s); err != nil {
		return err
	}
	if !l.enter() {
		return d.closedError(s)
	}
	finished := make(chan error, 1)
	go func() {
		defer l.leave()
		finished <- d.doSlice(s, args)
	}()
	select {
	case err := <-finished:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
