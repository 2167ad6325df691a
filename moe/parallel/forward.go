package parallel

import (
	"context"
	"encoding/binary"
	"fmt"

	"sonicmoe/driver"
	"sonicmoe/moe"
	"sonicmoe/moe/internal/exchange"
)

// Args are the buffers of a forward pass over this rank's tokens. A field has the same meaning as
// in [moe.ForwardArgs]. T is the number of this rank's tokens, from 0 to MaxTokens.
type Args struct {
	// X [T, d] are the tokens.
	X moe.Tensor
	// Weights have the shapes of [Rank.WeightShapes].
	moe.Weights
	// Scores [T, K] f32 and ExpertIDs [T, K] i32 are written by Forward and read by
	// ForwardExperts.
	Scores, ExpertIDs moe.Tensor
	// Logits [T, E] are written unless zero.
	Logits moe.Tensor
	// O [T, d] is written.
	O moe.Tensor
	// Saved, unless nil, is written for Backward.
	Saved *Saved
	// Workspace has Sizes.Workspace bytes.
	Workspace moe.Buffer
}

// home returns the arguments of the layer of this rank's tokens.
func (a *Args) home(w *layout) moe.ForwardArgs {
	return moe.ForwardArgs{
		X: a.X, Weights: a.Weights, Routing: moe.Routing{Scores: a.Scores, ExpertIDs: a.ExpertIDs}, Logits: a.Logits, O: a.O,
		Workspace: part(a.Workspace, w.home),
	}
}

// part returns the part of a buffer that begins at the offset `from` and ends with the buffer.
func part(b moe.Buffer, from int64) moe.Buffer {
	return moe.Buffer{Ptr: b.Ptr + driver.DevicePtr(from), Bytes: b.Bytes - from}
}

// Forward runs a pass over the tokens of all ranks. It chooses the experts, and writes scores, ids
// and O of this rank's tokens. It returns when everything is queued on s. Call [Rank.Wait] before
// the host or another stream uses the results. If Forward fails on one rank, it fails on all, and
// the group is broken.
func (r *Rank) Forward(ctx context.Context, s driver.Stream, a Args) error {
	return r.run(ctx, s, a, true)
}

// ForwardExperts is Forward with given scores and ids. An id outside [0, E) is skipped and adds
// nothing to O. All other ids of a token must differ.
func (r *Rank) ForwardExperts(ctx context.Context, s driver.Stream, a Args) error {
	return r.run(ctx, s, a, false)
}

// Wait waits for the passes on a stream. If it returns nil, their results are complete. After an
// error the results are not complete: another rank may have failed after this rank queued its pass.
func (r *Rank) Wait(ctx context.Context, s driver.Stream) error {
	ctx, cancel := context.WithTimeout(ctx, r.Deadline)
	defer cancel()
	err := s.Synchronize(ctx)
	if broken := r.transport.Err(); broken != nil {
		err = broken
	}
	if err != nil {
		return r.fail(Step{Phase: "wait"}, err)
	}
	return nil
}

// pass is the state of a forward pass while it is queued.
type pass struct {
	*Rank
	ctx   context.Context
	s     driver.Stream
	args  Args
	home  moe.ForwardArgs
	w     layout
	split exchange.Split
	mine  int // number of this rank's tokens
	// received has the addresses of the tokens that come to this rank's experts, and of their list
	// of pairs.
	received received
	counts
}

func (r *Rank) run(ctx context.Context, s driver.Stream, a Args, routed bool) error {
	ctx, cancel := context.WithTimeout(ctx, r.Deadline)
	defer cancel()
	p := &pass{Rank: r, ctx: ctx, s: s, args: a}
	r.trace.spans = r.trace.spans[:0]
	step := Step{Phase: "counts"}
	err := p.check(routed)
	for _, next := range []struct {
		step Step
		run  func(at Step) error
	}{
		{step, func(at Step) error { return p.count(at, routed) }},
		{Step{Phase: "dispatch"}, p.dispatch},
		{Step{Phase: "return"}, p.giveBack},
	} {
		if err != nil {
			break
		}
		step = next.step
		err = next.run(step)
	}
	if err != nil {
		return r.fail(step, err)
	}
	return nil
}

// check checks the arguments and lays out the workspace.
func (p *pass) check(routed bool) (err error) {
	if p.w, err = p.layout(); err != nil {
		return err
	}
	a := &p.args
	if err := checkBuffer("Workspace", a.Workspace, p.w.bytes); err != nil {
		return err
	}
	if t := a.X.Shape.Dims[0]; t > int64(p.MaxTokens) {
		return &moe.ArgError{Field: "X", Got: a.X.Shape.String(), Want: fmt.Sprintf("at most %d tokens (Options.MaxTokens)", p.MaxTokens)}
	}
	p.home, p.mine = a.home(&p.w), int(a.X.Shape.Dims[0])
	if p.received, err = p.place(a.Saved, part(a.Workspace, p.w.window)); err != nil {
		return err
	}
	p.split = p.w.split(a.Workspace.Ptr, p.Rank, p.mine, p.home.Routing)
	experts := moe.ForwardArgs{Weights: p.expertWeights()}
	if err := steps.Check(p.experts, &experts, false); err != nil {
		return err
	}
	return steps.Check(p.call, &p.home, routed)
}

