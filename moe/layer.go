package moe

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"sonicmoe/autotune"
	"sonicmoe/driver"
	"sonicmoe/jit"
	"sonicmoe/moe/internal/emit"
	"sonicmoe/moe/internal/kernel"
	"sonicmoe/moe/internal/registry"
)

// Layer is a compiled MoE layer on one device. It is immutable and safe for
// concurrent use.
type Layer struct {
	// of is what the kernels are emitted from: configuration and tilings.
	of  registry.Layer
	dev driver.Device
	sms int
	// smallBatch says which kernels passes over small batches use.
	smallBatch smallBatch
	// chosenBy says where each product's tiling comes from.
	chosenBy map[string]autotune.Origin
	// kernels are the layer's, in the registry's order.
	kernels []loaded
	// shared is the layer of its shared experts, nil without them.
	shared *Layer
}

// loaded is a kernel that is ready to launch.
type loaded struct {
	registry.Any
	name  string // in Layer.Kernels
	built registry.Built
	entry string
	fn    *jit.Function
}

// New makes a layer: it takes tile shapes that were tuned, from the cache
// (package moe/tune puts them there), else the cost model's, emits the
// kernels and compiles or loads them, all at once. Errors: *ArgError for a
// wrong Config or tiling, an error that names the device where it is not of compute
// capability 9.0, *jit.CompileError, the device's own, and ctx's: when ctx ends
// New returns at once, and what is being compiled serves a later New. Close a
// device only after that; jit.Forget goes with closing.
func New(ctx context.Context, dev driver.Device, c Config, opts ...Option) (*Layer, error) {
	if ctx == nil {
		return nil, &ArgError{Field: "ctx", Got: "nil", Want: "a context, such as context.Background()"}
	}
	o, err := optionsOf(opts)
	if err != nil {
		return nil, err
	}
	if err := Check(c); err != nil {
		return nil, err
	}
	if err := o.checkGradients(c); err != nil {
		return nil, err
	}
	if err := suits(dev); err != nil {
		return nil, err
	}
	o.openCache()
	target := dev.Target()
	l := &Layer{of: registry.Layer{Config: c}, dev: dev, sms: target.SMs, smallBatch: o.smallBatch(c)}
	done, err := l.choose(target, o)
	if err != nil {
		return nil, err
	}
	l.withShared(target, o)
	// One kernel's failure does not call off the others: when New returns an
	// error, other than ctx's, nothing of it still runs on the device.
	var g errgroup.Group
	l.load(ctx, &g, done, o)
	if l.shared != nil {
		l.shared.load(ctx, &g, nil, o)
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return l, nil
}

// suits refuses devices that the kernels are not for.
func suits(dev driver.Device) error {
	if dev == nil {
		return &ArgError{Field: "device", Got: "nil", Want: "an open device"}
	}
	if err := dev.Err(); err != nil {
		return fmt.Errorf("making a layer: not tried, the device is broken or closed: %w", err)
	}
	return suitsTarget(dev.Target())
}

// suitsTarget refuses chips that the kernels are not for.
func suitsTarget(t driver.Target) error {
	if t.Major != 9 || t.Minor != 0 {
		return &driver.Error{Op: "moe.New", Kind: driver.ErrUnsupported,
			Text: fmt.Sprintf("%s has compute capability %d.%d, the kernels need 9.0 (H100, H200, GH200)", t.Name, t.Major, t.Minor)}
	}
	for _, p := range kernel.Kernels.Products() {
		if len(p.Space(t)) == 0 {
			return &driver.Error{Op: "moe.New", Kind: driver.ErrUnsupported,
				Text: fmt.Sprintf("%s gives a CTA %d bytes of shared memory, no tile of %s fits; compute capability 9.0 has %d",
					t.Name, t.SharedBytesPerCTA, p.Name, driver.H200().SharedBytesPerCTA)}
		}
	}
	return nil
}

// compileOptions are those of every kernel; they are part of its cache key.
var compileOptions = driver.CompileOptions{}

// wanted are the kernels that a layer has, made with these options.
func (o options) wanted(l registry.Layer) registry.Registry {
	from := kernel.Kernels.Of(l.Config)
	if l.IsShared {
		from = kernel.SharedKernels(l.Config)
	}
	var list registry.Registry
	small := o.smallBatch(l.Config)
	for _, k := range from {
		if small.launches(k) && o.writes(k) && (!k.IsBackward() || !o.forwardOnly) {
			list = append(list, k)
		}
	}
	return list
}

// load has g emit and load every kernel, in parallel.
func (l *Layer) load(ctx context.Context, g *errgroup.Group, done emit.Built, o options) {
	loader := jit.Of(l.dev)
	wanted := o.wanted(l.of)
	l.kernels = make([]loaded, len(wanted))
	for i, k := range wanted {
		g.Go(func() error {
			b, source, err := emit.Kernel(l.of, k, done)
			if err != nil {
				return err
			}
			source.Logger = o.logger
			fn, err := loader.Load(ctx, o.cache, source, compileOptions)
			if err != nil {
				return err
			}
			name := l.of.KernelName(k)
			o.logger.Info("kernel ready", "kernel", name, "origin", fn.Origin.String())
			l.kernels[i] = loaded{Any: k, name: name, built: b, entry: source.Name, fn: fn}
			return nil
		})
	}
}

// made says that New made the layer: one that is nil or zero it did not.
func (l *Layer) made() bool { return l != nil && l.of.NumExperts > 0 }

// all are the layer's kernels, those of its shared experts last; a nil layer has
// none.
func (l *Layer) all() []loaded {
	if l == nil {
		return nil
	}
	return slices.Concat(l.kernels, l.shared.all())
}

// Config is what the layer was made for.
func (l *Layer) Config() Config {
	if l == nil {
		return Config{}
	}
	return l.of.Config
}

// Shapes are the tensors of a call with so many tokens.
func (l *Layer) Shapes(tokens int) Shapes { return l.Config().Shapes(tokens) }

// Tilings returns the tiling of each product; see [WithTilings].
func (l *Layer) Tilings() map[string]string {
	if l == nil {
		return nil
	}
	return l.of.Tiles.Text()
}

// Kernels names the layer's kernels, for Listing.
func (l *Layer) Kernels() []string {
	var names []string
	for _, k := range l.all() {
		names = append(names, k.name)
	}
	return names
}

// trains refuses a layer without the kernels of backward.
func (l *Layer) trains() error {
	if !l.hasBackward() {
		return &ArgError{Field: "Layer", Got: "made with WithoutBackward", Want: "made without that option"}
	}
	return nil
}

// hasBackward says that the layer was made with the kernels of backward.
func (l *Layer) hasBackward() bool {
	return l != nil && slices.ContainsFunc(l.kernels, func(k loaded) bool { return k.IsBackward() })
}

// Listing is the PTX of a kernel with the Go line behind each instruction. name is
// one of Kernels, or the kernel's in errors and profiles: "plan-splits" is
// "moe_dwplan" there.
func (l *Layer) Listing(name string) ([]byte, error) {
	for _, k := range l.all() {
		if k.name == name || k.entry == name {
			return k.fn.Listing(), nil
		}
	}
	return nil, &ArgError{Field: "kernel", Got: name, Want: fmt.Sprintf("one of %v", l.Kernels())}
}

// Explain adds the Go line at fault to an error of Synchronize, an event or a
// graph's Launch after passes of this layer, as errors of ForwardArgs have it
// already. Only an emulated device names lines; other errors come back as they
// are. Kernels of all layers have the same names: ask the layer that ran.
func (l *Layer) Explain(err error) error {
	var e *driver.Error
	if !errors.As(err, &e) {
		return err
	}
	for _, k := range l.all() {
		if k.entry == e.Kernel {
			return k.fn.Explain(err)
		}
	}
	return err
}

// LoadedFrom tells for each kernel where its machine code came from: "compiled",
// "cached" or "loaded", which is by an earlier layer of the process.
func (l *Layer) LoadedFrom() map[string]string {
	m := map[string]string{}
	for _, k := range l.all() {
		m[k.name] = k.fn.Origin.String()
	}
	return m
}
