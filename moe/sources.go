package moe

import (
	"context"
	"errors"
	"sonicmoe/internal/spec"

	"sonicmoe/cache"
	"sonicmoe/driver"
	"sonicmoe/jit"
	"sonicmoe/moe/internal/emit"
	"sonicmoe/moe/internal/hook"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/ptx/ptxas"
)

func init() {
	hook.Sources = func(t driver.Target, c Config, opts any) ([]jit.Source, error) { return sources(t, c, opts.([]Option)) }
}

// Warm fills a cache with the kernels that [New] compiles for a device of the target with the same
// options. New then finds them and compiles nothing. Warm needs no device. ptxas makes the machine
// code if it is installed (PyPI package nvidia-cuda-nvcc); otherwise the cache gets only PTX.
// WithCache, WithoutCache and WithLogger are ignored, and tuned tilings come only from
// WithTunedFrom. Warm returns an *ArgError for a wrong Config or tiling, an error with the target's
// name if its compute capability is not 9.0, or an error of the cache.
//
// Only the target's shared memory and its number of SMs matter, because the choice of tilings
// depends on them.
func Warm(ctx context.Context, c *cache.Cache, t driver.Target, config Config, opts ...Option) error {
	list, err := sources(t, config, opts)
	if err != nil {
		return err
	}
	by, err := jit.Ptxas(ctx, t.Arch)
	if err != nil && !errors.Is(err, ptxas.ErrNotFound) {
		return err
	}
	return jit.Warm(ctx, c, t.Arch, list, jit.WarmOptions{By: by})
}

// sources emits the kernels that New compiles for a device of the target.
func sources(t driver.Target, c Config, opts []Option) ([]jit.Source, error) {
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
	if err := suitsTarget(t); err != nil {
		return nil, err
	}
	l := &Layer{of: registry.Layer{Config: c.Normal()}}
	done, err := l.choose(t, o)
	if err != nil {
		return nil, err
	}
	l.withShared(t, o)
	var list []jit.Source
	for ; l != nil; l, done = l.shared, nil {
		for _, k := range o.wanted(l.of) {
			_, s, err := emit.Kernel(l.of, k, done)
			if err != nil {
				return nil, err
			}
			list = append(list, s)
		}
	}
	return list, nil
}
