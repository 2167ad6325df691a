package moe

import (
	"encoding/binary"

	"sonicmoe/driver"
)

// KernelNames are the kernels in the order of RunKernel's numbers.
var KernelNames = kernelNames[:]

// RunKernel queues one kernel again with the parameters of its last run. It
// does nothing for a kernel that has not run.
func (c *Call) RunKernel(i int, s driver.Stream) (bool, error) {
	b := &c.bindings[i]
	if b.launch.Grid.X == 0 {
		return false, nil
	}
	if i == upTrain || i == upInfer || i == down {
		// Only the plan zeroes the tile counters.
		p := driver.DevicePtr(binary.LittleEndian.Uint64(c.bindings[plan].at("tickets")))
		if err := s.Fill32(p, 0, 2); err != nil {
			return true, err
		}
	}
	return true, b.run(s, b.launch.Grid.X)
}
