package parallel

import (
	"fmt"

	"sonicmoe/driver"
	"sonicmoe/moe"
	"sonicmoe/moe/internal/exchange"
	"sonicmoe/moe/internal/kernel/drouter"
	"sonicmoe/moe/internal/kernel/dw"
)

// Sizes has the sizes of a rank's buffers in bytes, for any pass with up to MaxTokens tokens on
// each rank.
type Sizes struct {
	// Workspace is scratch memory, aligned to 256 bytes.
	Workspace int64
	// WindowRows is the largest number of tokens that the rank receives: the number of ranks times
	// MaxTokens. WindowPairs is the largest number of pairs of a received token and one of the
	// rank's experts.
	WindowRows, WindowPairs int
	// Window is the size of the window and its list: received tokens, and the token, expert and
	// score of each received pair. With Options.PartialSums it also has the row of each pair, by token. It
	// is a part of Workspace, or of Saved if the pass saves.
	Window int64
	// Saved is the largest size of a Saved buffer: the window, its list, H, LoraU, and the H of the
	// shared experts. SavedCounts is the
	// number of words of [Saved.Counts].
	Saved       int64
	SavedCounts int
	// BackwardWorkspace is the size of the workspace of Backward.
	BackwardWorkspace int64
}

// alignment is the alignment in bytes of each part of a buffer.
const alignment = 256

// space lays out a buffer: it hands out offsets of aligned parts. bytes is the size so far.
type space struct{ bytes int64 }

func (s *space) take(bytes int64) int64 {
	at := s.bytes
	s.bytes += (bytes + alignment - 1) / alignment * alignment
	return at
}

// entries has the offsets of the parts of a list of pairs: tokens, experts and scores.
type entries struct{ tokens, experts, scores int64 }

func (s *space) entries(pairs int) entries {
	return entries{s.take(4 * int64(pairs)), s.take(4 * int64(pairs)), s.take(4 * int64(pairs))}
}

// splitLayout has the offsets in bytes of the tensors of exchange.Split. offsets is the offset of
// PairOffsets, and RowOffsets follows. found is the offset of the tensor of a pass with this name.
// weights and slots are outputs of exchange.SumPlaces, if ranks send partial sums.
type splitLayout struct {
	rowRanks, pairs, places, rowTokens, rowPlaces, offsets, found int64
	weights, slots                                                int64
}

func (r *Rank) splitLayout(s *space) (w splitLayout) {
	for _, at := range []*int64{&w.rowRanks, &w.pairs, &w.places, &w.rowTokens, &w.rowPlaces, &w.found} {
		*at = s.take(4 * int64(r.MaxTokens*r.Config.TopK))
	}
	w.offsets = s.take(8 * int64(r.Config.NumExperts+1))
	if r.sums() {
		w.weights, w.slots = s.take(4*int64(r.MaxTokens*r.Config.TopK)), s.take(4*int64(r.MaxTokens*r.Config.TopK))
	}
	return w
}

// layout has the offsets in bytes of the parts of a workspace.
type layout struct {
	// home is the workspace of the layer that has this rank's tokens, and owner is the workspace of
	// the layer that has this rank's experts.
	home, owner int64
	splitLayout
	// uploads has the plan of the pass. gather, pairsOf and inverse have what exchange.Arrange
	// writes.
	uploads, gather, pairsOf, inverse int64
	// send has the tokens to send, and sendEntries has the list of pairs of these tokens. y has the
	// rows of Y of the rank's experts, and back has such rows if they are packed, or has partial sums.
	send        int64
	sendEntries entries
	y, back     int64
	// window is the part for what the rank receives, unless the pass saves it in a Saved buffer.
	window int64
	// gotSlots has the received slots of pairs, and slotScores the scores by token and slot, if ranks
	// send partial sums.
	gotSlots, slotScores int64
	bytes                int64
}

// received has the addresses of what the rank receives: the window of tokens, and tokens, experts
// and scores of the list of pairs. h and sharedH are where the experts and the shared experts save H,
// or 0 if they do not save it. LoraU follows h. slots has the row of each token and slot, if ranks send partial sums.
type received struct{ window, tokens, experts, scores, slots, h, sharedH driver.DevicePtr }

// windowBytes returns the size of a window for a number of tokens, and of a list of pairs.
func (r *Rank) windowBytes(rows, pairs int) int64 {
	var s space
	s.take(r.rowBytes(rows))
	s.entries(pairs)
	s.take(r.slotBytes(rows))
	return s.bytes
}

// savedBytes returns the size of a Saved buffer for a number of received tokens and pairs, and of this
// rank's tokens. It also returns the offset of the H of the shared experts.
func (r *Rank) savedBytes(rows, pairs, tokens int) (bytes, shared int64) {
	list := r.owner.Config().ListShapes(0, pairs)
	bytes = r.windowBytes(rows, pairs) + list.H.Bytes() + list.LoraU.Bytes()
	if of := r.sharedH(tokens).Bytes(); of > 0 {
		s := space{bytes}
		s.take(-bytes % alignment)
		return s.bytes + of, s.bytes
	}
	return bytes, 0
}

// sharedH returns the shape of the H of the shared experts for a number of tokens.
func (r *Rank) sharedH(tokens int) moe.Shape { return r.Config.Shapes(tokens).SharedH }

