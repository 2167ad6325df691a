package moe

import "sonicmoe/driver"

// KernelNames are the kernels in the order of RunKernel's numbers.
var KernelNames = kernelNames[:]

// RunKernel queues one kernel again with the parameters of its last run. It
// does nothing for a kernel that has not run.
func (c *Call) RunKernel(i int, s driver.Stream) (bool, error) {
	b := &c.bindings[i]
	if b.launch.Grid.X == 0 {
		return false, nil
	}
	return true, b.run(s, b.launch.Grid.X)
}
