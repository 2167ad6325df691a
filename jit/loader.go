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
	// Module is only read, so several sources may share it.
	Module *ptx.Module
	// Name is the name of the kernel in Module.
	Name string
	// SharedBytes is the dynamic shared memory of a launch. The kernel's text determines it: equal
	// modules must have equal sizes.
	SharedBytes int
	// Label describes the kernel in listings of a cache.
	Label string
	// Logger gets a warning if the device refuses machine code of the cache. It gets a message of
	// level info if an entry has only machine code of other drivers. nil disables both.
	Logger *slog.Logger
}

// Origin says where the machine code of a function came from.
type Origin uint8

// The origins, in the order of rising cost.
const (
	// Loaded: the process had loaded the function before.
	Loaded Origin = iota
	// Cached: the machine code came from the disk cache.
	Cached
	// Compiled: the assembler of the device ran.
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

// Function is a kernel that has been loaded.
type Function struct {
	gpu.Function
	Origin Origin
	dev    gpu.Device
	text   ptx.Text
	name   string
}

// Listing returns the kernel's PTX with the Go line that emitted each instruction.
func (f *Function) Listing() []byte { return f.text.Listing() }

// Explain adds the Go line to an error that names a line of this kernel's PTX. Such errors come
// from a launch, from the launch of a graph, or from waiting for one of these. Other errors, and
// errors that have been explained already, are returned unchanged.
func (f *Function) Explain(err error) error {
	var e *driver.Error
	var done *explained
	if err == nil || errors.As(err, &done) || !errors.As(err, &e) || e.Line == 0 || e.Kernel != "" && e.Kernel != f.name {
		return err
	}
	return &explained{cause: err, text: f.text.Pos(e.Line).String() + ": " + err.Error() + legend(f.text, err.Error(), e.Line)}
}

// explained is an error together with the Go lines for it.
type explained struct {
	cause error
	text  string
}

func (e *explained) Error() string { return e.text }
func (e *explained) Unwrap() error { return e.cause }

// legend returns the Go lines for the other PTX lines that a message names, for example the lines
// at which the threads of a deadlock wait. It leaves out the line whose number is except.
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
	err   error // why the device cannot run kernels; dev is then nil
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

// Of returns the loader of a device. A device has only one loader in the process, so layers share
// modules. The loader keeps the device and its modules until [Forget]. If the type of the device
// cannot be compared (a pointer always can), every call returns a new loader. If the type of the
// device cannot run kernels, Load returns the error of gpu.Of.
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

// Forget drops the loader of a device. Call it after closing a device; otherwise the loader stays
// for the life of the process. If the device is still open, later loads look modules up again.
// Functions that have been loaded keep working until the device is closed.
func Forget(dev driver.Device) {
	if !reflect.ValueOf(dev).Comparable() {
		return
	}
	loadersMu.Lock()
	defer loadersMu.Unlock()
	delete(loaders, dev)
}

// Stats counts the kernels that a loader has compiled, and the kernels that it has taken from a
// cache.
type Stats struct{ Compiled, Cached int64 }

// Stats returns the present values of the counters.
func (l *Loader) Stats() Stats { return Stats{l.compiled.Load(), l.cached.Load()} }

// Load makes a kernel callable. It takes the function from this process or, if the process does not
// have it, from the cache (nil means no cache). Otherwise it compiles the kernel. When ctx ends,
// Load returns ctx's error at once; a running compilation continues for other callers. Load does
// not remember errors: after an error, the next call tries again.
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
		// Another caller may have loaded the function since the check above.
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

// moduleKey returns the key of a kernel's machine code. The key does not depend on the producer,
// because an entry has one image for each producer. The options are written out here, so that the
// key does not change when a field of o is renamed.
func moduleKey(text []byte, arch string, o gpu.CompileOptions) store.Key {
	return store.NewKey([]byte("module"), text, []byte(arch), fmt.Appendf(nil, "{LineInfo:%t OptLevel:%d}", o.LineInfo, o.OptLevel))
}

// loaded returns the function if this process has loaded it, else nil.
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

// load takes the first image of the cache that the device accepts. If there is none, it compiles.
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

// hopeless reports whether loading failed for another reason than the code. Compiling the code
// again would then not help.
func hopeless(err error) bool {
	return errors.Is(err, driver.ErrOutOfMemory) || errors.Is(err, driver.ErrBroken)
}

// keep adds a function to the table of this process, and counts it.
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

// fromCache tries the images of the entry, first the image of the present producer, then others
// that the device may accept. It returns nil without an error if the cache has no such image. An
// error says why the device refused every image.
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

// sayOthers logs, once, that the cache has only machine code of other producers, for example of the
// driver before an update.
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

// open makes machine code callable. It unloads a module that lacks the kernel.
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
