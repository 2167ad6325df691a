package moe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"golang.org/x/sync/errgroup"

	"sonicmoe/autotune"
	"sonicmoe/cache"
	"sonicmoe/driver"
	"sonicmoe/jit"
	"sonicmoe/moe/kernel"
)

// Layer is a compiled MoE layer on one device. It is immutable and safe for
// concurrent use.
type Layer struct {
	config Config
	dev    driver.Device
	sms    int
	choice kernel.Choice
	// chosenBy says where each product's point comes from.
	chosenBy map[string]autotune.Origin
	// emitted are kernels that choosing has emitted; nil when all are loaded.
	emitted *[kernelCount]*emitted
	kernels [kernelCount]loaded
}

// loaded is a kernel that is ready to launch.
type loaded struct {
	kernel.Kernel
	fn *jit.Function
}

// The kernels of a layer.
const (
	router = iota
	count
	plan
	upTrain
	upInfer
	down
	aggregate
	// From here on those of backward. The weights' gradients have a kernel for
	// each way of writing them; see gradientKernel.
	planPairs
	dh
	dscores
	dscoresGiven // for callers who route themselves
	planSplits
	dw2
	dw1          = dw2 + gradientKernels
	dx           = dw1 + gradientKernels
	dxGiven      = dx + 1
	extraRows    = dx + 2
	sum          = dx + 3
	sumExtra     = dx + 4
	drouter      = dx + 5
	drouterExtra = dx + 6
	drouterSum   = dx + 7
	kernelCount  = drouterSum + gradientKernels
)

var kernelNames = [kernelCount]string{
	"router", "count", "plan", "up", "up-inference", "down", "aggregate",
	"plan-pairs", "dh", "dscores", "dscores-given", "plan-splits",
	"dw2", "dw2-f32", "dw2-add", "dw2-add-f32", "dw1", "dw1-f32", "dw1-add", "dw1-add-f32",
	"dx", "dx-given", "extra-rows", "sum", "sum-extra",
	"drouter", "drouter-extra", "drouter-sum", "drouter-sum-f32", "drouter-sum-add", "drouter-sum-add-f32",
}

// Option changes how New works.
type Option func(*options)

type options struct {
	cache   *cache.Cache
	noCache bool
	logger  *slog.Logger
	choice  *kernel.Choice
	// choices are tuned points; ownChoices says that the caller named them.
	choices    autotune.Store
	ownChoices bool
	// forwardOnly leaves the kernels of backward out.
	forwardOnly bool
}

// WithCache keeps compiled modules in c instead of the default directory; nil
// turns the cache off.
func WithCache(c *cache.Cache) Option {
	return func(o *options) { o.cache, o.noCache = c, c == nil }
}

// WithLogger receives what New has to say: compiled kernels at Info, trouble
// with the cache at Warn. Nil means silence. A cache given by WithCache reports
// its own trouble to its own logger.
func WithLogger(l *slog.Logger) Option {
	return func(o *options) {
		if l != nil {
			o.logger = l
		}
	}
}

// WithChoice takes these tile points instead of tuned ones or the cost model's,
// where they are not the zero Point. Results are the same bits.
func WithChoice(c kernel.Choice) Option { return func(o *options) { o.choice = &c } }

// WithoutBackward leaves the kernels of backward out, for programs that only
// infer: there is less to compile, and Call.Backward is an error.
func WithoutBackward() Option { return func(o *options) { o.forwardOnly = true } }

// New makes a layer: it takes tile shapes that were tuned, from the cache
// (package moe/tune puts them there), else the cost model's, emits the
// kernels and compiles or loads them, all at once. Errors: *ArgError for a
// wrong Config or Choice, an error that names the device where it is not of compute
// capability 9.0, *jit.CompileError, the device's own, and ctx's: when ctx ends
// New returns at once, and what is being compiled serves a later New. Close a
// device only after that; jit.Forget goes with closing.
func New(ctx context.Context, dev driver.Device, c Config, opts ...Option) (*Layer, error) {
	o := options{logger: slog.New(slog.DiscardHandler)}
	for _, f := range opts {
		f(&o)
	}
	if err := c.Check(); err != nil {
		return nil, err
	}
	if err := suits(dev); err != nil {
		return nil, err
	}
	if o.cache == nil && !o.noCache {
		o.cache = cache.Open(cache.Options{Logger: o.logger})
	}
	if o.cache != nil && !o.ownChoices {
		o.choices = o.cache
	}
	target := dev.Target()
	l := &Layer{config: c, dev: dev, sms: target.SMs}
	if err := l.choose(target, o); err != nil {
		return nil, err
	}
	if err := l.load(ctx, o); err != nil {
		return nil, err
	}
	l.emitted = nil
	return l, nil
}

// suits refuses devices that the kernels are not for.
func suits(dev driver.Device) error {
	if dev == nil {
		return &ArgError{Field: "device", Got: "nil", Want: "an open device"}
	}
	if err := dev.Err(); err != nil {
		return err
	}
	return suitsTarget(dev.Target())
}

