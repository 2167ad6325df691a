package parallel

import (
	"context"
	"fmt"

	"sonicmoe/driver"
	"sonicmoe/internal/spec"
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
	// chunks is the number of chunks of the pass: groups of other ranks, times parts of the experts. small reports whether there is one chunk, and no exchange
	// that overlaps products. packs reports whether rows are packed before they go home.
	chunks, groups, parts int
	small, packs          bool
	// sentBefore [E+1] has the number of this rank's pairs with lower experts. madeBefore has, for
	// each of this rank's experts, the number of rows of lower experts, and last the number of rows.
	sentBefore, madeBefore []int64
	plan                   plan
	// found [T, K] u32 has the index of the row of each pair, see shifts.
	found driver.DevicePtr
	// weights [T, K] f32 and slots [P] u32 are outputs of exchange.SumPlaces, if ranks send partial sums.
	weights, slots driver.DevicePtr
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
	p.split = p.w.split(a.Workspace.Ptr, p.Rank, p.mine, p.home.Routing)
	p.found, p.weights, p.slots = p.at(p.w.found), p.at(p.w.weights), p.at(p.w.slots)
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

// dispatch sends token rows and lists of pairs to the owners of the experts. Unless the pass is small,
// the exchange overlaps the products of a portion of the rank's own tokens.
func (p *pass) dispatch(at Step) error {
	list, from := &p.received, p.w.sendEntries
	rows := p.rowsOut(p.at(p.w.send), list.window)
	var lists []Exchange
	for _, t := range []struct {
		from int64
		to   driver.DevicePtr
	}{{from.tokens, list.tokens}, {from.experts, list.experts}, {from.scores, list.scores}, {p.w.slots, p.at(p.w.gotSlots)}} {
		if t.from == p.w.slots && !p.sums() {
			continue
		}
		e := p.pairsOut(4, p.at(t.from), t.to)
		e.InPlace = true
		lists = append(lists, e)
	}
	err := p.span(Span{Name: "pack"}, p.s, func() error {
		// The device packs rows while the host makes the plan.
		if err := p.pack(p.args.X.Ptr, &rows); err != nil {
			return err
		}
		if err := p.entries(); err != nil || !p.sums() {
			return err
		}
		return p.findSums()
	})
	if err != nil {
		return err
	}
	if err := p.send(at, !p.small, rows, func() error { return p.startOwn(lists) }, lists...); err != nil {
		return err
	}
	if err := p.arrange(0, p.transport.Rank()); err != nil {
		return err
	}
	if err := p.arrange(p.transport.Rank()+1, p.transport.Ranks()); err != nil {
		return err
	}
	if err := p.arrangeSlots(); err != nil || p.small {
		return err
	}
	return p.order(p.arranged, p.s, p.other())
}

// entries uploads the plan of the pass, and writes the lists of pairs to send.
func (p *pass) entries() error {
	p.plan = p.newPlan(steps.Returned(p.call, p.home), p.y())
	if err := p.s.CopyToDevice(p.at(p.w.uploads), p.plan.bytes); err != nil {
		return err
	}
	pairs := sum(p.pairs[p.transport.Rank()])
	if pairs == 0 {
		return nil
	}
	of := &p.split
	return steps.Entries(p.call, p.s, exchange.EntriesArgs{
		Pairs: of.Pairs, ExpertIDs: of.ExpertIDs, Scores: of.Scores, RowPlaces: of.RowPlaces, Bases: p.uploaded(p.plan.bases),
		Rows: p.at(p.w.sendEntries.tokens), LocalExperts: p.at(p.w.sendEntries.experts), RowScores: p.at(p.w.sendEntries.scores),
		Ranks: of.Ranks, Count: int(pairs),
	})
}

// startOwn queues what the rank can do for its own tokens before other ranks' tokens arrive. lists
// has the exchanges of the lists of pairs.
func (p *pass) startOwn(lists []Exchange) error {
	own := p.transport.Rank()
	err := p.span(Span{Name: "arrange"}, p.s, func() error {
		for _, list := range lists {
			if err := p.s.Copy(list.To(own), list.From(own), list.SendBytes[own]); err != nil {
				return err
			}
		}
		if !p.sums() {
			if err := p.findRows(p.uploaded(p.plan.shifts)); err != nil {
				return err
			}
		}
		return p.arrange(own, own+1)
	})
	if err != nil {
		return err
	}
	if p.small {
		return nil
	}
	if err := p.order(p.arranged, p.s, p.other()); err != nil {
		return err
	}
	return p.multiply(Span{Name: "own experts"}, p.other(), p.plan.own[0])
}

// other returns the stream of every second portion. Portions of packed weights are on one stream,
// because the first one unpacks the weights. Portions with an adapter are on one stream, because they
// use the same counters for the adapter's products.
func (p *pass) other() driver.Stream {
	if spec.IsPacked(p.Config) || spec.HasLoRA(p.Config) {
		return p.s
	}
	return p.second
}

// findRows queues the kernel that writes the index of the row of each pair. shifts is the address of
// the numbers of the function shifts.
func (p *pass) findRows(shifts driver.DevicePtr) error {
	if p.mine == 0 {
		return nil
	}
	if p.sums() {
		return p.sumPlaces(shifts)
	}
	return steps.Shift(p.call, p.s, exchange.ShiftArgs{
		ExpertIDs: p.split.ExpertIDs, Places: p.split.Places, Shifts: shifts, Shifted: p.found, Pairs: p.mine * p.Config.TopK,
	})
}

// y returns the address for the rows of Y of this rank's experts.
func (p *pass) y() driver.DevicePtr {
	return p.aligned(p.at(p.w.y), steps.Returned(p.call, p.home))
}

// ownerWorkspace returns the workspace of the layer of this rank's experts.
func (p *pass) ownerWorkspace() moe.Buffer { return part(p.args.Workspace, p.w.owner) }

// giveBack multiplies the tokens of other ranks chunk by chunk, and sends their rows home while the
// next chunk is multiplied. At the end it queues the sum of the rows of this rank's tokens.
func (p *pass) giveBack(at Step) error {
	arrive, y := steps.Returned(p.call, p.home), p.y()
	stream := p.s
	if !p.small {
		stream = p.side
	}
	if err := p.multiplyChunk(0); err != nil {
		return err
	}
	for c := range p.chunks {
		back := []Exchange{{}}
		switch {
		case p.sums():
			back[0] = p.sumsBack(c, p.at(p.w.back), arrive)
			if err := p.sumOthers(c, steps.SumRows, y, p.at(p.w.back)); err != nil {
				return err
			}
		case !p.packs:
			back = p.rowsBack(c, y, arrive)
		default:
			back[0] = p.packedBack(c, p.at(p.w.back), arrive)
			if err := p.packChunk(c, p.experts, y, p.at(p.w.inverse), &back[0]); err != nil {
				return err
			}
		}
		if err := p.order(p.made, p.productsOf(c), stream); err != nil {
			return err
		}
		// The host queues the next products before the exchange, because it may wait for other ranks
		// in Move.
		if err := p.multiplyChunk(c + 1); err != nil {
			return err
		}
		at.Chunk = c
		if err := p.move(at, stream, back...); err != nil {
			return err
		}
	}
	if !p.small {
		if err := p.order(p.made, p.other(), p.s); err != nil {
			return err
		}
	}
	if err := p.order(p.moved, stream, p.s); err != nil || p.mine == 0 {
		return err
	}
	home := p.home
	if p.sums() {
		home.Scores.Ptr = p.weights
	}
	return p.span(Span{Name: "sum"}, p.s, func() error { return steps.Sum(p.call, p.s, home, p.found) })
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

// expertArgs returns the arguments of the rank's experts for the received list.
func (p *pass) expertArgs(workspace moe.Buffer) moe.ForwardArgs {
	rows := int(sum(column(p.rows, p.transport.Rank())))
	list, of := p.owner.Config().ListShapes(rows, int(p.receives(&p.counts, p.transport.Rank()))), &p.received
	f := moe.ForwardArgs{
		X: moe.Tensor{Ptr: of.window, Shape: p.owner.Shapes(rows).X}, Weights: p.expertWeights(), Workspace: workspace,
		Routing: moe.Routing{List: moe.RoutingList{
			Tokens:    moe.Tensor{Ptr: of.tokens, Shape: list.ExpertIDs},
			ExpertIDs: moe.Tensor{Ptr: of.experts, Shape: list.ExpertIDs},
			Scores:    moe.Tensor{Ptr: of.scores, Shape: list.Scores},
		}},
	}
	if of.h != 0 {
		f.H = moe.Tensor{Ptr: of.h, Shape: list.H}
		if !list.LoraU.IsZero() {
			f.LoraU = moe.Tensor{Ptr: of.h + driver.DevicePtr(list.H.Bytes()), Shape: list.LoraU}
		}
	}
	return f
}
