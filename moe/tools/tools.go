// Package tools is for the commands and tests of this repository. It gives access to the products
// of a layer with their tilings, the cost model, and the PTX of the kernels. v1 makes no promise
// about it.
package tools

import (
	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/moe"
	"sonicmoe/moe/internal/hook"
	"sonicmoe/moe/internal/kernel"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/tiles"
)

// Product is a matrix product of a layer that has a tiling. It has the product's space of tilings,
// the cost model's estimates, and the least work of the product.
type Product = registry.Product

// Tilings has the tiling of each product, by the product's id. A zero tiling means none. The method
// Text returns the argument of moe.WithTilings.
type Tilings = tiles.Choice

// Model is the cost model that picks tilings without measuring. It has the constants of one chip,
// in clocks of an SM. The command examples/bench -fit fits them to measured times.
type Model = tiles.Model

// H200 returns the cost model that moe.New uses.
func H200() Model { return tiles.H200 }

// Products lists the products of every layer, the products of the forward pass first.
func Products() []*Product { return kernel.Kernels.Products() }

// FindProduct returns the product of that name. The error lists the known names.
func FindProduct(name string) (*Product, error) { return kernel.Kernels.FindProduct(name) }

// ProductOf returns the product of a kernel, given the kernel's name in moe.Layer.Kernels. It
// returns nil for any other name.
func ProductOf(kernelName string) *Product {
	if k := kernel.Kernels.Find(kernelName); k != nil {
		return k.Product()
	}
	return nil
}

// Choose picks every product's tiling by the cost model, as moe.New does without
// tuned tilings.
func Choose(c moe.Config, t driver.Target) Tilings { return kernel.Choose(c, t) }

// Check returns nil, or a [*moe.ArgError] that names the first tiling that its product cannot have
// on the target.
func Check(c Tilings, t driver.Target) error { return kernel.Kernels.Check(c, t) }

// WorkOf returns the least work of a kernel, given the kernel's name in moe.Layer.Kernels. The
// result is empty for kernels that rooflines leave out, and for kernels of shared experts.
func WorkOf(name string, c moe.Config, tokens int) []spec.Work {
	k := kernel.Kernels.Find(name)
	if k == nil {
		return nil
	}
	return k.Work(c, tokens)
}

// RowsPerExpert returns the average number of rows of an expert at the layer's TokensHint, but at
// least 1. It is part of the keys of stored tilings.
func RowsPerExpert(c moe.Config) int { return registry.RowsPerExpert(c) }

// Sources emits the kernels that moe.New compiles for a device of the given target with the same
// options. It needs no device. It uses tuned tilings only with the option WithTunedFrom. Layers
// share the modules, so the caller must not change them.
func Sources(t driver.Target, c moe.Config, opts ...moe.Option) ([]jit.Source, error) {
	return hook.Sources(t, c, opts)
}
