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
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/store"
	"sonicmoe/ptx"
)

// Source is a kernel to load.
type Source struct {
	// Module is only read, so sources may share one.
	Module *ptx.Module
	// Name is the entry's name.
	Name string
	// SharedBytes is the dynamic shared memory of a launch. It follows from the
	// kernel's text: equal modules have equal sizes.
	SharedBytes int
	// Label describes the kernel in listings of a cache.
	Label string
	// Logger gets a warning when the device refuses machine code of the cache, and an
	// information when all machine code in an entry is of other drivers. Nil disables
	// both.
	Logger *slog.Logger
}

// Origin is the place from which a function's machine code came.
type Origin uint8

// Origins, by rising cost.
const (
	// Loaded: the process already had the function.
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
	gpu.Function
	Origin Origin
	dev    gpu.Device
	text   ptx.Text
	name   string
}

// Listing returns the kernel's PTX with the Go line that emitted each instruction.
func (f *Function) Listing() []byte { return f.text.Listing() }

// Explain adds the Go line to an error that names a line of this kernel's PTX.
// Such errors come from a launch, from a graph's launch, or from waiting for
// either. Other errors, and errors already explained, are returned unchanged.
func (f *Function) Explain(err error) error {
	var e *driver.Error
	var done *explained
	if err == nil || errors.As(err, &done) || !errors.As(err, &e) || e.Line == 0 || e.Kernel != "" && e.Kernel != f.name {
		return err
	}
	return &explained{cause: err, text: f.text.Pos(e.Line).String() + ": " + err.Error() + legend(f.text, err.Error(), e.Line)}
}

// explained is an error together with its Go lines.
type explained struct {
	cause error
	text  string
}

func (e *explained) Error() string { return e.text }
func (e *explained) Unwrap() error { return e.cause }

// legend returns the Go lines of the other PTX lines that a message names, such as
// the lines at which the threads of a deadlock wait.
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
	dev   gpu.Device
	err   error // the reason why the device cannot run kernels, and dev is nil
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

// Of returns the loader of a device. There is one for each device in the process,
// so that layers share modules. It keeps the device and its modules until
// [Forget]. A device whose type cannot be compared (a pointer always can) gets a
// new loader at every call. If the device's type cannot run kernels, Load returns the
// error of gpu.Of.
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
	l := &Loader{functions: map[store.Key]*Function{}}
	l.dev, l.err = gpu.Of(dev)
	return l
}

// Forget drops the loader of a device. Call it after closing a device, or the
// loader stays for the life of the process. If the device is open, modules are
// looked up anew; functions already loaded keep working until the device is
// closed.
func Forget(dev driver.Device) {
	if !reflect.ValueOf(dev).Comparable() {
		return
	}
	loadersMu.Lock()
	defer loadersMu.Unlock()
	delete(loaders, dev)
}

// Stats counts the kernels that a loader compiled and those that it took from a
// cache.
type Stats struct{ Compiled, Cached int64 }

// Stats returns the present counters.
func (l *Loader) Stats() Stats { return Stats{l.compiled.Load(), l.cached.Load()} }

// Load makes the kernel callable. It takes the function from this process, else
// from the cache (nil means no cache), else compiles the kernel. When ctx ends,
// Load returns ctx's error at once, while a running compilation continues for
// other callers. Errors are not remembered.
func (l *Loader) Load(ctx context.Context, c *cache.Cache, s Source, o gpu.CompileOptions) (*Function, error) {
	err := cmp.Or(ctx.Err(), l.err)
	if err == nil {
		err = l.dev.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("loading kernel %s: %w", s.Name, err)
	}
	text := s.Module.Print()
	key := moduleKey(text.PTX, l.dev.Target().Arch, o)
	if f := l.loaded(key); f != nil {
		return f, nil
	}
	ch := l.group.DoChan(string(key[:]), func() (any, error) {
		// Another caller may have loaded it since the check above.
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

// moduleKey returns the key of a kernel's machine code. It does not contain the
// producer, because an entry has one image for each. The options are spelled out
// here, so that caches keep their entries when a field is renamed.
func moduleKey(text []byte, arch string, o gpu.CompileOptions) store.Key {
	return store.NewKey([]byte("module"), text, []byte(arch), fmt.Appendf(nil, "{LineInfo:%t OptLevel:%d}", o.LineInfo, o.OptLevel))
}

// loaded returns the function if this process has it, else nil.
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

// load takes the first image of the cache that the device accepts, or compiles.
func (l *Loader) load(ctx context.Context, c *cache.Cache, key store.Key, text ptx.Text, s Source, o gpu.CompileOptions) (*Function, error) {
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
		return nil, fmt.Errorf("kernel %s: loading the new machine code: %w", s.Name, err)
	}
	if c != nil {
		store.Of(c).Put(key, store.Entry{Label: s.Label, PTX: text.PTX,
			Images: []store.Image{{Producer: l.dev.Producer(), Code: img.Code, Log: img.Log}}})
	}
	return l.keep(key, fn, Compiled, text, s), nil
}

// hopeless reports whether loading failed for a reason other than the code, so
// that compiling it again would not help.
func hopeless(err error) bool {
	return errors.Is(err, driver.ErrOutOfMemory) || errors.Is(err, driver.ErrBroken)
}

// keep adds a function to the process's table and counts it.
func (l *Loader) keep(key store.Key, fn gpu.Function, origin Origin, text ptx.Text, s Source) *Function {
	if origin == Compiled {
		l.compiled.Add(1)
	} else {
		l.cached.Add(1)
	}
	f := &Function{Function: fn, Origin: origin, dev: l.dev, text: text, name: s.Name}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.functions[key] = f
	return f
}

// fromCache tries the images of the entry: that of the present producer, then
// others that the device may accept. It returns nil without an error for a miss.
// An error says why the device refused every image.
func (l *Loader) fromCache(c *cache.Cache, key store.Key, text ptx.Text, s Source) (gpu.Function, error) {
	e, outcome := store.Of(c).GetFor(key, func(producer string) bool { return producer == l.dev.Producer() || l.dev.Accepts(producer) })
	if outcome != store.Hit {
		return nil, nil
	}
	if !bytes.Equal(e.PTX, text.PTX) {
		return nil, errors.New("the entry holds another PTX text")
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

// sayOthers logs once that the cache has only machine code of other producers,
// such as the driver before an update.
func (l *Loader) sayOthers(log *slog.Logger, e store.Entry) {
	if log == nil {
		return
	}
	l.others.Do(func() {
		var by []string
		for _, img := range e.Images {
			by = append(by, img.Producer)
		}
		log.Info("the cache holds machine code of other drivers or assemblers only; compiling once for this one and storing it too",
			"have", strings.Join(by, ", "), "want", l.dev.Producer())
	})
}

// open makes machine code callable. It unloads a module without the entry.
func (l *Loader) open(code []byte, s Source) (gpu.Function, error) {
	m, err := l.dev.Load(code)
	if err != nil {
		return nil, err
	}
	fn, err := m.Function(s.Name)
	if err == nil && s.SharedBytes > 0 {
		err = fn.AllowSharedBytes(s.SharedBytes)
	}
	if err != nil {
		_ = m.Unload() // the first error is the one to return
		return nil, err
	}
	return fn, nil
}
