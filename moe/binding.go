package moe

import (
	"sonicmoe/driver"
	"sonicmoe/moe/internal/registry"
)

// launch queues one of the layer's kernels, after telling the call's observer.
func launch[A any](c *Call, s driver.Stream, k *registry.Kernel[A], args A) error {
	if c.observer != nil {
		if err := c.observer(c.layer.of.KernelName(k), s); err != nil {
			return err
		}
	}
	return registry.Of(c.launchers, k).Launch(s, args)
}
