package moe

import (
	"sonicmoe/driver"
	"sonicmoe/jit"
)

// Sources emits the kernels that [New] would compile for a device of that
// target, with the same options, without a device: the list that [jit.Warm]
// fills a cache from. Of the options WithChoice, WithChoices and
// WithoutBackward matter: tuned points are those of WithChoices alone.
// Errors: *ArgError for a wrong Config or Choice, and one that names the target
// where it is not of compute capability 9.0.
//
// What New compiles depends on the target's shared memory and its number of
// SMs, through the choice of tile shapes, and on nothing else of it.
func Sources(t driver.Target, c Config, opts ...Option) ([]jit.Source, error) {
	var o options
	for _, f := range opts {
		f(&o)
	}
	if err := c.Check(); err != nil {
		return nil, err
	}
	if err := suitsTarget(t); err != nil {
		return nil, err
	}
	l := &Layer{config: c}
	if err := l.choose(t, o); err != nil {
		return nil, err
	}
	var sources []jit.Source
	for i, b := range l.builders(o) {
		if b == nil {
			continue
		}
		_, s, err := l.emit(i, b)
		if err != nil {
			return nil, err
		}
		sources = append(sources, s)
	}
	return sources, nil
}
