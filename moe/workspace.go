package moe

import (
	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/jit/gemm"
	"sonicmoe/jit/schedule"
	"sonicmoe/moe/internal/route/choose"
	"sonicmoe/moe/internal/route/order"
	"sonicmoe/moe/internal/route/rounding"
	"sonicmoe/moe/internal/weights"
)

// space hands out aligned pieces of scratch memory.
type space struct{ bytes int64 }

// take gives the offset of a piece.
func (s *space) take(bytes int64) int64 {
	at := s.bytes
	s.bytes += (bytes + workspaceAlignment - 1) / workspaceAlignment * workspaceAlignment
	return at
}

// indices is where a call's counters and row numbers stand in its workspace:
// offsets in bytes.
type indices struct {
	counts, offsets, table int64
	// rowPairs is the number of row pairs; tickets are the tile counters of the
	// products.
	rowPairs, tickets int64
	gather, inverse   int64
	// pairs is there in backward, with a list, and where scores are on the input.
	pairs int64
	// starts, tokenRows and weights are the rows by token of a list, unordered
	// what it takes to make them.
	starts, tokenRows, weights, unordered int64
	// keys and raw are what experts choose by, choices what they chose. The first
	// two are gone when A and Y are made.
	keys, raw, choices int64
	// ids are the rows' experts of shared experts, and weights their scores.
	ids int64
	// terms are the router's weights, where these are FP32.
	terms int64
}

// tiles are the tiles of the which-th product of a call with the workspace at p.
func (w indices) tiles(p driver.DevicePtr, which int64) gemm.TileArgs {
	return gemm.TileArgs{Table: at(p, w.table), RowPairs: at(p, w.rowPairs), Tickets: at(p, w.tickets+which*schedule.TicketBytes)}
}

// plan is what a plan of a call with the workspace at p is made from and of.
func (w indices) plan(p driver.DevicePtr, experts Tensor) order.PlanTensors {
	return order.PlanTensors{
		ExpertIDs: experts.Ptr, Gather: at(p, w.gather), Inverse: at(p, w.inverse), Pairs: at(p, w.pairs), Offsets: at(p, w.offsets),
		Table: at(p, w.table), RowPairs: at(p, w.rowPairs), Tickets: at(p, w.tickets),
	}
}

// workspace is the layout of a forward call's scratch memory.
type workspace struct {
	pieces
	// shared are the shared experts', with the same a.
	shared pieces
	bytes  int64
}

// pieces are what the products of a pass need.
type pieces struct {
	indices
	// logits are there where the experts are chosen from them and the caller has no
	// place; they are gone when A and Y are made.
	logits int64
	a, y   int64
}

// workspaceAlignment is what the buffer must be aligned to.
const workspaceAlignment = 256

// work is what a call has to do: tokens, and rows for pairs of a token and one
// of its experts, which come as a list or as K of each token.
type work struct {
	tokens, rows int
	list         bool
	// sorted says that rounding made the list: by expert, then token.
	sorted bool
}

// work is that of so many tokens with K experts each.
func (l *Layer) work(tokens int) work { return work{tokens: tokens, rows: tokens * l.of.TopK} }

