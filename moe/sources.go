package moe

import (
	"sonicmoe/driver"
	"sonicmoe/jit"
	"sonicmoe/moe/internal/registry"
)

// Sources emits the kernels that [New] would compile for a device of that
// target, with the same options, without a device: the list that [jit.Warm]
// fills a cache from. Of the options WithTiles, WithTunedFrom,
// WithDecode, WithGradients and WithoutBackward matter: tuned tilings are those of WithTunedFrom alone.
// Errors: *ArgError for a wrong Config or tiling, and one that names the target
// where it is not of compute capability 9.0. Modules are not to be changed: layers
// share them.
//
// What New compiles depends on the target's shared memory and its number of
// SMs, through the choice of tile shapes, and on nothing else of it.
func Sources(t driver.Target, c Config, opts ...Option) ([]jit.Source, error) {
	var o options
	for _, f := range opts {
		f(&o)
	}
	if err := Check(c); err != nil {
		return nil, err
	}
	if err := o.checkGradients(c); err != nil {
		return nil, err
	}
	if err := suitsTarget(t); err != nil {
		return nil, err
	}
	l := &Layer{of: registry.Layer{Config: c}}
	done, err := l.choose(t, o)
	if err != nil {
		return nil, err
	}
	l.withShared(t, o)
	var sources []jit.Source
	for ; l != nil; l, done = l.shared, nil {
		for _, k := range o.wanted(l.of) {
			_, s, err := emit(l.of, k, done)
			if err != nil {
				return nil, err
			}
			sources = append(sources, s)
		}
	}
	return sources, nil
}
