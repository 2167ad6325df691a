package moe

import (
	"sonicmoe/driver"
	"sonicmoe/jit/schedule"
)

// workspace is the layout of a call's scratch memory: offsets in bytes.
type workspace struct {
	counts, offsets, table int64
	// blocks is the block count; tickets are the tile counters of up and down.
	blocks, tickets int64
	gather, inverse int64
	a, y            int64
	bytes           int64
}

// ticketBytes is the size of a product's tile counter.
const ticketBytes = 4

// workspaceAlignment is what the buffer must be aligned to.
const workspaceAlignment = 256

// workspace lays out the scratch memory for so many tokens.
func (l *Layer) workspace(tokens int) workspace {
	var w workspace
	take := func(bytes int64) int64 {
		at := w.bytes
		w.bytes += (bytes + workspaceAlignment - 1) / workspaceAlignment * workspaceAlignment
		return at
	}
	c := l.config
	rows := int64(tokens) * int64(c.TopK)
	w.counts = take(4 * int64(l.sms) * int64(c.Experts))
	w.offsets = take(4 * int64(c.Experts+1))
	w.blocks = take(4)
	w.tickets = take(2 * ticketBytes)
	w.table = take(schedule.PairBytes * (int64(c.Experts) + rows/schedule.PairRows))
	w.gather = take(4 * rows)
	w.inverse = take(4 * rows)
	w.a = take(2 * rows * int64(c.Intermediate))
	w.y = take(2 * rows * int64(c.Hidden))
	return w
}

// Sizes are the bytes that the buffers of a call must have.
type Sizes struct {
	// Workspace is scratch memory, aligned to 256 bytes. Its content means
	// nothing between calls; it serves one stream at a time.
	Workspace int64
	// Fixed is the part of Workspace that does not grow with tokens: counts of
	// every multiprocessor and expert, expert offsets, one row block an expert.
	// The rest is 2·R·(d + n) bytes for the rows R = T·K of Y and A, about 8
	// bytes a row of indices, and alignment.
	Fixed int64
	// H is what a training pass saves beside X, scores and experts.
	H int64
	// O, Scores and Experts are the outputs.
	O, Scores, Experts int64
}

// Sizes gives the exact sizes for a call with so many tokens, 0 or more.
func (l *Layer) Sizes(tokens int) Sizes {
	s := l.config.Shapes(tokens)
	return Sizes{
		Workspace: l.workspace(tokens).bytes, Fixed: l.workspace(0).bytes,
		H: s.H.Bytes(), O: s.O.Bytes(), Scores: s.Scores.Bytes(), Experts: s.Experts.Bytes(),
	}
}

func (w workspace) at(p driver.DevicePtr, offset int64) driver.DevicePtr {
	return p + driver.DevicePtr(offset)
}