// place returns the addresses for what the rank receives: in the saved buffer, or in window if
// saved is nil.
func (p *pass) place(saved *Saved, window moe.Buffer) (of received, err error) {
	own := p.transport.Rank()
	rows, pairs := int(sum(column(p.rows, own))), int(p.receives(&p.counts, own))
	if bytes, shared := p.savedBytes(rows, pairs, p.mine); saved != nil && bytes > 0 {
		if saved.Buffer == (moe.Buffer{}) && saved.Allocate != nil {
			if saved.Buffer, err = saved.Allocate(bytes); err != nil {
				return of, fmt.Errorf("allocating %d bytes for a backward pass: %w", bytes, err)
			}
		}
		if err := checkBuffer("Saved", saved.Buffer, bytes); err != nil {
			return of, err
		}
		window = saved.Buffer
		of.h = window.Ptr + driver.DevicePtr(p.windowBytes(rows, pairs))
		if p.Config.SharedExperts > 0 && p.mine > 0 {
			of.sharedH = window.Ptr + driver.DevicePtr(shared)
		}
	}
	var s space
	at := func(offset int64) driver.DevicePtr { return window.Ptr + driver.DevicePtr(offset) }
	of.window = at(s.take(p.rowBytes(rows)))
	list := s.entries(pairs)
	of.tokens, of.experts, of.scores = at(list.tokens), at(list.experts), at(list.scores)
	of.slots = at(s.take(p.slotBytes(rows)))
	return of, nil
}

// checkBuffer refuses a buffer that is too small or not aligned.
func checkBuffer(field string, b moe.Buffer, bytes int64) error {
	if b.Bytes >= bytes && b.Ptr != 0 && b.Ptr%alignment == 0 {
		return nil
	}
	return &moe.ArgError{Field: field, Got: fmt.Sprintf("%d bytes at %#x", b.Bytes, uint64(b.Ptr)), Want: fmt.Sprintf("at least %d bytes (Rank.Sizes), aligned to %d", bytes, alignment)}
}

// windowRows returns the largest number of tokens that the rank receives. windowPairs returns the
// largest number of pairs. A token has at most min(K, experts of the rank) pairs here, because its
// experts differ.
func (r *Rank) windowRows() int  { return r.transport.Ranks() * r.MaxTokens }
func (r *Rank) windowPairs() int { return r.windowRows() * min(r.Config.TopK, r.count) }

// partSizes returns the sizes of both layers of the rank: home with MaxTokens tokens, and owner
// with a full window.
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
	w.uploads = s.take(r.planBytes())
	for _, at := range []*int64{&w.gather, &w.pairsOf, &w.inverse} {
		*at = s.take(4 * int64(r.windowPairs()))
	}
	w.window = s.take(r.windowBytes(r.windowRows(), r.windowPairs()))
	w.y = s.take(r.alignedBytes(r.windowPairs()))
	w.back = s.take(r.rowBytes(r.backRows()))
	w.send = s.take(r.rowBytes(r.MaxTokens * min(c.TopK, ranks)))
	w.sendEntries = s.entries(pairs)
	if r.sums() {
		w.gotSlots, w.slotScores = s.take(4*int64(r.windowPairs())), s.take(r.slotBytes(r.windowRows()))
	}
	w.bytes = s.bytes
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
	rows, pairs := r.windowRows(), r.windowPairs()
	saved, _ := r.savedBytes(rows, pairs, r.MaxTokens)
	return Sizes{Workspace: w.bytes, WindowRows: rows, WindowPairs: pairs, Window: r.windowBytes(rows, pairs), Saved: saved, SavedCounts: r.savedCounts(), BackwardWorkspace: b.bytes}, err
}

// split returns the tensors of exchange.Split in a workspace that begins at address p.
func (w *splitLayout) split(p driver.DevicePtr, r *Rank, tokens int, routing moe.Routing) exchange.Split {
	at := func(offset int64) driver.DevicePtr { return p + driver.DevicePtr(offset) }
	return exchange.Split{
		Tokens: tokens, Ranks: r.transport.Ranks(), ExpertIDs: routing.ExpertIDs.Ptr, Scores: routing.Scores.Ptr,
		RowRanks: at(w.rowRanks), Pairs: at(w.pairs), Places: at(w.places),
		RowTokens: at(w.rowTokens), RowPlaces: at(w.rowPlaces),
		PairOffsets: at(w.offsets), RowOffsets: at(w.offsets + 4*int64(r.Config.NumExperts+1)),
	}
}

// RouterBytes returns the size of the partial sums of the router's gradient, for a number of tokens
// of all ranks. Every rank gets all of them in a backward pass.
func RouterBytes(c moe.Config, tokens int) int64 {
	d := drouter.DRouter{Hidden: c.Hidden, NumExperts: c.NumExperts}
	return d.PartialBytes(tokens)
}

// SharedBytes returns the size of the partial sums of the shared experts' gradients, for a number of tokens
// of all ranks. Each rank gets its part of all of them in a backward pass.
func SharedBytes(c moe.Config, tokens int) int64 {
	shapes, elements := c.Shapes(0), int64(0)
	for _, id := range sharedExperts {
		elements += shapes.Of(id).Elements()
	}
	return 4 * elements * int64((tokens+dw.SplitRows-1)/dw.SplitRows)
}
