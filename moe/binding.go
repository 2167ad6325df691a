package moe

import (
	"sonicmoe/driver"
	"sonicmoe/jit"
	"sonicmoe/moe/registry"
)

// launch queues one of the layer's kernels, after telling the call's observer.
func launch[A any](c *Call, s driver.Stream, k *registry.Kernel[A], args A) error {
	if c.observer != nil {
		if err := c.observer(k.KernelName, s); err != nil {
			return err
		}
	}
	return registry.Of(c.launchers, k).Launch(s, args)
}

// launcher is a kernel's own, or nil when the layer is without it.
func launcher[A any](c *Call, k *registry.Kernel[A]) *jit.Launcher[A] {
	return registry.Of(c.launchers, k)
}
