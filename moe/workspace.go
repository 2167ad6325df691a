package moe

import (
	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/jit/gemm"
	"sonicmoe/jit/schedule"
	"sonicmoe/moe/internal/kernel"
	"sonicmoe/moe/internal/route/choose"
	"sonicmoe/moe/internal/route/order"
	"sonicmoe/moe/internal/route/rounding"
	"sonicmoe/moe/internal/weights"
)

// space hands out aligned pieces of scratch memory.
type space struct{ bytes int64 }

// take returns the offset of a new piece.
func (s *space) take(bytes int64) int64 {
	at := s.bytes
	s.bytes += (bytes + workspaceAlignment - 1) / workspaceAlignment * workspaceAlignment
	return at
}

// indices has the offsets, in bytes, of a call's counters and row numbers in its workspace.
type indices struct {
	counts, offsets, table int64
	// rowPairs is for the number of row pairs. tickets is for the tile counters of the products.
	rowPairs, tickets int64
	// loraTickets is for the tile counters of the adapter's products.
	loraTickets     int64
	gather, inverse int64
	// pairs is for backward passes, lists, and layers that multiply the input by the scores.
	pairs int64
	// starts, tokenRows and weights list the rows of each token of a list. unordered is scratch
	// memory of the kernels that make this order.
	starts, tokenRows, weights, unordered int64
	// keys and raw have the numbers by which rounding orders the tokens for each expert. choices
	// has the cutoff of each expert in this order. A and Y use the same memory later.
	keys, raw, choices int64
	// ids has the expert number, and weights the score, of each row of the shared experts.
	ids int64
	// terms has the terms of the router's weights if the weights are FP32.
	terms int64
	// w1, w3 and w2 have the values of packed weights. ready counts the parts of each expert's w1 and
	// w3 that have been written.
	w1, w3, w2, ready int64
	// loraA1 to loraB2 have the factors of an adapter with the padded rank.
	loraA1, loraB1, loraB3, loraA2, loraB2 int64
}

// tiles returns the tile arguments of one product of a call. The parameter which is the product's
// number, and p is the address of the call's workspace.
func (w indices) tiles(p driver.DevicePtr, which int64) gemm.TileArgs {
	return gemm.TileArgs{Table: at(p, w.table), RowPairs: at(p, w.rowPairs), Tickets: at(p, w.tickets+which*schedule.TicketBytes)}
}

// plan returns the inputs and outputs of the plan of a call whose workspace is at address p.
func (w indices) plan(p driver.DevicePtr, experts Tensor) order.PlanTensors {
	return order.PlanTensors{
		ExpertIDs: experts.Ptr, Gather: at(p, w.gather), Inverse: at(p, w.inverse), Pairs: at(p, w.pairs), Offsets: at(p, w.offsets),
		Table: at(p, w.table), RowPairs: at(p, w.rowPairs), Tickets: at(p, w.tickets), Ready: at(p, w.ready),
	}
}

// workspace is the layout of a forward call's scratch memory.
type workspace struct {
	pieces
	// shared has the pieces of the shared experts. Its field a is the same offset as the field a of
	// pieces.
	shared pieces
	bytes  int64
}

// pieces are the parts of the workspace for the products of a pass.
type pieces struct {
	indices
	// logits has the logits if a kernel chooses the experts from them and the caller does not want
	// them. A and Y use the same memory later.
	logits int64
	// y has Y. In a layer with a table of adapters it first has H, if the caller does not want H.
	a, y int64
	// u has the products of X with A1 and of A with A2, the first factors of a LoRA adapter. Both use
	// the same memory, one after the other.
	u int64
}

// workspaceAlignment is the alignment of the buffer.
const workspaceAlignment = 256

// work is the size of a call: the number of tokens, and the number of rows. A row is a pair of a
// token and one of its experts. In a call over a list, each entry is a row. Without a list, each
// token has K rows.
type work struct {
	tokens, rows int
	list         bool
	// sorted means that rounding made the list, which is sorted by expert, then
	// token.
	sorted bool
}

// work returns the size of a call with the given number of tokens, with K experts
// each.
func (l *Layer) work(tokens int) work { return work{tokens: tokens, rows: tokens * l.of.TopK} }

// shapes returns the shapes of the call's forward pass.
func (n work) shapes(c Config) Shapes {
	if n.list {
		return c.ListShapes(n.tokens, n.rows)
	}
	return c.Shapes(n.tokens)
}

