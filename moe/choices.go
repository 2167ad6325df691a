package moe

import (
	"maps"

	"golang.org/x/sync/errgroup"

	"sonicmoe/autotune"
	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/jit/gemm"
	"sonicmoe/moe/internal/emit"
	"sonicmoe/moe/internal/kernel"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/tiles"
)

// choose picks the tilings. The caller's tilings come first, then tuned ones, then the cost
// model's. It returns the kernels that it emitted to check stored choices.
func (l *Layer) choose(t driver.Target, o options) (emit.Built, error) {
	given, err := tiles.Parse(o.tilings)
	if err == nil {
		err = kernel.Kernels.Check(given, t)
	}
	if err != nil {
		return nil, err
	}
	var products []*registry.Product
	for _, p := range kernel.Kernels.Products() {
		if !p.Backward() || !o.forwardOnly {
			products = append(products, p)
		}
	}
	picks := make([]picked, len(products))
	var g errgroup.Group
	for i, p := range products {
		switch {
		case given[p.ID] != gemm.Tiling{}:
			picks[i].origin = autotune.Given
		case o.choices != nil:
			g.Go(func() error {
				picks[i] = l.pick(t, p, o)
				return nil
			})
		}
	}
	_ = g.Wait() // the goroutines return no errors
	l.of.Tiles, l.chosenBy = given.OrElse(kernel.Choose(l.of.Config, t)), map[spec.ProductID]autotune.Origin{}
	all := emit.Built{}
	for i, p := range products {
		if picks[i].origin == autotune.Tuned {
			l.of.Tiles[p.ID] = picks[i].tiling
			maps.Copy(all, picks[i].kernels)
		}
		l.chosenBy[p.ID] = picks[i].origin
		if o.logger != nil {
			o.logger.Info("tiles", "product", p.String(), "tiling", l.of.Tiles[p.ID].String(), "from", picks[i].origin.String())
		}
	}
	return all, nil
}

// picked is a product's tiling. It has the product's kernels if they have been emitted.
type picked struct {
	origin  autotune.Origin
	tiling  gemm.Tiling
	kernels emit.Built
}

// pick returns a product's stored tiling if it is valid.
func (l *Layer) pick(t driver.Target, p *registry.Product, o options) (found picked) {
	var why error
	found.tiling, found.origin, why = autotune.Pick(o.choices, emit.Key(t, l.of.Config, p.ID), func(q gemm.Tiling) (digest string, err error) {
		sources, kernels, err := emit.Product(t, l.of.Config, p, q)
		if err != nil {
			return "", err
		}
		found.kernels = kernels
		return autotune.Digest(sources), nil
	})
	if why != nil && o.logger != nil {
		o.logger.Warn("a tuned choice is not used, the cost model decides", "product", p.String(), "error", why)
	}
	return found
}

// ChosenBy returns, for each product, the origin of its tiling: "given", "tuned", or "cost model".
// "cost model" may be followed by the reason why a stored tiling is not used.
func (l *Layer) ChosenBy() map[string]string {
	if l == nil {
		return nil
	}
	chosen := make(map[string]string, len(l.chosenBy))
	for product, origin := range l.chosenBy {
		chosen[product.String()] = origin.String()
	}
	return chosen
}
