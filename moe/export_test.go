package moe

import (
	"sonicmoe/driver"
	"sonicmoe/moe/internal/kernel"
	"sonicmoe/moe/internal/kernel/dh"
	"sonicmoe/moe/internal/kernel/dw"
	"sonicmoe/moe/internal/registry"
)

// Regions returns the parts of a workspace that later kernels read, by name. Each has an offset and
// a size in bytes.
func (l *Layer) Regions(tokens int) map[string][2]int64 {
	w, c := l.workspace(l.work(tokens)), l.of.Config
	rows := int64(tokens) * int64(c.TopK)
	return map[string][2]int64{
		"offsets": {w.offsets, 4 * int64(c.NumExperts+1)},
		"blocks":  {w.rowPairs, 4},
		"table":   {w.table, w.gather - w.table},
		"gather":  {w.gather, 4 * rows},
		"inverse": {w.inverse, 4 * rows},
		"A":       {w.a, 2 * rows * int64(c.Intermediate)},
		"Y":       {w.y, 2 * rows * int64(c.Hidden)},
	}
}

// RunKernel queues one kernel again with the arguments of its last launch, which was in the pass of
// f. It does nothing for a kernel that has not run.
func (c *Call) RunKernel(k registry.Any, s driver.Stream, f ForwardArgs) (bool, error) {
	if p := k.Product(); p == kernel.UpProduct || p == kernel.DownProduct {
		// In a pass only the plan sets the tile counters to 0.
		w := c.layer.workspace(c.layer.work(int(f.X.Shape.Dims[0])))
		if err := s.Fill32(at(f.Workspace.Ptr, w.tickets), 0, 2); err != nil {
			return true, err
		}
	}
	return c.launchers[k].Again(s)
}

// BackwardRegions returns the parts of a backward workspace that later kernels read, by name. Each
// has an offset and a size in bytes. Some of them share memory.
func (l *Layer) BackwardRegions(tokens int) map[string][2]int64 {
	w, g := l.backwardWorkspace(l.work(tokens)), l.of.Gradients(tokens, BF16)
	rows := int64(tokens) * int64(l.of.TopK)
	return map[string][2]int64{
		"pairs":       {w.pairs, 4 * rows},
		"dlogits":     {w.dlogits, g.DScores.Bytes()},
		"dlogitByRow": {w.dlogitByRow, 4 * rows},
		"dH":          {w.dh, g.DH.Bytes()},
		"A'":          {w.scaledA, g.ScaledA.Bytes()},
		"dX~":         {w.dxRows, g.DXRows.Bytes()},
	}
}

// RunBackwardKernel queues one kernel again with the arguments of its last launch, which was in the
// pass of b.
func (c *Call) RunBackwardKernel(k registry.Any, s driver.Stream, b BackwardArgs) error {
	w := c.layer.backwardWorkspace(c.layer.work(int(b.X.Shape.Dims[0])))
	switch k.Product() {
	case dh.Product, kernel.DXProduct:
		if err := s.Fill32(at(b.Workspace.Ptr, w.tickets), 0, 2); err != nil {
			return err
		}
	case dw.W1Product, dw.W2Product:
		if _, err := c.launchers[dw.PlanKernel].Again(s); err != nil {
			return err
		}
	}
	_, err := c.launchers[k].Again(s)
	return err
}

// BackwardPieces returns the offsets of the pieces of a backward workspace. It leaves out a piece
// that has the memory of an earlier piece.
func (l *Layer) BackwardPieces(tokens int) map[string]int64 {
	w := l.backwardWorkspace(l.work(tokens))
	pieces := map[string]int64{
		"counts": w.counts, "offsets": w.offsets, "table": w.table, "rowPairs": w.rowPairs, "tickets": w.tickets, "gather": w.gather,
		"inverse": w.inverse, "pairs": w.pairs, "dlogits": w.dlogits, "dscores": w.dscores, "dlogitByRow": w.dlogitByRow, "splits": w.splits,
		"splitCounts": w.splitCounts, "splitTickets": w.splitTickets, "states": w.states, "lossPartials": w.lossPartials, "first": w.dh, "second": w.dxRows,
	}
	if l.of.ExpertScale {
		pieces["scaleByRow"] = w.scaleByRow
	}
	return pieces
}

// FewTokens returns the largest small batch of a layer without options.
func FewTokens(c Config) int { return options{}.decodeUpTo(c) }

// SizesOn returns the sizes of a layer on a chip with sms multiprocessors, without
// a device.
func SizesOn(c Config, sms, tokens int) Sizes {
	s, err := (&Layer{of: registry.Layer{Config: c}, sms: sms}).Sizes(tokens)
	if err != nil {
		panic(err)
	}
	return s
}

// BesideAlways makes the up-projection of every large batch run next to the kernel that unpacks.
func BesideAlways(l *Layer) { l.smallBatch.besideFrom = 0 }
