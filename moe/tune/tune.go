package tune

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"sonicmoe/autotune"
	"sonicmoe/cache"
	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/gemm"
	"sonicmoe/moe"
	"sonicmoe/moe/internal/emit"
	"sonicmoe/moe/internal/hook"
	"sonicmoe/moe/internal/kernel"
	"sonicmoe/moe/internal/registry"
)

// Options are the choices for [Layer]. The zero value is a good default.
type Options struct {
	// Cache has stored choices, and Plan.Save adds new ones. nil means the user's cache, as in
	// moe.New.
	Cache *cache.Cache
	// Device is the name by which worker processes open the GPU, see driver/open. "" means "cuda",
	// or "emulated" for an emulated device.
	Device string
	// ForwardOnly leaves out the products of the backward pass.
	ForwardOnly bool
	// Products, unless empty, names the products to tune. Other products keep their tilings.
	Products []string
	// Again tunes also the products that have a valid stored choice.
	Again bool
	// Histogram, unless nil, has the number of rows of each expert in real use, in any unit. It
	// replaces a routing that is nearly even.
	Histogram []int64
	// Budget is the time for all products together. 0 means 45 s. On a GPU, preparing tensors and
	// checking the cost model's tilings may take longer. On an emulated device, where this may take
	// hours, the end of the budget is an error.
	Budget time.Duration
	// Most is the largest number of candidates of a product, chosen by the cost model. 0 means all
	// candidates.
	Most int
	// Rounds is the number of times that the best candidates are timed. 0 means 15.
	Rounds int
	// Warm is the time for which the default tiling runs before measuring starts. 0 means 2 s,
	// after which a GPU at its power limit has its steady clock.
	Warm time.Duration
	// MinGain is the least gain of a choice over the default, as a fraction. 0 means 0.01.
	MinGain float64
	// Progress, unless nil, is called after each step. Calls do not overlap.
	Progress func(Progress)
}

// Progress is the progress of the search for one product.
type Progress struct {
	Product string
	// Stage is "compile", "verify" or "measure".
	Stage string
	// Done is the number of finished steps of the stage, and Total is the number of all its steps.
	// Tiling is the last candidate.
	Done, Total int
	Tiling      string
	Elapsed     time.Duration
}

// Candidate is a tiling that the search for a product considered.
type Candidate struct {
	Product, Tiling string
	// Default means that this is the cost model's tiling. Chosen means that the plan has it.
	Default, Chosen bool
	// Status is "measured", or a word that says why the candidate has no time: "skipped", "wrong"
	// or "rejected", for example.
	Status string
	// Estimate is the time by the cost model. Time is the measured time.
	Estimate, Time time.Duration
}

// WorkerMain turns the process into a tuning worker if Layer has started it as one. In a worker it
// does not return. A program that tunes calls WorkerMain first in main, so that candidates run in
// separate processes.
func WorkerMain() { autotune.WorkerMain() }

// Plan is the result of tuning. It has no effect until Save or Put.
type Plan struct {
	Config moe.Config
	Target driver.Target
	// Tilings has the tiling of each product that was tuned or that has a valid stored tiling. It
	// is an argument of moe.WithTilings.
	Tilings map[string]string
	// Valid names the products that were not tuned because they have a valid stored tiling.
	Valid []string
	Took  time.Duration

	reports     []*autotune.Report[gemm.Tiling]
	cache       *cache.Cache
	forwardOnly bool
	// valid has the stored choices of the products in Valid.
	valid []choice
}

// choice is a valid stored choice of a product, in the stored form.
type choice struct {
	of    spec.ProductID
	value []byte
}

// Layer tunes a layer's products one after another and returns a plan. Worker processes measure, on
// a device that they open as Options.Device says. Layers in use do not change.
// c.TokensHint determines the number of rows of an expert. The error is a *moe.ArgError, the error of
// ctx, an error of the device, or says that a default tiling gives wrong results. With an error, the
// plan has what was found before.
func Layer(ctx context.Context, dev driver.Device, c moe.Config, o Options) (*Plan, error) {
	start := time.Now()
	if ctx == nil {
		return nil, &moe.ArgError{Field: "ctx", Got: "nil", Want: "a context, such as context.Background()"}
	}
	if dev == nil {
		return nil, &moe.ArgError{Field: "dev", Got: "nil", Want: "a device"}
	}
	if err := dev.Err(); err != nil {
		return nil, err
	}
	if o.Cache == nil {
		o.Cache = cache.Open(cache.Options{})
	}
	if o.Budget <= 0 {
		o.Budget = 45 * time.Second
	}
	p := &Plan{Config: c.Normal(), Target: dev.Target(), Tilings: map[string]string{}, cache: o.Cache, forwardOnly: o.ForwardOnly}
	products, err := p.open(o)
	if err == nil {
		err = p.fits(dev)
	}
	if err != nil || len(products) == 0 {
		p.Took = time.Since(start)
		return p, err
	}
	if strings.HasPrefix(dev.Producer(), "emulated") {
		err = p.tuneEmulated(ctx, dev, products, o, start)
	} else {
		err = p.tune(ctx, dev, products, o, start.Add(o.Budget))
	}
	p.Took = time.Since(start)
	return p, err
}