// expertWeights returns the weights of the rank's experts.
func (p *pass) expertWeights() (w moe.Weights) {
	own := p.owner.Config().Shapes(0)
	for _, id := range moe.WeightIDs() {
		if !own.Of(id).IsZero() && !isHome(id) {
			*w.Weight(id) = *p.args.Weight(id)
		}
	}
	return w
}

// at returns the address of an offset in the workspace.
func (p *pass) at(offset int64) driver.DevicePtr {
	return p.args.Workspace.Ptr + driver.DevicePtr(offset)
}

// count chooses the experts if routed, sorts pairs and rows by rank, and shares the counts with all
// ranks.
func (p *pass) count(at Step, routed bool) error {
	ranks := p.transport.Ranks()
	words := make([]int64, (p.Chunks+1)*ranks+1)
	words[len(words)-1] = int64(p.mine)
	if p.mine > 0 {
		err := p.span(Span{Name: "route"}, p.s, func() error {
			if routed {
				if err := p.call.Route(p.s, p.home); err != nil {
					return err
				}
			}
			return steps.Split(p.call, p.s, p.split, p.home.Workspace.Ptr)
		})
		if err != nil {
			return err
		}
		if err := p.readCounts(words); err != nil {
			return err
		}
	}
	all, err := p.transport.Share(p.ctx, at, words)
	if err != nil {
		return err
	}
	p.pairs = make([][][]int64, p.Chunks)
	for _, of := range all {
		for c := range p.pairs {
			p.pairs[c] = append(p.pairs[c], of[c*ranks:(c+1)*ranks])
		}
		p.rows, p.tokens = append(p.rows, of[p.Chunks*ranks:len(of)-1]), append(p.tokens, of[len(of)-1])
	}
	p.last = p.counts
	if p.args.Saved != nil {
		p.args.Saved.counts = p.counts
	}
	return p.fits()
}

// readCounts reads from the device how many pairs go to each chunk of each rank, and how many rows
// go to each rank.
func (p *pass) readCounts(words []int64) error {
	each, parts := p.Config.NumExperts+1, p.Chunks*p.transport.Ranks()
	raw := make([]byte, 8*each)
	if err := p.s.CopyToHost(raw, p.split.PairOffsets); err != nil {
		return err
	}
	count := func(i int) int64 {
		return int64(binary.LittleEndian.Uint32(raw[4*(i+1):])) - int64(binary.LittleEndian.Uint32(raw[4*i:]))
	}
	for i := range words[:len(words)-1] {
		if words[i] = count(i); i >= parts {
			words[i] = count(each + i - parts)
		}
	}
	return nil
}

// fits returns an error if any rank would receive more than its window has room for. All ranks find
// the same error, because all have the same counts.
func (p *pass) fits() error {
	c, ranks := p.Config, p.transport.Ranks()
	for to := range ranks {
		experts := exchange.First(c.NumExperts, ranks, to+1) - exchange.First(c.NumExperts, ranks, to)
		rows, pairs := sum(column(p.rows, to)), p.receives(to)
		if room := int64(p.windowRows()); rows > room || pairs > room*int64(min(c.TopK, experts)) {
			return fmt.Errorf("rank %d gets %d tokens with %d pairs, its window has room for %d and %d: the experts of a token must differ",
				to, rows, pairs, room, room*int64(min(c.TopK, experts)))
		}
	}
	return nil
}

// receives returns the number of pairs that a rank receives.
func (c *counts) receives(rank int) (n int64) {
	for _, pairs := range c.pairs {
		n += sum(column(pairs, rank))
	}
	return n
}

// dispatch sends token rows and lists of pairs to the owners of the experts.
func (p *pass) dispatch(at Step) error {
	list, from := &p.received, p.w.sendEntries
	rows := p.rowsOut(p.at(p.w.send), list.window)
	err := p.span(Span{Name: "pack"}, p.s, func() error {
		if p.mine > 0 {
			if err := p.pack(p.rows[p.transport.Rank()]); err != nil {
				return err
			}
		}
		return p.packRows(p.call, p.args.X.Ptr, p.split.RowTokens, &rows)
	})
	if err != nil {
		return err
	}
	all := []Exchange{rows}
	for _, t := range []struct {
		from int64
		to   driver.DevicePtr
	}{{from.tokens, list.tokens}, {from.experts, list.experts}, {from.scores, list.scores}} {
		all = append(all, p.pairsOut(4, p.at(t.from), t.to)...)
	}
	return p.move(at, p.s, all...)
}

