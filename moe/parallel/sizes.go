package parallel

import (
	"fmt"

	"sonicmoe/driver"
	"sonicmoe/moe"
	"sonicmoe/moe/internal/exchange"
)

// Sizes has the sizes of a rank's buffers in bytes, for any pass over up to MaxTokens tokens.
type Sizes struct {
	// Workspace is scratch memory, aligned to 256 bytes.
	Workspace int64
	// WindowRows is the largest number of tokens that the rank receives, W·MaxTokens, and
	// WindowPairs the largest number of pairs of a token and one of the rank's experts.
	WindowRows, WindowPairs int
	// Window is the part of Workspace or of Saved that receives tokens.
	Window int64
	// Saved is the size of a Saved buffer: the window with its list, and H.
	Saved int64
	// BackwardWorkspace is the size of the workspace of Backward.
	BackwardWorkspace int64
}

// alignment is the alignment of the parts of a buffer.
const alignment = 256

// space hands out aligned parts of a buffer.
type space struct{ bytes int64 }

func (s *space) take(bytes int64) int64 {
	at := s.bytes
	s.bytes += (bytes + alignment - 1) / alignment * alignment
	return at
}

// entries are the parts of a list of pairs: tokens, experts and scores.
type entries struct{ tokens, experts, scores int64 }

func (s *space) entries(pairs int) entries {
	return entries{s.take(4 * int64(pairs)), s.take(4 * int64(pairs)), s.take(4 * int64(pairs))}
}

// splitLayout has the tensors of exchange.Split: offsets in bytes. offsets has both PairOffsets
// and RowOffsets.
type splitLayout struct{ pairRanks, rowRanks, pairs, places, rowTokens, rowPlaces, offsets int64 }

func (r *Rank) splitLayout(s *space) (w splitLayout) {
	for _, at := range []*int64{&w.pairRanks, &w.rowRanks, &w.pairs, &w.places, &w.rowTokens, &w.rowPlaces} {
		*at = s.take(4 * int64(r.MaxTokens*r.Config.TopK))
	}
	w.offsets = s.take(8 * int64(r.Config.NumExperts+1))
	return w
}

// layout has the parts of a workspace: offsets in bytes.
type layout struct {
	// home and owner are the workspaces of both layers.
	home, owner int64
	splitLayout
	bases int64
	// send has tokens to send and their entries, and later the rows that go back.
	send        int64
	sendEntries entries
	back        int64
	// window is the first byte of what the rank receives, unless it is saved.
	window int64
	bytes  int64
}

// received are the places of what the rank receives: tokens, and the list of their pairs. h is
// where its experts save H, 0 if they do not.
type received struct{ window, tokens, experts, scores, h driver.DevicePtr }

// windowBytes returns the size of what the rank receives.
func (r *Rank) windowBytes() int64 {
	var s space
	s.take(r.rowBytes(r.windowRows()))
	s.entries(r.windowPairs())
	return s.bytes
}

// savedBytes returns the size of a Saved buffer.
func (r *Rank) savedBytes() int64 {
	return r.windowBytes() + r.owner.Config().ListShapes(0, r.windowPairs()).H.Bytes()
}

// Saved is what a forward pass leaves for its backward pass. It must stay untouched until then.
type Saved struct {
	// Buffer has Sizes.Saved bytes.
	moe.Buffer
	counts
}

// place returns the places of what the rank receives: in the saved buffer, if there is one, or
// at the window in the workspace.
func (r *Rank) place(saved *Saved, window moe.Buffer) (of received, err error) {
	if saved != nil {
		if err := checkBuffer("Saved", saved.Buffer, r.savedBytes()); err != nil {
			return of, err
		}
		window = saved.Buffer
		of.h = window.Ptr + driver.DevicePtr(r.windowBytes())
	}
	var s space
	at := func(offset int64) driver.DevicePtr { return window.Ptr + driver.DevicePtr(offset) }
	of.window = at(s.take(r.rowBytes(r.windowRows())))
	list := s.entries(r.windowPairs())
	of.tokens, of.experts, of.scores = at(list.tokens), at(list.experts), at(list.scores)
	return of, nil
}

