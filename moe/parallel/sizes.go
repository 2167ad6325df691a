package parallel

import (
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
	// Window is the part of Workspace that receives tokens.
	Window int64
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

// layout has the parts of a workspace: offsets in bytes.
type layout struct {
	// home and owner are the workspaces of both layers.
	home, owner int64
	// These are the tensors of exchange.Split. offsets has both PairOffsets and RowOffsets.
	pairRanks, rowRanks, pairs, places, rowTokens, rowPlaces, offsets int64
	bases                                                             int64
	// send has tokens to send and their entries, and later the rows that go back.
	send        int64
	sendEntries entries
	back        int64
	// window and list are what the rank receives.
	window, windowEnd int64
	list              entries
	bytes             int64
}

// windowRows returns the largest number of tokens that the rank receives, windowPairs the
// largest number of pairs. The experts of a token differ.
func (r *Rank) windowRows() int  { return r.transport.Ranks() * r.MaxTokens }
func (r *Rank) windowPairs() int { return r.windowRows() * min(r.Config.TopK, r.count) }

// layout lays out the workspace for MaxTokens tokens.
func (r *Rank) layout() (w layout, err error) {
	c, ranks := r.Config, r.transport.Ranks()
	pairs := r.MaxTokens * c.TopK
	home, err := r.home.Sizes(r.MaxTokens)
	if err != nil {
		return w, err
	}
	owner, err := r.owner.ListSizes(r.windowRows(), r.windowPairs())
	if err != nil {
		return w, err
	}
	var s space
	w.home, w.owner = s.take(home.Workspace), s.take(owner.Workspace)
	for _, at := range []*int64{&w.pairRanks, &w.rowRanks, &w.pairs, &w.places, &w.rowTokens, &w.rowPlaces} {
		*at = s.take(4 * int64(pairs))
	}
	w.offsets, w.bases = s.take(8*int64(c.NumExperts+1)), s.take(4*int64(ranks))
	w.window = s.take(r.rowBytes(r.windowRows()))
	w.list = s.entries(r.windowPairs())
	w.windowEnd = s.bytes
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
	return Sizes{Workspace: w.bytes, WindowRows: r.windowRows(), WindowPairs: r.windowPairs(), Window: w.windowEnd - w.window}, err
}

// split returns the tensors of a pass's split.
func (w *layout) split(p driver.DevicePtr, c moe.Config, tokens, ranks int, routing moe.Routing) exchange.Split {
	at := func(offset int64) driver.DevicePtr { return p + driver.DevicePtr(offset) }
	return exchange.Split{
		Tokens: tokens, Ranks: ranks, ExpertIDs: routing.ExpertIDs.Ptr, Scores: routing.Scores.Ptr,
		PairRanks: at(w.pairRanks), RowRanks: at(w.rowRanks), Pairs: at(w.pairs), Places: at(w.places),
		RowTokens: at(w.rowTokens), RowPlaces: at(w.rowPlaces),
		PairOffsets: at(w.offsets), RowOffsets: at(w.offsets + 4*int64(c.NumExperts+1)),
	}
}
