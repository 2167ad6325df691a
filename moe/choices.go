package moe

import (
	"fmt"

	"golang.org/x/sync/errgroup"

	"sonicmoe/autotune"
	"sonicmoe/driver"
	"sonicmoe/jit"
	"sonicmoe/moe/kernel"
)

// WithChoices takes tuned tile points from a store in place of the cache, such
// as one autotune.File for all ranks of a job; with nil the cost model alone
// decides. Either way every process that is told the same takes the same
// points. Results are the same bits with any.
func WithChoices(s autotune.Store) Option {
	return func(o *options) { o.choices, o.ownChoices = s, true }
}

// ChoiceKey is what the tuned point of a product (kernel.Products) is stored
// under: by the rows per expert that TokensHint makes, in wide buckets.
func ChoiceKey(t driver.Target, c Config, product string) autotune.Key {
	return autotune.Key{Subject: fmt.Sprintf("moe %s %v", product, c), GPU: t.Name, SMs: t.SMs,
		Bucket: autotune.BucketOf(kernel.RowsPerExpert(c))}
}

// productKernels are the kernels of each product.
var productKernels = map[string][]int{
	"up": {upTrain, upInfer}, "down": {down}, "dh": {dh}, "dx": {dx, dxGiven},
	"dw1": {dw1, dw1 + 1, dw1 + 2, dw1 + 3}, "dw2": {dw2, dw2 + 1, dw2 + 2, dw2 + 3},
}

// ProductSources emits the kernels that the layer has of a product at a point,
// the one that tuning times first: those that a stored choice's digest is of.
func ProductSources(t driver.Target, c Config, product string, p kernel.Point) ([]jit.Source, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	list, err := emitProduct(t, c, product, p)
	if err != nil {
		return nil, err
	}
	var sources []jit.Source
	for _, e := range list {
		sources = append(sources, e.source)
	}
	return sources, nil
}

// emitted is a kernel that is ready to be loaded.
type emitted struct {
	kernel.Kernel
	source jit.Source
}

// emitProduct emits the kernels of a product at a point, in productKernels'
// order.
func emitProduct(t driver.Target, c Config, product string, p kernel.Point) ([]emitted, error) {
	which, err := kernel.FindProduct(product)
	if err != nil {
		return nil, err
	}
	if p == (kernel.Point{}) { // which Check takes for the cost model's
		return nil, &ArgError{Field: "point of " + product, Got: "the zero Point", Want: "a tile point"}
	}
	l := &Layer{config: c}
	*which.At(&l.choice) = p
	if err := l.choice.Check(t); err != nil {
		return nil, err
	}
	builders := l.builders(options{})
	var list []emitted
	for _, i := range productKernels[product] {
		k, s, err := l.emit(i, builders[i])
		if err != nil {
			return nil, err
		}
		list = append(list, emitted{k, s})
	}
	return list, nil
}

// choose takes the caller's tile points, else those that were tuned, else the
// cost model's.
func (l *Layer) choose(t driver.Target, o options) error {
	var given kernel.Choice
	if o.choice != nil {
		given = *o.choice
	}
	if err := given.Check(t); err != nil {
		return err
	}
	l.emitted = &[kernelCount]*emitted{}
	l.choice = given.OrElse(kernel.Choose(l.config, t))
	products := kernel.Products()
	origins := make([]autotune.Origin, len(products))
	var g errgroup.Group
	for i, p := range products {
		if *p.At(&given) != (kernel.Point{}) {
			origins[i] = autotune.Given
			continue
		}
		if o.choices == nil || p.Backward && o.forwardOnly {
			continue
		}
		g.Go(func() error {
			origins[i] = l.pick(t, p, o)
			return nil
		})
	}
	_ = g.Wait() // no error can come
	l.chosenBy = map[string]autotune.Origin{}
	for i, p := range products {
		if p.Backward && o.forwardOnly {
			continue
		}
		l.chosenBy[p.Name] = origins[i]
		if o.logger != nil {
			o.logger.Info("tile point", "product", p.Name, "point", p.At(&l.choice).String(), "from", origins[i].String())
		}
	}
	return nil
}

// pick takes a product's stored point, if it is valid, and keeps the kernels
// that were emitted to see that.
func (l *Layer) pick(t driver.Target, p kernel.Product, o options) autotune.Origin {
	var list []emitted
	point, origin, why := autotune.Pick(o.choices, ChoiceKey(t, l.config, p.Name), func(q kernel.Point) (digest string, err error) {
		if list, err = emitProduct(t, l.config, p.Name, q); err != nil {
			return "", err
		}
		var sources []jit.Source
		for _, e := range list {
			sources = append(sources, e.source)
		}
		return autotune.Digest(sources), nil
	})
	if origin == autotune.Tuned {
		*p.At(&l.choice) = point
		for n, i := range productKernels[p.Name] {
			l.emitted[i] = &list[n]
		}
	}
	if why != nil && o.logger != nil {
		o.logger.Warn("a tuned choice is not used, the cost model decides", "product", p.Name, "error", why)
	}
	return origin
}

// ChosenBy tells for each product where its tile point comes from.
func (l *Layer) ChosenBy() map[string]autotune.Origin {
	m := map[string]autotune.Origin{}
	for name, o := range l.chosenBy {
		m[name] = o
	}
	return m
}
