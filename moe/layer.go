package moe

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"sonicmoe/autotune"
	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/moe/internal/kernel"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/route/order"
)

// Layer is a compiled MoE layer on one device. It is immutable and safe for
// concurrent use.
type Layer struct {
	// of is the input for emitting the kernels: configuration and tilings.
	of  registry.Layer
	dev driver.Device
	sms int
	// part is the part of the layer that this process has; see ranks.go.
	part part
	// smallBatch decides which kernels passes over small batches use.
	smallBatch smallBatch
	// chosenBy has the origin of each product's tiling.
	chosenBy map[spec.ProductID]autotune.Origin
	// kernels has the layer's kernels, in the registry's order.
	kernels []loaded
	// shared is the layer of the shared experts, nil if there are none.
	shared *Layer
}

// loaded is a kernel that is ready to launch.
type loaded struct {
	registry.Any
	name  string // the name in Layer.Kernels
	built registry.Built
	entry string
	fn    *jit.Function
}

// New creates a layer. It takes the tilings that package moe/tune has stored in the cache, and the
// cost model's tilings for all other products. New emits the kernels, and compiles or loads them in
// parallel. It returns an *ArgError for a wrong Config or tiling, an error with the device's name
// if its compute capability is not 9.0, a *jit.CompileError, errors of the device, or the error of
// ctx. When ctx ends, New returns at once. Compilations that have started go on, and a later New
// uses their results. Do not close the device before they have ended. After closing a device, call
// jit.Forget.
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
	o.forwardOnly = o.forwardOnly || spec.HasAdapters(c)
	if err := o.checkGradients(c); err != nil {
		return nil, err
	}
	if err := suits(dev); err != nil {
		return nil, err
	}
	c = c.Normal()
	o.openCache()
	target := dev.Target()
	l := &Layer{of: registry.Layer{Config: c}, dev: dev, sms: target.SMs, part: o.part, smallBatch: o.smallBatch(c)}
	done, err := l.choose(target, o)
	if err != nil {
		return nil, err
	}
	l.withShared(target, o)
	if err := l.loadAll(ctx, append(l.emits(done, o), l.shared.emits(nil, o)...), o); err != nil {
		return nil, err
	}
	return l, nil
}

// suits refuses devices that cannot run the kernels.
func suits(dev driver.Device) error {
	if dev == nil {
		return &ArgError{Field: "device", Got: "nil", Want: "an open device"}
	}
	if _, err := gpu.Of(dev); err != nil {
		return fmt.Errorf("making a layer: %w", err)
	}
	if err := dev.Err(); err != nil {
		return fmt.Errorf("making a layer: not tried, the device is broken or closed: %w", err)
	}
	return suitsTarget(dev.Target())
}

// suitsTarget refuses chips that cannot run the kernels.
func suitsTarget(t driver.Target) error {
	if t.Major != 9 || t.Minor != 0 {
		return &driver.Error{Op: "moe.New", Kind: driver.ErrUnsupported,
			Text: fmt.Sprintf("%s has compute capability %d.%d, the kernels need 9.0 (H100, H200, GH200)", t.Name, t.Major, t.Minor)}
	}
	for _, p := range kernel.Kernels.Products() {
		if len(p.Space(t)) == 0 {
			return &driver.Error{Op: "moe.New", Kind: driver.ErrUnsupported,
				Text: fmt.Sprintf("%s gives a CTA %d bytes of shared memory, no tile of %s fits; compute capability 9.0 has %d",
					t.Name, t.SharedBytesPerCTA, p, driver.H200().SharedBytesPerCTA)}
		}
	}
	return nil
}

// compileOptions are the options for every kernel. They are part of its cache key.
var compileOptions = gpu.CompileOptions{}

