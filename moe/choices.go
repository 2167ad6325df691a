package moe

import (
	"fmt"
	"maps"
	"reflect"

	"golang.org/x/sync/errgroup"

	"sonicmoe/autotune"
	"sonicmoe/driver"
	"sonicmoe/jit"
	"sonicmoe/jit/gemm"
	"sonicmoe/moe/internal/kernel"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/tiles"
)

// WithTunedFrom takes tuned tilings from a store in place of the cache, such
// as one autotune.File for all ranks of a job; with nil the cost model alone
// decides. Either way every process that is told the same takes the same
// tilings. Results are the same bits with any.
func WithTunedFrom(s autotune.Store) Option {
	if v := reflect.ValueOf(s); v.Kind() == reflect.Pointer && v.IsNil() {
		s = nil // a *autotune.File that nobody has read
	}
	return func(o *options) { o.choices, o.ownChoices = s, true }
}

// ChoiceKey is what the tuned tiling of a product is stored under: by the rows
// per expert that TokensHint makes, in wide buckets.
func ChoiceKey(t driver.Target, c Config, product string) autotune.Key {
	return autotune.Key{Subject: fmt.Sprintf("moe %s %v", product, c), GPU: t.Name, SMs: t.SMs,
		Bucket: autotune.BucketOf(registry.RowsPerExpert(c))}
}

// ProductSources emits the kernels that the layer has of a product with a
// tiling, the one that tuning times first: those that a stored choice's digest
// is of.
func ProductSources(t driver.Target, c Config, product string, p gemm.Tiling) ([]jit.Source, error) {
	if err := Check(c); err != nil {
		return nil, err
	}
	of, err := kernel.Kernels.FindProduct(product)
	if err != nil {
		return nil, err
	}
	sources, _, err := emitProduct(t, c, of, p)
	return sources, err
}

// emitProduct emits the kernels of a product with a tiling, in the registry's
// order.
func emitProduct(t driver.Target, c Config, of *registry.Product, p gemm.Tiling) ([]jit.Source, emitted, error) {
	if err := of.Check(p, t); err != nil {
		return nil, nil, err
	}
	var sources []jit.Source
	done := emitted{}
	for _, k := range kernel.Kernels.OfProduct(of) {
		b, s, err := emit(registry.Layer{Config: c, Tiles: tiles.Choice{of.Name: p}}, k, nil)
		if err != nil {
			return nil, nil, err
		}
		done[k], sources = b, append(sources, s)
	}
	return sources, done, nil
}

// choose takes the caller's tilings, else those that were tuned, else the cost
// model's. It returns the kernels that were emitted to see whether stored
// choices are valid.
func (l *Layer) choose(t driver.Target, o options) (emitted, error) {
	if err := kernel.Kernels.Check(o.tiles, t); err != nil {
		return nil, err
	}
	var products []*registry.Product
	for _, p := range kernel.Kernels.Products() {
		if !p.Backward || !o.forwardOnly {
			products = append(products, p)
		}
	}
	picks := make([]picked, len(products))
	var g errgroup.Group
	for i, p := range products {
		_, given := o.tiles[p.Name]
		switch {
		case given:
			picks[i].origin = autotune.Given
		case o.choices != nil:
			g.Go(func() error {
				picks[i] = l.pick(t, p, o)
				return nil
			})
		}
	}
	_ = g.Wait() // no error can come
	l.of.Tiles, l.chosenBy = o.tiles.OrElse(kernel.Choose(l.of.Config, t)), map[string]autotune.Origin{}
	all := emitted{}
	for i, p := range products {
		if picks[i].origin == autotune.Tuned {
			l.of.Tiles[p.Name] = picks[i].tiling
			maps.Copy(all, picks[i].kernels)
		}
		l.chosenBy[p.Name] = picks[i].origin
		if o.logger != nil {
			o.logger.Info("tiles", "product", p.Name, "tiling", l.of.Tiles[p.Name].String(), "from", picks[i].origin.String())
		}
	}
	return all, nil
}

// picked is a product's tiling, and its kernels where they have been emitted.
type picked struct {
	origin  autotune.Origin
	tiling  gemm.Tiling
	kernels emitted
}

// pick takes a product's stored tiling, if it is valid.
func (l *Layer) pick(t driver.Target, p *registry.Product, o options) (found picked) {
	var why error
	found.tiling, found.origin, why = autotune.Pick(o.choices, ChoiceKey(t, l.of.Config, p.Name), func(q gemm.Tiling) (digest string, err error) {
		sources, kernels, err := emitProduct(t, l.of.Config, p, q)
		if err != nil {
			return "", err
		}
		found.kernels = kernels
		return autotune.Digest(sources), nil
	})
	if why != nil && o.logger != nil {
		o.logger.Warn("a tuned choice is not used, the cost model decides", "product", p.Name, "error", why)
	}
	return found
}

// ChosenBy tells for each product where its tiling comes from.
func (l *Layer) ChosenBy() map[string]autotune.Origin {
	if l == nil {
		return nil
	}
	return maps.Clone(l.chosenBy)
}
