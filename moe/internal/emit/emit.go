// Package emit emits the kernels of a layer, and names its stored tilings.
package emit

import (
	"fmt"

	"sonicmoe/autotune"
	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/gemm"
	"sonicmoe/moe/internal/kernel"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/tiles"
)

// Built has the kernels of a layer that have been emitted.
type Built map[registry.Any]registry.Built

// Kernel returns a kernel and its source. It emits the kernel unless done has it.
func Kernel(l registry.Layer, k registry.Any, done Built) (registry.Built, jit.Source, error) {
	b := done[k]
	if b == nil {
		var err error
		if b, err = k.Build(l); err != nil {
			return nil, jit.Source{}, err
		}
	}
	return b, b.Source(fmt.Sprintf("%s %s", l.KernelName(k), l.Config)), nil
}

// Product emits the kernels of a product with a tiling, in the registry's order. The digest that is
// stored with a measured tiling is computed from these sources.
func Product(t driver.Target, c spec.Config, of *registry.Product, p gemm.Tiling) ([]jit.Source, Built, error) {
	if err := of.Check(p, t); err != nil {
		return nil, nil, err
	}
	var sources []jit.Source
	done := Built{}
	for _, k := range kernel.Kernels.OfProduct(of) {
		if !k.Suits(c) {
			continue
		}
		b, s, err := Kernel(registry.Layer{Config: c, Tiles: tiles.Choice{}.With(of.ID, p)}, k, nil)
		if err != nil {
			return nil, nil, err
		}
		done[k], sources = b, append(sources, s)
	}
	return sources, done, nil
}

// Key returns the key of a product's stored tiling. The key contains the number of rows of an
// expert at TokensHint, rounded to a bucket of similar numbers.
func Key(t driver.Target, c spec.Config, product spec.ProductID) autotune.Key {
	return autotune.Key{Subject: fmt.Sprintf("moe %s %v", product, c), GPU: t.Name, SMs: t.SMs,
		Bucket: autotune.BucketOf(registry.RowsPerExpert(c))}
}