// open checks the arguments and returns the products to tune.
func (p *Plan) open(o Options) ([]*registry.Product, error) {
	if err := moe.Check(p.Config); err != nil {
		return nil, err
	}
	if n := len(o.Histogram); o.Histogram != nil && n != p.Config.NumExperts {
		return nil, &moe.ArgError{Field: "Histogram", Got: fmt.Sprintf("%d experts", n), Want: fmt.Sprint(p.Config.NumExperts)}
	}
	for e, n := range o.Histogram {
		if n < 0 {
			return nil, &moe.ArgError{Field: fmt.Sprintf("Histogram[%d]", e), Got: fmt.Sprint(n), Want: "0 or more"}
		}
	}
	for _, name := range o.Products {
		product, err := kernel.Kernels.FindProduct(name)
		if err != nil {
			return nil, err
		}
		if o.ForwardOnly && product.Backward() {
			return nil, &moe.ArgError{Field: "Products", Got: fmt.Sprintf("%q, of backward", name), Want: "products of forward, because ForwardOnly is set"}
		}
		if isLeftOut(p.Config, product) {
			return nil, &moe.ArgError{Field: "Products", Got: fmt.Sprintf("%q, gradients of the experts' weights", name), Want: "other products: packed weights have no gradients"}
		}
	}
	var list []*registry.Product
	for _, product := range kernel.Kernels.Products() {
		if o.ForwardOnly && product.Backward() || isLeftOut(p.Config, product) || len(o.Products) > 0 && !slices.Contains(o.Products, product.String()) {
			continue
		}
		if point, value, ok := p.stored(product); ok && !o.Again {
			p.Tilings[product.String()] = point.String()
			p.Valid = append(p.Valid, product.String())
			p.valid = append(p.valid, choice{product.ID, value})
			continue
		}
		list = append(list, product)
	}
	return list, nil
}

// isLeftOut reports whether a layer has no kernel of a product, because packed weights have no
// gradients.
func isLeftOut(c moe.Config, product *registry.Product) bool {
	return spec.IsPacked(c) && (product.ID == spec.ProductDW1 || product.ID == spec.ProductDW2)
}

// fits returns an error if the tensors exceed the device's memory. It runs before the host
// allocates them.
func (p *Plan) fits(dev driver.Device) error {
	_, total, err := dev.Memory()
	if err != nil {
		return err
	}
	tokens := tokensOf(p.Config)
	s := p.Config.Shapes(tokens)
	if need := s.X.Bytes() + s.O.Bytes() + s.H.Bytes() + s.A.Bytes() + s.Y.Bytes() + s.W1.Bytes() + s.W2.Bytes(); need > total {
		return &moe.ArgError{Field: "Config.TokensHint", Got: fmt.Sprintf("%d tokens (%d MiB of tensors at least)", tokens, need>>20),
			Want: fmt.Sprintf("few enough that their tensors fit the device's %d MiB", total>>20)}
	}
	return nil
}

// stored returns a product's valid stored choice, and its stored form.
func (p *Plan) stored(product *registry.Product) (gemm.Tiling, []byte, bool) {
	var digest string
	point, origin, _ := autotune.Pick(p.cache, emit.Key(p.Target, p.Config, product.ID), func(q gemm.Tiling) (string, error) {
		sources, _, err := emit.Product(p.Target, p.Config, product, q)
		digest = autotune.Digest(sources)
		return digest, err
	})
	if origin != autotune.Tuned {
		return gemm.Tiling{}, nil, false
	}
	value, err := autotune.Encode(point, digest)
	return point, value, err == nil
}

// tuneEmulated calls tune with a context that ends with the budget.
func (p *Plan) tuneEmulated(ctx context.Context, dev driver.Device, products []*registry.Product, o Options, start time.Time) error {
	limited, cancel := context.WithDeadline(ctx, start.Add(o.Budget))
	defer cancel()
	err := p.tune(limited, dev, products, o, start.Add(o.Budget*3/4))
	if err != nil && ctx.Err() == nil && limited.Err() != nil {
		return fmt.Errorf("the budget of %v ended before all of %d products were tuned; the emulated device is slow, a smaller layer suits it: %w", o.Budget, len(products), limited.Err())
	}
	return err
}

