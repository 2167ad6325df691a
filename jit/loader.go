package jit

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/singleflight"

	"sonicmoe/cache"
	"sonicmoe/driver"
	"sonicmoe/internal/store"
	"sonicmoe/ptx"
)

// Source is a kernel to load.
type Source struct {
	// Module is only read: sources may share one.
	Module *ptx.Module
	// Name is the entry's name.
	Name string
	// SharedBytes is the dynamic shared memory that launches will ask for. It
	// follows from the kernel's text: equal modules ask for equal amounts.
	SharedBytes int
	// Label is for people who list the cache.
	Label string
	// Logger hears, as a warning, of machine code in the cache that the device
	// refused, and, as information, that all of it is of other drivers. Nil
	// means silence.
	Logger *slog.Logger
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
func (o Origin) String() string {
	names := [...]string{"loaded", "cached", "compiled"}
	if int(o) >= len(names) {
		return fmt.Sprintf("Origin(%d)", int(o))
	}
	return names[o]
}

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
// PTX: of a launch, of a graph's, or of waiting for either. Other errors, and
// those that were explained before, come back as they are.
func (f *Function) Explain(err error) error {
	var e *driver.Error
	var done *explained
	if err == nil || errors.As(err, &done) || !errors.As(err, &e) || e.Line == 0 || e.Kernel != "" && e.Kernel != f.name {
		return err
	}
	return &explained{cause: err, text: f.text.Pos(e.Line).String() + ": " + err.Error() + legend(f.text, err.Error(), e.Line)}
}

// explained is an error with its Go lines.
type explained struct {
	cause error
	text  string
}

func (e *explained) Error() string { return e.text }
func (e *explained) Unwrap() error { return e.cause }

// legend gives the Go lines of the other PTX lines that a message names, such
// as those of the waiters of a deadlock.
func legend(text ptx.Text, message string, except int) string {
	var b strings.Builder
	seen := map[int]bool{except: true}
	for _, m := range logLine.FindAllStringSubmatch(message, -1) {
		n, err := strconv.Atoi(m[1])
		if err != nil || seen[n] {
			continue
		}
		seen[n] = true
		if pos := text.Pos(n); len(pos) > 0 {
			fmt.Fprintf(&b, "\nline %d = %s", n, pos)
		}
	}
	return b.String()
}

// Loader compiles and loads kernels for one device. It is safe for concurrent
// use.
type Loader struct {
	dev   driver.Device
	group singleflight.Group

	mu        sync.Mutex
	functions map[store.Key]*Function

	compiled, cached atomic.Int64
	others           sync.Once
}

var (
	loadersMu sync.Mutex
	loaders   = map[driver.Device]*Loader{}
)

// Of is the loader of a device: one for each device and process, so that
// layers share modules. It keeps the device and its modules until [Forget].
// Only a device whose type can't be compared, which a pointer always can, gets
// a loader of its own at every call.
func Of(dev driver.Device) *Loader {
	if !reflect.ValueOf(dev).Comparable() {
		return newLoader(dev)
	}
	loadersMu.Lock()
	defer loadersMu.Unlock()
	l := loaders[dev]
	if l == nil {
		l = newLoader(dev)
		loaders[dev] = l
	}
	return l
}

func newLoader(dev driver.Device) *Loader {
	return &Loader{dev: dev, functions: map[store.Key]*Function{}}
}

// Forget drops the loader of a device. Whoever closes a device forgets it too,
// or its loader stays for the life of the process. Of an open device modules
// are then looked up anew; those that layers hold stay loaded and go on
// working until the device is closed.
func Forget(dev driver.Device) {
	if !reflect.ValueOf(dev).Comparable() {
		return
	}
	loadersMu.Lock()
	defer loadersMu.Unlock()
	delete(loaders, dev)
}

// Stats counts what a loader did.
type Stats struct{ Compiled, Cached int64 }

// Stats returns the counters as they are now.
func (l *Loader) Stats() Stats { return Stats{l.compiled.Load(), l.cached.Load()} }

// Load makes the kernel callable: from this process, else from the cache (nil
// means none), else by compiling it. When ctx ends Load returns its error at
// once; a compilation under way goes on for the other callers that wait for
// it, and for later ones. Errors are not remembered.
func (l *Loader) Load(ctx context.Context, c *cache.Cache, s Source, o driver.CompileOptions) (*Function, error) {
	if err := cmp.Or(ctx.Err(), l.dev.Err()); err != nil {
		return nil, fmt.Errorf("loading kernel %s: %w", s.Name, err)
	}
	text := s.Module.Print()
	key := moduleKey(text.PTX, l.dev.Target().Arch, o)
	if f := l.loaded(key); f != nil {
		return f, nil
	}
	ch := l.group.DoChan(string(key[:]), func() (any, error) {
		// Another caller's flight may have landed since the look above.
		if f := l.loaded(key); f != nil {
			return f, nil
		}
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

// moduleKey is what a kernel's machine code is stored under: no producer, for
// an entry has one image for each. The options are spelled out here, so that a
// field's name may change and caches keep their entries.
func moduleKey(text []byte, arch string, o driver.CompileOptions) store.Key {
	return store.NewKey([]byte("module"), text, []byte(arch), fmt.Appendf(nil, "{LineInfo:%t OptLevel:%d}", o.LineInfo, o.OptLevel))
}

// loaded is the function that this process has, or nil.
func (l *Loader) loaded(key store.Key) *Function {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.functions[key]
	if f == nil {
		return nil
	}
	again := *f
	again.Origin = Loaded
	return &again
}

// load takes the first image of the cache that fits, or compiles.
func (l *Loader) load(ctx context.Context, c *cache.Cache, key store.Key, text ptx.Text, s Source, o driver.CompileOptions) (*Function, error) {
	if c != nil {
		fn, refused := l.fromCache(c, key, text, s)
		if fn == nil && !hopeless(refused) {
			unlock := store.Of(c).Lock(ctx, key)
			defer unlock()
			fn, refused = l.fromCache(c, key, text, s)
		}
		if fn != nil {
			return l.keep(key, fn, Cached, text, s), nil
		}
		if hopeless(refused) {
			return nil, fmt.Errorf("kernel %s: loading from the cache: %w", s.Name, refused)
		}
		if refused != nil && s.Logger != nil {
			s.Logger.Warn("machine code in the cache refused; compiling again, which costs only time",
				"kernel", s.Name, "key", key.String(), "error", refused)
		}
	}
	img, err := l.dev.Compile(ctx, text.PTX, o)
	if err != nil {
		return nil, compileError(s.Name, text, err)
	}
	fn, err := l.open(img.Code, s)
	if err != nil {
		return nil, fmt.Errorf("kernel %s: loading what was just compiled: %w", s.Name, err)
	}
	if c != nil {
		store.Of(c).Put(key, store.Entry{Label: s.Label, PTX: text.PTX,
			Images: []store.Image{{Producer: l.dev.Producer(), Code: img.Code, Log: img.Log}}})
	}
	return l.keep(key, fn, Compiled, text, s), nil
}

// hopeless reports whether an error of loading machine code is no fault of the
// code's: compiling it again would not help.
func hopeless(err error) bool {
	return errors.Is(err, driver.ErrOutOfMemory) || errors.Is(err, driver.ErrBroken)
}

// keep makes a function known to the process and counts it.
func (l *Loader) keep(key store.Key, fn driver.Function, origin Origin, text ptx.Text, s Source) *Function {
	if origin == Compiled {
		l.compiled.Add(1)
	} else {
		l.cached.Add(1)
	}
	f := &Function{Function: fn, Origin: origin, text: text, name: s.Name}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.functions[key] = f
	return f
}

// fromCache tries the entry's images: the present producer's, then others
// that the device may take. Nil and no error is a miss, an error says why the
// device refused all that it was given.
func (l *Loader) fromCache(c *cache.Cache, key store.Key, text ptx.Text, s Source) (driver.Function, error) {
	e, outcome := store.Of(c).GetFor(key, func(producer string) bool { return producer == l.dev.Producer() || l.dev.Accepts(producer) })
	if outcome != store.Hit {
		return nil, nil
	}
	if !bytes.Equal(e.PTX, text.PTX) {
		return nil, errors.New("the entry is of another PTX text")
	}
	var images []store.Image
	if img, ok := e.Image(l.dev.Producer()); ok {
		images = append(images, img)
	}
	for _, img := range e.Images {
		if img.Producer != l.dev.Producer() && l.dev.Accepts(img.Producer) {
			images = append(images, img)
		}
	}
	if len(images) == 0 && len(e.Images) > 0 {
		l.sayOthers(s.Logger, e)
	}
	var refused []error
	for _, img := range images {
		fn, err := l.open(img.Code, s)
		if err == nil {
			return fn, nil
		}
		refused = append(refused, fmt.Errorf("image of %s: %w", img.Producer, err))
		if hopeless(err) {
			break
		}
	}
	return nil, errors.Join(refused...)
}

// sayOthers says once that the cache's machine code is of others, such as the
// driver of before its update.
func (l *Loader) sayOthers(log *slog.Logger, e store.Entry) {
	if log == nil {
		return
	}
	l.others.Do(func() {
		var by []string
		for _, img := range e.Images {
			by = append(by, img.Producer)
		}
		log.Info("machine code in the cache is of other drivers or assemblers; this one compiles its own, once, and stores it beside",
			"have", strings.Join(by, ", "), "want", l.dev.Producer())
	})
}

// open makes machine code callable. A module that turns out to be wrong is
// unloaded.
func (l *Loader) open(code []byte, s Source) (driver.Function, error) {
	m, err := l.dev.Load(code)
	if err != nil {
		return nil, err
	}
	fn, err := m.Function(s.Name)
	if err == nil && s.SharedBytes > 0 {
		err = fn.AllowSharedBytes(s.SharedBytes)
	}
	if err != nil {
		_ = m.Unload() // the error to report is the first
		return nil, err
	}
	return fn, nil
}
