package tune

import (
	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/moe"
	"sonicmoe/moe/internal/kernel"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/tiles"
)

// Product is one of a layer's products that have a tiling: its space of tilings, what the
// cost model says of each, and the least work it has to do.
type Product = registry.Product

// Model is the cost model that picks tilings without measuring: constants of one
// chip, in clocks of an SM, which examples/bench -fit fits to measured points.
type Model = tiles.Model

// H200 is the cost model that moe.New chooses by.
func H200() Model { return tiles.H200 }

// Products lists the products of every layer, forward's first.
func Products() []*Product { return kernel.Kernels.Products() }

// FindProduct is the product of that name; the error lists the known ones.
func FindProduct(name string) (*Product, error) { return kernel.Kernels.FindProduct(name) }

// Choose picks every product's tiling by the cost model, as moe.New does where
// nothing was tuned.
func Choose(c moe.Config, t driver.Target) moe.Tiles { return kernel.Choose(c, t) }

// Check returns nil, or a [*spec.ArgError] that names the first product that
// there is not, or the first tiling that no kernel can have on the target.
func Check(c moe.Tiles, t driver.Target) error { return kernel.Kernels.Check(c, t) }

// WorkOf is the least that one kernel of a layer has to do, by the name that
// moe.Layer.Kernels gives it; none for what a roofline leaves out, and for the
// kernels of shared experts, which are the layer's own once more.
func WorkOf(name string, c moe.Config, tokens int) []spec.Work {
	k := kernel.Kernels.Find(name)
	if k == nil {
		return nil
	}
	return k.Work(c, tokens)
}

// RowsPerExpert is the average number of rows of an expert at the layer's
// TokensHint, at least 1: what stored choices go by.
func RowsPerExpert(c moe.Config) int { return registry.RowsPerExpert(c) }
