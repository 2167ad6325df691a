package moe

import (
	"sonicmoe/driver"
)

// KernelNames are the kernels in the order of RunKernel's numbers.
var KernelNames = kernelNames[:]

// The numbers of kernels that tests run by themselves.
const (
	DownKernel      = down
	AggregateKernel = aggregate
)

// Regions are the parts of a workspace that later kernels read, by name:
// offset and bytes.
func (l *Layer) Regions(tokens int) map[string][2]int64 {
	w, c := l.workspace(tokens), l.config
	rows := int64(tokens) * int64(c.TopK)
	return map[string][2]int64{
		"offsets": {w.offsets, 4 * int64(c.Experts+1)},
		"blocks":  {w.blocks, 4},
		"table":   {w.table, w.gather - w.table},
		"gather":  {w.gather, 4 * rows},
		"inverse": {w.inverse, 4 * rows},
		"A":       {w.a, 2 * rows * int64(c.Intermediate)},
		"Y":       {w.y, 2 * rows * int64(c.Hidden)},
	}
}

// RunInSequence queues one kernel again with the parameters of its last run,
// after those that it needs. It does nothing for a kernel that has not run.
func (c *Call) RunInSequence(i int, s driver.Stream) (bool, error) {
	b := &c.bindings[i]
	if b.Shape.Grid.X == 0 || i == upInfer && c.bindings[upTrain].Shape.Grid.X > 0 {
		return false, nil
	}
	return true, b.run(s, b.Shape.Grid.X)
}

// RunKernel queues one kernel again with the parameters of its last run, which
// was part of f. It does nothing for a kernel that has not run.
func (c *Call) RunKernel(i int, s driver.Stream, f Forward) (bool, error) {
	b := &c.bindings[i]
	if b.Shape.Grid.X == 0 {
		return false, nil
	}
	if i == upTrain || i == upInfer || i == down {
		// Only the plan zeroes the tile counters.
		w := c.layer.workspace(int(f.X.Shape.Dims[0]))
		if err := s.Fill32(w.at(f.Workspace.Ptr, w.tickets), 0, 2); err != nil {
			return true, err
		}
	}
	return true, b.run(s, b.Shape.Grid.X)
}