// checkBuffer refuses a buffer that is too small or not aligned.
func checkBuffer(field string, b moe.Buffer, bytes int64) error {
	if b.Bytes >= bytes && b.Ptr != 0 && b.Ptr%alignment == 0 {
		return nil
	}
	return &moe.ArgError{Field: field, Got: fmt.Sprintf("%d bytes at %#x", b.Bytes, uint64(b.Ptr)), Want: fmt.Sprintf("at least %d bytes (Rank.Sizes), aligned to %d", bytes, alignment)}
}

// windowRows returns the largest number of tokens that the rank receives, windowPairs the
// largest number of pairs. The experts of a token differ.
func (r *Rank) windowRows() int  { return r.transport.Ranks() * r.MaxTokens }
func (r *Rank) windowPairs() int { return r.windowRows() * min(r.Config.TopK, r.count) }

// partSizes returns the sizes of both parts of the layer: for MaxTokens tokens at home, and for
// a full window at the owner of experts.
func (r *Rank) partSizes() (home, owner moe.Sizes, err error) {
	if home, err = r.home.Sizes(r.MaxTokens); err == nil {
		owner, err = r.owner.ListSizes(r.windowRows(), r.windowPairs())
	}
	return home, owner, err
}

// layout lays out the workspace for MaxTokens tokens.
func (r *Rank) layout() (w layout, err error) {
	c, ranks := r.Config, r.transport.Ranks()
	pairs := r.MaxTokens * c.TopK
	home, owner, err := r.partSizes()
	if err != nil {
		return w, err
	}
	var s space
	w.home, w.owner = s.take(home.Workspace), s.take(owner.Workspace)
	w.splitLayout = r.splitLayout(&s)
	w.bases = s.take(4 * int64(ranks))
	w.window = s.take(r.windowBytes())
	back := s
	w.back = back.take(r.rowBytes(r.windowPairs()))
	w.send = s.take(r.rowBytes(r.MaxTokens * min(c.TopK, ranks)))
	w.sendEntries = s.entries(pairs)
	w.bytes = max(s.bytes, back.bytes)
	return w, nil
}

// rowBytes returns the size of rows of d elements.
func (r *Rank) rowBytes(rows int) int64 {
	return int64(rows) * int64(r.Config.Hidden) * int64(r.Config.Type.Bytes())
}

// Sizes returns the sizes of this rank's buffers.
func (r *Rank) Sizes() (Sizes, error) {
	w, err := r.layout()
	if err != nil {
		return Sizes{}, err
	}
	b, err := r.backwardLayout()
	return Sizes{Workspace: w.bytes, WindowRows: r.windowRows(), WindowPairs: r.windowPairs(), Window: r.windowBytes(), Saved: r.savedBytes(), BackwardWorkspace: b.bytes}, err
}

// split returns the tensors of a pass's split.
func (w *splitLayout) split(p driver.DevicePtr, r *Rank, tokens int, routing moe.Routing) exchange.Split {
	at := func(offset int64) driver.DevicePtr { return p + driver.DevicePtr(offset) }
	return exchange.Split{
		Tokens: tokens, Ranks: r.transport.Ranks(), Chunks: r.Chunks, ExpertIDs: routing.ExpertIDs.Ptr, Scores: routing.Scores.Ptr,
		PairRanks: at(w.pairRanks), RowRanks: at(w.rowRanks), Pairs: at(w.pairs), Places: at(w.places),
		RowTokens: at(w.rowTokens), RowPlaces: at(w.rowPlaces),
		PairOffsets: at(w.offsets), RowOffsets: at(w.offsets + 4*int64(r.Config.NumExperts+1)),
	}
}