// pack writes the lists of pairs to send. rows has the number of rows that go to each rank.
func (p *pass) pack(rows []int64) error {
	own, pairs := p.transport.Rank(), int64(0)
	for _, of := range p.pairs {
		pairs += sum(of[own])
	}
	if pairs == 0 {
		return nil
	}
	bases, first := make([]byte, 0, 4*len(rows)), int64(0)
	for to, n := range rows {
		// In a rank's window, the rows from lower ranks come first.
		before := sum(column(p.rows, to)[:own])
		bases = binary.LittleEndian.AppendUint32(bases, uint32(before-first))
		first += n
	}
	if err := p.s.CopyToDevice(p.at(p.w.bases), bases); err != nil {
		return err
	}
	of := &p.split
	return steps.Entries(p.call, p.s, exchange.EntriesArgs{
		Pairs: of.Pairs, ExpertIDs: of.ExpertIDs, Scores: of.Scores, PairRanks: of.PairRanks, RowPlaces: of.RowPlaces, Bases: p.at(p.w.bases),
		Rows: p.at(p.w.sendEntries.tokens), LocalExperts: p.at(p.w.sendEntries.experts), RowScores: p.at(p.w.sendEntries.scores),
		Ranks: of.Ranks, Count: int(pairs),
	})
}

// giveBack runs the rank's experts chunk by chunk, and sends their rows home while the next chunk
// is multiplied. At the end it queues the sum of the rows that this rank has got back.
func (p *pass) giveBack(at Step) error {
	list := p.pairsBack(p.rowBytes(1), p.at(p.w.back), steps.Returned(p.call, p.home))
	stream := p.s
	if len(list) > 1 {
		stream = p.side
	}
	first := int64(0)
	for c := range list {
		if err := p.span(Span{Name: "experts", Chunk: c}, p.s, func() error { return p.chunk(c, first, &list[c]) }); err != nil {
			return err
		}
		first += sum(column(p.pairs[c], p.transport.Rank()))
		if err := p.order(p.made, p.s, stream); err != nil {
			return err
		}
		at.Chunk = c
		if err := p.move(at, stream, list[c]); err != nil {
			return err
		}
	}
	if err := p.order(p.moved, stream, p.s); err != nil || p.mine == 0 {
		return err
	}
	return p.span(Span{Name: "sum"}, p.s, func() error { return steps.Sum(p.call, p.s, p.home, p.split.Places) })
}

// order makes later work of one stream (parameter then) wait for the work queued so far on another
// (parameter first).
func (p *pass) order(mark driver.Event, first, then driver.Stream) error {
	if first == then {
		return nil
	}
	if err := mark.Record(first); err != nil {
		return err
	}
	return then.Wait(mark)
}

// chunk queues the experts of chunk c and packs their rows. first is the index of the chunk's first
// pair in the received list.
func (p *pass) chunk(c int, first int64, e *Exchange) error {
	n := int(sum(column(p.pairs[c], p.transport.Rank())))
	if n == 0 {
		return nil
	}
	packed, err := steps.Experts(p.experts, p.s, p.expertArgs(part(p.args.Workspace, p.w.owner), first, n))
	if err != nil {
		return err
	}
	return p.packRows(p.experts, packed.Y, packed.Inverse, e)
}

// expertArgs returns the arguments of the rank's experts for n pairs of the received list. The
// parameter first is the index of the first of these pairs.
func (p *pass) expertArgs(workspace moe.Buffer, first int64, n int) moe.ForwardArgs {
	rows := int(sum(column(p.rows, p.transport.Rank())))
	list, of := p.owner.Config().ListShapes(rows, n), &p.received
	word := func(p driver.DevicePtr) driver.DevicePtr { return p + driver.DevicePtr(4*first) }
	f := moe.ForwardArgs{
		X: moe.Tensor{Ptr: of.window, Shape: p.owner.Shapes(rows).X}, Weights: p.expertWeights(), Workspace: workspace,
		Routing: moe.Routing{List: moe.RoutingList{
			Tokens:    moe.Tensor{Ptr: word(of.tokens), Shape: list.ExpertIDs},
			ExpertIDs: moe.Tensor{Ptr: word(of.experts), Shape: list.ExpertIDs},
			Scores:    moe.Tensor{Ptr: word(of.scores), Shape: list.Scores},
		}},
	}
	if of.h != 0 {
		// The rows of H are sorted by expert, and so the rows of a chunk are consecutive.
		f.H = moe.Tensor{Ptr: of.h + driver.DevicePtr(first*list.H.Bytes()/int64(n)), Shape: list.H}
	}
	return f
}