// indices lays out what all calls need.
func (l *Layer) indices(s *space, n work) indices {
	if l.of.IsShared {
		return l.sharedIndices(s, n.tokens)
	}
	var w indices
	c := l.of.Config
	rows := int64(n.rows)
	if n.list && c.Rounds() {
		rows = max(rows, int64(n.tokens)*int64(c.TopK)) // the plan of the losses is of these
	}
	w.counts = s.take(4 * int64(l.sms) * int64(c.NumExperts))
	w.offsets = s.take(4 * int64(c.NumExperts+1))
	w.rowPairs = s.take(4)
	w.tickets = s.take(schedule.TicketsBytes)
	w.table = s.take(order.Plan{NumExperts: c.NumExperts}.TableBytes(int(rows)))
	w.gather = s.take(4 * rows)
	w.inverse = s.take(4 * rows)
	if c.RouterF32 {
		w.terms = s.take(choose.TermsOf(c).Bytes())
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
	shapes, shared := l.of.Config.ListShapes(n.rows), l.of.Shapes(n.tokens)
	if l.shared != nil {
		w.shared.indices = l.shared.sharedIndices(&s, n.tokens)
		w.shared.y = s.take(shared.SharedY.Bytes())
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
		w.logits = early.take(shared.Logits.Bytes())
	}
	a := weights.A(l.of.Config).Bytes(n.rows)
	if l.shared != nil {
		a = max(a, weights.A(l.shared.of.Config).Bytes(n.tokens))
	}
	w.a = s.take(a)
	w.shared.a = w.a
	w.y = s.take(shapes.Y.Bytes())
	w.bytes = max(s.bytes, early.bytes)
	return w
}

// Sizes are the bytes that the buffers of a call must have.
type Sizes struct {
	// Workspace is scratch memory, aligned to 256 bytes. Its content means
	// nothing between calls; it serves one stream at a time.
	Workspace int64
	// BackwardWorkspace is what Workspace must be for a backward pass; never less
	// than Workspace. All layers that run one after the other can share one
	// buffer of the largest size.
	BackwardWorkspace int64
	// Fixed is the part of Workspace that does not grow with tokens: counts of
	// every multiprocessor and expert, expert offsets, a row pair for each expert, and
	// 6 bytes a weight of a router in FP32.
	// The rest is 2·R·(d + n) bytes for the rows R = T·K of Y and A, n rounded up to
	// a multiple of 64, about 8 bytes a row of indices, 2·d + 12 a token with shared
	// experts, and alignment.
	Fixed int64
	// H, and SharedH with shared experts, are what a training pass saves beside X,
	// scores and experts.
	H, SharedH int64
	// O, Scores and ExpertIDs are the outputs.
	O, Scores, ExpertIDs int64
}

// Sizes gives the exact sizes for a call with so many tokens. It refuses what
// Forward does: fewer than 0, and T·K of 2^31 or more.
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
		H:                 s.H.Bytes(), SharedH: s.SharedH.Bytes(), O: s.O.Bytes(), Scores: s.Scores.Bytes(), ExpertIDs: s.ExpertIDs.Bytes(),
	}, nil
}

// ListSizes gives the exact sizes for a call with so many tokens whose experts
// come as a list of so many entries. Scores and ExpertIDs are the list's.
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
	s := l.of.ListShapes(entries)
	return Sizes{
		Workspace: l.workspace(n).bytes, Fixed: l.workspace(work{list: true}).bytes,
		BackwardWorkspace: l.backwardWorkspace(n).bytes,
		H:                 s.H.Bytes(), SharedH: l.of.Shapes(tokens).SharedH.Bytes(), O: l.of.Shapes(tokens).O.Bytes(), Scores: s.Scores.Bytes(), ExpertIDs: s.ExpertIDs.Bytes(),
	}, nil
}

// RoundedRows is L of the List of a Forward that rounds, of so many tokens: the
// most rows that there can be. It is 0 of a layer without Config.Rounding.
func (l *Layer) RoundedRows(tokens int) int {
	if l == nil || !l.of.Rounds() || tokens < 1 {
		return 0
	}
	// An expert's share of no rows at all still has a place.
	return int(min(max(l.of.Rounding.MaxRows(l.of.Config, tokens), 1), spec.MaxRows))
}

// errNoLists is the error of lists where a layer has none.
var errNoLists = &ArgError{Field: "Config.Lists", Got: "false", Want: "true for calls with a List"}

// errNoLayer is the error of a nil layer.
var errNoLayer = &ArgError{Field: "Layer", Got: "nil", Want: "made by New"}

// at is the address at an offset.
func at(p driver.DevicePtr, offset int64) driver.DevicePtr {
	return p + driver.DevicePtr(offset)
}