// indices lays out the offsets that all calls need.
func (l *Layer) indices(s *space, n work) indices {
	if l.of.IsShared {
		return l.sharedIndices(s, n.tokens)
	}
	var w indices
	c := l.of.Config
	rows := int64(n.rows)
	if n.list && c.Rounds() {
		rows = max(rows, int64(n.tokens)*int64(c.TopK)) // the plan of the losses has at least these rows
	}
	w.counts = s.take(4 * int64(l.sms) * int64(c.NumExperts))
	w.offsets = s.take(4 * int64(c.NumExperts+1))
	w.rowPairs = s.take(4)
	w.tickets = s.take(schedule.TicketsBytes)
	if spec.HasLoRA(c) {
		w.loraTickets = s.take(loraProducts * schedule.TicketBytes)
	}
	w.table = s.take(order.Plan{NumExperts: c.NumExperts}.TableBytes(int(rows)))
	w.gather = s.take(4 * rows)
	w.inverse = s.take(4 * rows)
	if c.RouterF32 {
		w.terms = s.take(choose.TermsOf(c).Bytes())
	}
	if spec.IsPacked(c) {
		plain := c
		plain.Weights = ""
		s1 := plain.Shapes(0)
		w.ready = s.take(4 * int64(c.NumExperts))
		w.w1, w.w3, w.w2 = s.take(s1.W1.Bytes()), s.take(s1.W3.Bytes()), s.take(s1.W2.Bytes())
	}
	if spec.PadsRank(c) && l.part != home {
		f := spec.Padded(c).Shapes(0)
		w.loraA1, w.loraB1, w.loraB3 = s.take(f.LoraA1.Bytes()), s.take(f.LoraB1.Bytes()), s.take(f.LoraB3.Bytes())
		w.loraA2, w.loraB2 = s.take(f.LoraA2.Bytes()), s.take(f.LoraB2.Bytes())
	}
	if n.list || c.ScoreOnInput {
		w.pairs = s.take(4 * rows)
	}
	if n.list {
		w.starts = s.take(4 * int64(n.tokens+1))
		w.tokenRows, w.weights, w.unordered = s.take(4*rows), s.take(4*rows), s.take(4*rows)
	}
	return w
}

// workspace lays out the scratch memory of a forward call.
func (l *Layer) workspace(n work) workspace {
	var s space
	w := workspace{pieces: pieces{indices: l.indices(&s, n)}}
	shapes := l.of.ListShapes(n.tokens, n.rows)
	if l.shared != nil {
		w.shared.indices = l.shared.sharedIndices(&s, n.tokens)
		w.shared.y = s.take(shapes.SharedY.Bytes())
	}
	early := s
	if n.list && l.of.Rounds() {
		w.choices = s.take(rounding.CutoffBytes * int64(l.of.NumExperts))
		table := 4 * int64(rounding.KeyStride(n.tokens)) * int64(l.of.NumExperts)
		early = s
		w.keys = early.take(table)
		if l.of.Rounding.RawScores {
			w.raw = early.take(table)
		}
	}
	if !choose.InRouter(l.of.Config) {
		w.logits = early.take(shapes.Logits.Bytes())
	}
	a := weights.A(l.of.Config).Bytes(n.rows)
	if l.part == home {
		a = 0
	}
	if l.shared != nil {
		a = max(a, weights.A(l.shared.of.Config).Bytes(n.tokens))
	}
	w.a = s.take(a)
	w.shared.a = w.a
	y := shapes.Y.Bytes()
	if spec.HasAdapters(l.of.Config) { // H is no longer needed when the down-projection writes Y
		y = max(y, shapes.H.Bytes())
	}
	if l.part == ofRank { // the caller has Y
		y = 0
	}
	w.y = s.take(y)
	switch {
	case spec.HasLoRA(l.of.Config) && l.part != home:
		w.u = s.take(weights.U(l.of.Config).Bytes(n.rows))
	case kernel.HasAdaptSingle(l.of.Config):
		w.u = s.take(weights.SingleU(l.of.Config).Bytes(l.of.TopK))
	}
	w.bytes = max(s.bytes, early.bytes)
	return w
}

