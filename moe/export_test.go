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

// ForwardKernels and BackwardKernels are the numbers of the passes' kernels,
// in the order of their launches.
var ForwardKernels, BackwardKernels = numbers(0, planPairs), append([]int{count}, numbers(planPairs, kernelCount)...)

func numbers(from, to int) []int {
	var list []int
	for i := from; i < to; i++ {
		list = append(list, i)
	}
	return list
}

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
	if b.Binding == nil || b.Shape.Grid.X == 0 || i == upInfer && c.bindings[upTrain].Shape.Grid.X > 0 {
		return false, nil
	}
	return true, b.run(s, b.Shape.Grid.X)
}

// RunKernel queues one kernel again with the parameters of its last run, which
// was part of f. It does nothing for a kernel that has not run.
func (c *Call) RunKernel(i int, s driver.Stream, f Forward) (bool, error) {
	b := &c.bindings[i]
	if b.Binding == nil || b.Shape.Grid.X == 0 {
		return false, nil
	}
	if i == upTrain || i == upInfer || i == down {
		// Only the plan zeroes the tile counters.
		w := c.layer.workspace(int(f.X.Shape.Dims[0]))
		if err := s.Fill32(at(f.Workspace.Ptr, w.tickets), 0, 2); err != nil {
			return true, err
		}
	}
	return true, b.run(s, b.Shape.Grid.X)
}

// The numbers of backward's kernels that tests run by themselves.
const (
	DW2Kernel        = dw2 // and those that write otherwise
	DW1Kernel        = dw1
	DXKernel         = dx
	SumKernel        = sum
	DRouterKernel    = drouter
	DRouterSumKernel = drouterSum
)

// BackwardRegions are the parts of a backward workspace that later kernels
// read, by name: offset and bytes. They are not all alive at once.
func (l *Layer) BackwardRegions(tokens int) map[string][2]int64 {
	w, g := l.backwardWorkspace(tokens), l.config.Gradients(tokens, BF16)
	rows := int64(tokens) * int64(l.config.TopK)
	return map[string][2]int64{
		"pairs":   {w.pairs, 4 * rows},
		"dlogits": {w.dlogits, g.DScores.Bytes()},
		"dlrow":   {w.dlrow, 4 * rows},
		"dH":      {w.dh, g.DH.Bytes()},
		"A'":      {w.scaledA, g.ScaledA.Bytes()},
		"dX~":     {w.dxRows, g.DXRows.Bytes()},
	}
}

// RunBackwardKernel queues one kernel again with the parameters of its last
// run, which was part of b.
func (c *Call) RunBackwardKernel(i int, s driver.Stream, b Backward) error {
	w := c.layer.backwardWorkspace(int(b.X.Shape.Dims[0]))
	switch {
	case i == dh || i == dx || i == dxGiven:
		if err := s.Fill32(at(b.Workspace.Ptr, w.tickets), 0, 2); err != nil {
			return err
		}
	case i >= dw2 && i < dx:
		if err := c.bindings[planSplits].run(s, c.bindings[planSplits].Shape.Grid.X); err != nil {
			return err
		}
	}
	return c.bindings[i].run(s, c.bindings[i].Shape.Grid.X)
}
