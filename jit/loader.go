package jit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/singleflight"

	"sonicmoe/cache"
	"sonicmoe/driver"
	"sonicmoe/ptx"
)

// Source is a kernel to load.
type Source struct {
	Module *ptx.Module
	// Name is the entry's name.
	Name string
	// SharedBytes is the dynamic shared memory that launches will ask for.
	SharedBytes int
	// Label is for people who list the cache.
	Label string
}

// Origin is where a function's machine code came from.
type Origin uint8

// Origins, by rising cost.
const (
	// Loaded: this process had it already.
	Loaded Origin = iota
	// Cached: machine code from disk.
	Cached
	// Compiled: the device's assembler ran.
	Compiled
)

// String names the origin.
func (o Origin) String() string { return [...]string{"loaded", "cached", "compiled"}[o] }

// Function is a loaded kernel.
type Function struct {
	driver.Function
	Origin Origin
	text   ptx.Text
	name   string
}

// Listing is the kernel's PTX with the Go line behind each instruction.
func (f *Function) Listing() []byte { return f.text.Listing() }

// Explain adds the Go line to an error that names a line of this kernel's
// PTX; other errors come back as they are.
func (f *Function) Explain(err error) error {
	var e *driver.Error
	if err == nil || !errors.As(err, &e) || e.Line == 0 || e.Kernel != "" && e.Kernel != f.name {
		return err
	}
	return fmt.Errorf("%s: %w", f.text.Pos(e.Line), err)
}

// Loader compiles and loads kernels for one device. It is safe for concurrent
// use.
type Loader struct {
	dev   driver.Device
	group singleflight.Group

	mu        sync.Mutex
	functions map[cache.Key]*Function

	compiled, cached atomic.Int64
}

var (
	loadersMu sync.Mutex
	loaders   = map[driver.Device]*Loader{}
)

// Of is the loader of a device: one for each device and process, so that
// layers share modules. Modules stay loaded until [Forget].
func Of(dev driver.Device) *Loader {
	loadersMu.Lock()
	defer loadersMu.Unlock()
	l := loaders[dev]
	if l == nil {
		l = &Loader{dev: dev, functions: map[cache.Key]*Function{}}
		loaders[dev] = l
	}
	return l
}

// Forget drops the loader of a device that is about to be closed, or whose
// modules shall be looked up anew.
func Forget(dev driver.Device) {
	loadersMu.Lock()
	defer loadersMu.Unlock()
	delete(loaders, dev)
}

// Stats counts what a loader did.
type Stats struct{ Compiled, Cached int64 }

// Stats returns the counters as they are now.
func (l *Loader) Stats() Stats { return Stats{l.compiled.Load(), l.cached.Load()} }

// Load makes the kernel callable: from this process, else from the cache (nil
// means none), else by compiling it. A compilation that one of several
// callers waits for goes on when that caller's ctx ends.
func (l *Loader) Load(ctx context.Context, c *cache.Cache, s Source, o driver.CompileOptions) (*Function, error) {
	text := s.Module.Print()
	key := cache.NewKey([]byte("module"), text.PTX, []byte(l.dev.Target().Arch), fmt.Appendf(nil, "%+v", o))
	l.mu.Lock()
	f := l.functions[key]
	l.mu.Unlock()
	if f != nil {
		loaded := *f
		loaded.Origin = Loaded
		return &loaded, nil
	}
	ch := l.group.DoChan(string(key[:]), func() (any, error) {
		return l.load(context.WithoutCancel(ctx), c, key, text, s, o)
	})
	select {
	case r := <-ch:
		if r.Err != nil {
			return nil, r.Err
		}
		return r.Val.(*Function), nil
	case <-ctx.Done():
		return nil, fmt.Errorf("loading kernel %s: %w", s.Name, ctx.Err())
	}
}

func (l *Loader) load(ctx context.Context, c *cache.Cache, key cache.Key, text ptx.Text, s Source, o driver.CompileOptions) (*Function, error) {
	module, origin, err := l.module(ctx, c, key, text, s, o)
	if err != nil {
		return nil, err
	}
	fn, err := module.Function(s.Name)
	if err != nil {
		return nil, err
	}
	if s.SharedBytes > 0 {
		if err := fn.AllowSharedBytes(s.SharedBytes); err != nil {
			return nil, fmt.Errorf("kernel %s: %w", s.Name, err)
		}
	}
	f := &Function{Function: fn, Origin: origin, text: text, name: s.Name}
	l.mu.Lock()
	l.functions[key] = f
	l.mu.Unlock()
	return f, nil
}

// module loads the first image that fits, or compiles.
func (l *Loader) module(ctx context.Context, c *cache.Cache, key cache.Key, text ptx.Text, s Source, o driver.CompileOptions) (driver.Module, Origin, error) {
	if c != nil {
		if m := l.fromCache(c, key, text); m != nil {
			return m, Cached, nil
		}
		unlock := c.Lock(ctx, key)
		defer unlock()
		if m := l.fromCache(c, key, text); m != nil {
			return m, Cached, nil
		}
	}
	img, err := l.dev.Compile(ctx, text.PTX, o)
	if err != nil {
		return nil, 0, compileError(s.Name, text, err)
	}
	l.compiled.Add(1)
	m, err := l.dev.Load(img.Code)
	if err != nil {
		return nil, 0, fmt.Errorf("kernel %s: loading what was just compiled: %w", s.Name, err)
	}
	if c != nil {
		c.Put(key, cache.Entry{Label: s.Label, PTX: text.PTX,
			Images: []cache.Image{{Producer: l.dev.Producer(), Code: img.Code, Log: img.Log}}})
	}
	return m, Compiled, nil
}

// fromCache tries the entry's images: the present producer's, then others
// that the device may take.
func (l *Loader) fromCache(c *cache.Cache, key cache.Key, text ptx.Text) driver.Module {
	e, outcome := c.Get(key)
	if outcome != cache.Hit || string(e.PTX) != string(text.PTX) {
		return nil
	}
	var images []cache.Image
	if img, ok := e.Image(l.dev.Producer()); ok {
		images = append(images, img)
	}
	for _, img := range e.Images {
		if img.Producer != l.dev.Producer() && l.dev.Accepts(img.Producer) {
			images = append(images, img)
		}
	}
	for _, img := range images {
		if m, err := l.dev.Load(img.Code); err == nil {
			l.cached.Add(1)
			return m
		}
	}
	return nil
}