// Sizes has the sizes of a call's buffers, in bytes.
type Sizes struct {
	// Workspace is scratch memory, aligned to 256 bytes. Its content need not be
	// kept between calls. One stream at a time may use it.
	Workspace int64
	// BackwardWorkspace is the size of Workspace for a backward pass, at least Workspace. Layers
	// that run one after another can share one buffer of the largest size.
	BackwardWorkspace int64
	// Fixed is the part of Workspace that does not grow with the tokens: counts for
	// each multiprocessor and expert, expert offsets, a row pair for each expert,
	// 6 bytes for each weight of an FP32 router, the bf16 values of packed weights, and the
	// factors of an adapter whose rank is no multiple of 8.
	// The rest is 2·R·(d + n) bytes
	// for the rows R = T·K of Y and A, with n rounded up to a multiple of 64, about
	// 8 bytes a row for indices, 2·d + 12 bytes a token with shared experts, 2 bytes a
	// row for each of an adapter's ranks, and alignment.
	Fixed int64
	// H and, with shared experts, SharedH are tensors that a training pass saves in addition to X,
	// scores and experts.
	H, SharedH int64
	// LoraU is the size of ForwardArgs.LoraU. It is 0 for layers without LoRARank.
	LoraU int64
	// O, Scores and ExpertIDs are the sizes of the outputs.
	O, Scores, ExpertIDs int64
	// Units is the size of ForwardArgs.Units for any number of tokens: the bytes of packed
	// weights, with columns rounded up to a multiple of 128. Scales of two bytes or less take 4 bytes
	// if the layer's Type cannot represent them, and zero points take 2. Units is 0 for plain weights
	// and for a layer with one adapter, which is trained: its products add the adapter in the kernels
	// of large batches alone.
	Units int64
}

// Sizes returns the exact sizes for a call with the given number of tokens. It
// refuses the same numbers as Forward: negative ones, and T·K of 2^31 or more.
func (l *Layer) Sizes(tokens int) (Sizes, error) {
	if !l.made() {
		return Sizes{}, errNoLayer
	}
	if most := spec.MaxRows / l.of.TopK; tokens < 0 || tokens > most {
		return Sizes{}, argErrorf("tokens", tokens, "0 to %d: T·K is below 2^31", most)
	}
	s := l.of.Config.Shapes(tokens)
	return Sizes{
		Workspace: l.workspace(l.work(tokens)).bytes, Fixed: l.workspace(work{}).bytes,
		BackwardWorkspace: l.backwardWorkspace(l.work(tokens)).bytes,
		H:                 s.H.Bytes(), SharedH: s.SharedH.Bytes(), LoraU: s.LoraU.Bytes(), O: s.O.Bytes(), Scores: s.Scores.Bytes(), ExpertIDs: s.ExpertIDs.Bytes(),
		Units: l.unitsBytes(),
	}, nil
}

// ListSizes returns the exact sizes for a call with the given number of tokens and a list of the
// given number of entries. Scores and ExpertIDs are the sizes of the tensors of the list.
func (l *Layer) ListSizes(tokens, entries int) (Sizes, error) {
	switch {
	case !l.made():
		return Sizes{}, errNoLayer
	case !l.of.HasLists():
		return Sizes{}, errNoLists
	case tokens < 0 || tokens > spec.MaxRows:
		return Sizes{}, argErrorf("tokens", tokens, "0 to %d", spec.MaxRows)
	case entries < 1 || entries > spec.MaxRows:
		return Sizes{}, argErrorf("entries", entries, "1 to %d", spec.MaxRows)
	}
	n := work{tokens: tokens, rows: entries, list: true}
	s := l.of.ListShapes(tokens, entries)
	return Sizes{
		Workspace: l.workspace(n).bytes, Fixed: l.workspace(work{list: true}).bytes,
		BackwardWorkspace: l.backwardWorkspace(n).bytes,
		H:                 s.H.Bytes(), SharedH: s.SharedH.Bytes(), LoraU: s.LoraU.Bytes(), O: s.O.Bytes(), Scores: s.Scores.Bytes(), ExpertIDs: s.ExpertIDs.Bytes(),
	}, nil
}

// RoundedRows returns the number of entries L of the List of a Forward that rounds:
// the largest possible number of rows for the given number of tokens. It is 0 for a
// layer without Config.Rounding.
func (l *Layer) RoundedRows(tokens int) int {
	if l == nil || !l.of.Rounds() || tokens < 1 {
		return 0
	}
	// The list needs an entry even if no expert may get a row.
	return int(min(max(l.of.Rounding.MaxRows(l.of.Config, tokens), 1), spec.MaxRows))
}

// errNoLists is the error for lists in a layer without them.
var errNoLists = &ArgError{Field: "Config.Lists", Got: "false", Want: "true for calls with a List"}

// errNoLayer is the error for a nil layer.
var errNoLayer = &ArgError{Field: "Layer", Got: "nil", Want: "made by New"}

// at returns the address at an offset.
func at(p driver.DevicePtr, offset int64) driver.DevicePtr {
	return p + driver.DevicePtr(offset)
}