// tune searches the tilings of the products, all on one bench.
func (p *Plan) tune(ctx context.Context, dev driver.Device, products []*registry.Product, o Options, deadline time.Time) error {
	if o.Device == "" {
		o.Device = "cuda"
		if strings.HasPrefix(dev.Producer(), "emulated") {
			o.Device = "emulated"
		}
	}
	backward := slices.ContainsFunc(products, func(k *registry.Product) bool { return k.Backward() })
	search := autotune.Options{Cache: o.Cache, Budget: o.Budget, Most: o.Most, Rounds: o.Rounds, Warm: o.Warm, MinGain: o.MinGain}
	if o.Progress != nil {
		search.Progress = func(a autotune.Progress) {
			o.Progress(Progress{a.Problem, a.Stage, a.Done, a.Total, a.Point, a.Elapsed})
		}
	}
	s, err := autotune.NewSession(dev, layers, task{o.Device, p.Target, p.Config, o.Histogram, backward}, search)
	if err != nil {
		return err
	}
	defer s.Close()
	for i, product := range products {
		// A product gets an equal share of the remaining time, so later products also get the time
		// that earlier ones did not use.
		s.SetBudget(max(time.Second, time.Until(deadline)/time.Duration(len(products)-i)))
		r, err := s.Tune(ctx, p.problem(product))
		if r != nil {
			p.reports = append(p.reports, r)
		}
		if err != nil {
			return err
		}
		p.Tilings[product.String()] = r.Chosen.String()
	}
	return nil
}

// problem returns the description of the search for one product's tiling.
func (p *Plan) problem(product *registry.Product) autotune.Problem[gemm.Tiling] {
	def := kernel.Choose(p.Config, p.Target)
	problem := autotune.Problem[gemm.Tiling]{
		Name: product.String(), Key: emit.Key(p.Target, p.Config, product.ID), Default: def[product.ID],
		Sources: func(q gemm.Tiling) ([]jit.Source, error) {
			sources, _, err := emit.Product(p.Target, p.Config, product, q)
			return sources, err
		},
	}
	for _, a := range product.Alternatives(p.Config, p.Target) {
		problem.Space = append(problem.Space, autotune.Candidate[gemm.Tiling]{Point: a.Tiling, Estimate: a.Estimate, Rejected: a.Rejected})
	}
	return problem
}

// Put stores all choices of the plan, including the valid ones that were not tuned, in a cache or
// an autotune.File.
func (p *Plan) Put(to interface {
	PutChoice(key string, value []byte) error
}) error {
	put := func(product string, key autotune.Key, value []byte) error {
		if err := to.PutChoice(key.String(), value); err != nil {
			return fmt.Errorf("the choice of %s: %w", product, err)
		}
		return nil
	}
	for _, c := range p.valid {
		if err := put(c.of.String(), emit.Key(p.Target, p.Config, c.of), c.value); err != nil {
			return err
		}
	}
	for _, r := range p.reports {
		if r.PTX == "" {
			continue // the search for this product did not finish
		}
		value, err := r.Record()
		if err != nil {
			return err
		}
		if err := put(r.Problem, r.Key, value); err != nil {
			return err
		}
	}
	return nil
}

// Save stores the choices in Options.Cache. It also stores the machine code of the layer with these
// choices (with ForwardOnly, of a layer without backward). A later process then tunes nothing and
// compiles nothing.
func (p *Plan) Save(ctx context.Context, dev driver.Device) error {
	if len(p.reports) > 0 {
		if err := p.Put(p.cache); err != nil {
			return err
		}
	}
	opts := []moe.Option{moe.WithTunedFrom(p.cache)}
	if p.forwardOnly {
		opts = append(opts, moe.WithoutBackward())
	}
	sources, err := hook.Sources(p.Target, p.Config, opts)
	if err != nil {
		return err
	}
	by, err := gpu.Of(dev)
	if err != nil {
		return err
	}
	return jit.Warm(ctx, p.cache, p.Target.Arch, sources, jit.WarmOptions{By: by})
}

// Candidates lists the candidates of the tuned products, product by product. The default comes
// first, then the others by increasing estimate.
func (p *Plan) Candidates() []Candidate {
	var list []Candidate
	for _, r := range p.reports {
		for _, row := range r.Rows {
			list = append(list, Candidate{Product: r.Problem, Tiling: row.Point.String(), Default: row.Point == r.Default, Chosen: row.Point == r.Chosen,
				Status: row.Status.String(), Estimate: row.Estimate, Time: row.Median})
		}
	}
	return list
}

// String returns the reports of the products, one after another.
func (p *Plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "layer %v, %v rows an expert, on %s with %d SMs\n", p.Config, autotune.BucketOf(registry.RowsPerExpert(p.Config)), p.Target.Name, p.Target.SMs)
	if len(p.Valid) > 0 {
		fmt.Fprintf(&b, "tuned before: %s\n", strings.Join(p.Valid, ", "))
	}
	for _, r := range p.reports {
		fmt.Fprintf(&b, "\n%v", r)
	}
	ended := 0
	for _, r := range p.reports {
		if r.PTX != "" {
			ended++
		}
	}
	fmt.Fprintf(&b, "\n%d products tuned in %v\n", ended, p.Took.Round(time.Millisecond))
	return b.String()
}