// wanted lists the kernels of a layer with these options.
func (o options) wanted(l registry.Layer) registry.Registry {
	from := o.part.kernels(l.Config)
	if l.IsShared {
		from = kernel.SharedKernels(l.Config)
		if o.part == home {
			o.gradients = []gradientWant{{of: F32}} // partial sums, which exchange.PartsKernels add
		}
	}
	var list registry.Registry
	small := o.smallBatch(l.Config)
	for _, k := range from {
		if small.launches(k) && o.writes(l.Config, k) && (!k.IsBackward() || !o.forwardOnly || k == order.PlanPairsKernel && o.part == home) {
			list = append(list, k)
		}
	}
	return list
}

// made reports whether New created the layer, which is neither nil nor zero.
func (l *Layer) made() bool { return l != nil && l.of.NumExperts > 0 }

// all returns the layer's kernels, followed by the kernels of its shared experts. A nil layer has
// none.
func (l *Layer) all() []loaded {
	if l == nil {
		return nil
	}
	return slices.Concat(l.kernels, l.shared.all())
}

// Config returns the layer's configuration.
func (l *Layer) Config() Config {
	if l == nil {
		return Config{}
	}
	return l.of.Config
}

// Shapes returns the shapes of the tensors of a call with the given number of
// tokens.
func (l *Layer) Shapes(tokens int) Shapes { return l.Config().Shapes(tokens) }

// Tilings returns the tiling of each product; see [WithTilings].
func (l *Layer) Tilings() map[string]string {
	if l == nil {
		return nil
	}
	return l.of.Tiles.Text()
}

// Kernels returns the names of the layer's kernels, for Listing.
func (l *Layer) Kernels() []string {
	var names []string
	for _, k := range l.all() {
		names = append(names, k.name)
	}
	return names
}

// trains refuses a layer without backward kernels.
func (l *Layer) trains() error {
	if spec.HasAdapters(l.of.Config) {
		return argErrorf("Config.LoRAAdapters", l.of.LoRAAdapters, "0: a layer with a table of adapters has no backward pass")
	}
	if !l.hasBackward() {
		return &ArgError{Field: "Layer", Got: "made with WithoutBackward", Want: "made without that option"}
	}
	return nil
}

// hasBackward reports whether the layer has backward kernels.
func (l *Layer) hasBackward() bool {
	return l != nil && slices.ContainsFunc(l.kernels, func(k loaded) bool { return k.IsBackward() })
}

// Listing returns the PTX of a kernel, with the Go line of each instruction. name is one of
// Kernels, or the kernel's name in errors and profiles: the kernel "plan-splits" has the name
// "moe_dwplan" there.
func (l *Layer) Listing(name string) ([]byte, error) {
	for _, k := range l.all() {
		if k.name == name || k.entry == name {
			return k.fn.Listing(), nil
		}
	}
	return nil, &ArgError{Field: "kernel", Got: name, Want: namesLike(name, l.Kernels())}
}

// namesLike returns a text of the names that contain name, or of the first names, of a layer's
// kernels.
func namesLike(name string, names []string) string {
	const shown = 6
	if len(names) == 0 {
		return "one of no kernels"
	}
	like := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return !strings.Contains(n, name) })
	if len(like) == 0 {
		like = names
	}
	text := strings.Join(like[:min(shown, len(like))], ", ")
	if len(like) < len(names) || len(like) > shown {
		return fmt.Sprintf("one of the layer's kernels, such as %s (%d in all)", text, len(names))
	}
	return "one of " + text
}

// Explain adds the Go line of a fault to an error of Synchronize, of an event, or of a graph's
// Launch, after passes of this layer. Errors of the passes themselves already have the line. Only
// an emulated device reports lines; other errors are returned unchanged. Kernels of all layers have
// the same names, so call Explain on the layer that ran.
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

// LoadedFrom returns, for each kernel, the origin of its machine code: "compiled",
// "cached", or "loaded" by an earlier layer of the process.
func (l *Layer) LoadedFrom() map[string]string {
	m := map[string]string{}
	for _, k := range l.all() {
		m[k.name] = k.fn.Origin.String()
	}
	return m
}