// suitsTarget refuses chips that the kernels are not for.
func suitsTarget(t driver.Target) error {
	if t.Major != 9 || t.Minor != 0 {
		return &driver.Error{Op: "moe.New", Kind: driver.ErrUnsupported,
			Text: fmt.Sprintf("%s has compute capability %d.%d, the kernels need 9.0 (H100, H200, GH200)", t.Name, t.Major, t.Minor)}
	}
	if len(kernel.UpSpace(t)) == 0 || len(kernel.DownSpace(t)) == 0 || len(kernel.DHSpace(t)) == 0 || len(kernel.DXSpace(t)) == 0 || len(kernel.DWSpace(t)) == 0 {
		return &driver.Error{Op: "moe.New", Kind: driver.ErrUnsupported,
			Text: fmt.Sprintf("%s gives a CTA %d bytes of shared memory, no tile fits; compute capability 9.0 has %d",
				t.Name, t.SharedBytesPerCTA, driver.H200().SharedBytesPerCTA)}
	}
	return nil
}

// compileOptions are those of every kernel; they are part of its cache key.
var compileOptions = driver.CompileOptions{}

// builder emits a kernel.
type builder interface {
	Build() (kernel.Kernel, error)
}

// builders are the layer's kernels: the one list of them. Those left out are nil.
func (l *Layer) builders(o options) [kernelCount]builder {
	c := l.config
	list := [kernelCount]builder{
		router:    l.router(),
		count:     kernel.Count{Experts: c.Experts, TopK: c.TopK},
		plan:      kernel.Plan{Experts: c.Experts, TopK: c.TopK},
		upTrain:   l.up(true),
		upInfer:   l.up(false),
		down:      l.down(),
		aggregate: kernel.Aggregate{Hidden: c.Hidden, TopK: c.TopK},
	}
	if !o.forwardOnly {
		l.backwardBuilders(&list)
	}
	return list
}

// emit makes the i-th kernel's PTX.
func (l *Layer) emit(i int, b builder) (kernel.Kernel, jit.Source, error) {
	if l.emitted != nil && l.emitted[i] != nil {
		return l.emitted[i].Kernel, l.emitted[i].source, nil
	}
	k, err := b.Build()
	if err != nil {
		return k, jit.Source{}, fmt.Errorf("emitting the %s kernel: %w", kernelNames[i], err)
	}
	return k, jit.Source{Module: k.Module, Name: k.Name, SharedBytes: k.SharedBytes,
		Label: fmt.Sprintf("%s %s", kernelNames[i], l.config)}, nil
}

// load emits and loads every kernel, in parallel.
func (l *Layer) load(ctx context.Context, o options) error {
	loader := jit.Of(l.dev)
	// One kernel's failure does not call off the others: when New returns an
	// error, other than ctx's, nothing of it still runs on the device.
	var g errgroup.Group
	for i, b := range l.builders(o) {
		if b == nil {
			continue
		}
		g.Go(func() error {
			k, source, err := l.emit(i, b)
			if err != nil {
				return err
			}
			source.Logger = o.logger
			fn, err := loader.Load(ctx, o.cache, source, compileOptions)
			if err != nil {
				return err
			}
			o.logger.Info("kernel ready", "kernel", kernelNames[i], "origin", fn.Origin.String())
			l.kernels[i] = loaded{Kernel: k, fn: fn}
			return nil
		})
	}
	return g.Wait()
}

func (l *Layer) router() kernel.Router {
	c := l.config
	return kernel.Router{Hidden: c.Hidden, Experts: c.Experts, TopK: c.TopK, Logits: c.Logits}
}

func (l *Layer) up(saveH bool) kernel.Up {
	return kernel.Up{Hidden: l.config.Hidden, Intermediate: l.config.Intermediate, SaveH: saveH, Point: l.choice.Up}
}

func (l *Layer) down() kernel.Down {
	return kernel.Down{Hidden: l.config.Hidden, Intermediate: l.config.Intermediate, Point: l.choice.Down}
}

// Config is what the layer was made for.
func (l *Layer) Config() Config { return l.config }

// Choice is the tile points in use.
func (l *Layer) Choice() kernel.Choice { return l.choice }

// Kernels names the layer's kernels, for Listing.
func (l *Layer) Kernels() []string {
	var names []string
	for i, k := range l.kernels {
		if k.fn != nil {
			names = append(names, kernelNames[i])
		}
	}
	return names
}

// hasBackward says that the layer was made with the kernels of backward.
func (l *Layer) hasBackward() bool { return l.kernels[planPairs].fn != nil }

// Listing is the PTX of a kernel with the Go line behind each instruction.
func (l *Layer) Listing(name string) ([]byte, error) {
	for i, n := range kernelNames {
		if n == name && l.kernels[i].fn != nil {
			return l.kernels[i].fn.Listing(), nil
		}
	}
	return nil, &ArgError{Field: "kernel", Got: name, Want: fmt.Sprintf("one of %v", l.Kernels())}
}

// Explain adds the Go line at fault to an error of Synchronize, an event or a
// graph's Launch after passes of this layer, as errors of Forward have it
// already. Only an emulated device names lines; other errors come back as they
// are. Kernels of all layers have the same names: ask the layer that ran.
func (l *Layer) Explain(err error) error {
	var e *driver.Error
	if !errors.As(err, &e) {
		return err
	}
	for _, k := range l.kernels {
		if k.fn != nil && k.Name == e.Kernel {
			return k.fn.Explain(err)
		}
	}
	return err
}

// Origins tells for each kernel where its machine code came from.
func (l *Layer) Origins() map[string]jit.Origin {
	m := map[string]jit.Origin{}
	for i, k := range l.kernels {
		if k.fn != nil {
			m[kernelNames[i]] = k.fn.Origin
		}
	}
	return m
}
