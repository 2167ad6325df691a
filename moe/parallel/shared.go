package parallel

import (
	"sonicmoe/driver"
	"sonicmoe/internal/num"
	"sonicmoe/internal/spec"
	"sonicmoe/moe"
	"sonicmoe/moe/internal/exchange"
	"sonicmoe/moe/internal/gradient"
	"sonicmoe/moe/internal/kernel/dw"
	"sonicmoe/moe/internal/weights"
)

// This file has the gradients of the shared experts. One device sums over ranges of dw.SplitRows tokens,
// and then adds the sums of the ranges. The group does the same, see router.go. The partial sums are
// large, so each rank adds up a slice of every gradient, and sends it to the other ranks.

// sharedExperts are the shared experts' weights whose gradients are sums over tokens.
var sharedExperts = []moe.TensorID{spec.TensorSharedW1, spec.TensorSharedW3, spec.TensorSharedW2}

// modeWord returns 0 for an absent gradient, and a number for each type and mode.
func modeWord(g moe.Gradient) int64 {
	word := int64(0)
	if !g.IsZero() {
		word = 1 + int64(g.Shape.Type)<<1
	}
	if g.Accumulate {
		word += 1 << 32
	}
	return word
}

// sharedLayout has offsets in bytes. x, do, dh and a have the rows of the tail, and numbers has the
// numbers 0, 1, 2 and so on. own has the partial sums of this rank's ranges. slices has the rank's slice
// of the partial sums of all ranges.
type sharedLayout struct{ x, do, dh, a, numbers, own, slices int64 }

// sharedConfig returns the shared experts as a layer.
func (r *Rank) sharedConfig() moe.Config {
	c, _ := r.Config.Shared()
	return c
}

func (r *Rank) sharedLayout(s *space) (w sharedLayout) {
	if r.Config.SharedExperts == 0 {
		return w
	}
	c, tokens := r.sharedConfig(), min(r.windowRows(), dw.SplitRows)
	w.x, w.do = s.take(r.rowBytes(tokens)), s.take(r.rowBytes(tokens))
	w.dh, w.a = s.take(weights.DH(c).Bytes(tokens)), s.take(weights.A(c).Bytes(tokens))
	w.numbers = s.take(4 * int64(tokens))
	all, slice := int64(0), int64(0)
	shapes := r.Config.Shapes(0)
	for _, id := range sharedExperts {
		n := shapes.Of(id).Elements()
		all += n
		slice += r.sliceOf(n, r.transport.Rank()).count
	}
	w.own = s.take(4 * all * int64(r.MaxTokens/dw.SplitRows+1))
	w.slices = s.take(4 * slice * int64((r.windowRows()+dw.SplitRows-1)/dw.SplitRows))
	return w
}

// slice is a part of the elements of a gradient.
type slice struct{ first, count int64 }

// sliceOf returns the part of n elements that a rank adds up.
func (r *Rank) sliceOf(n int64, rank int) slice {
	first := func(rank int) int64 {
		return n / exchange.PartsStep * int64(rank) / int64(r.transport.Ranks()) * exchange.PartsStep
	}
	if rank == r.transport.Ranks()-1 {
		return slice{first(rank), n - first(rank)}
	}
	return slice{first(rank), first(rank+1) - first(rank)}
}

// shared computes the gradients of the shared experts.
func (p *backward) shared(at Step) error {
	c := p.sharedConfig()
	wanted := !p.of.DSharedW1.IsZero() || !p.of.DSharedW2.IsZero()
	gate := !p.of.DSharedGate.IsZero()
	if p.Config.SharedExperts == 0 || !wanted && !gate && !p.wantsDX() {
		return nil
	}
	return p.span(Span{Name: "shared experts"}, p.s, func() error {
		var rows exchange.SharedRows
		if p.mine > 0 {
			var err error
			if rows, err = steps.SharedRows(p.call, p.s, p.atHome); err != nil {
				return err
			}
		}
		if gate {
			inputs := exchange.RouterInputs{X: rows.X, DLogits: rows.DLogits, ExpertIDs: rows.ExpertIDs, Gate: true}
			gate := Step{Phase: "shared gate"}
			if err := p.sumRanges(gate, p.gateGradient(), inputs); err != nil {
				return err
			}
			if err := p.sumPartials(gate.moving("sums"), p.of.DSharedGate); err != nil {
				return err
			}
		}
		if !wanted {
			return nil
		}
		if err := p.sharedParts(at, rows, [2]int64{weights.DH(c).Bytes(1), weights.A(c).Bytes(1)}); err != nil {
			return err
		}
		return p.addShared(at)
	})
}

// sharedParts computes the partial sums of this rank's ranges. each has the numbers of bytes of a row of
// DH and of A.
func (p *backward) sharedParts(at Step, rows exchange.SharedRows, each [2]int64) error {
	p.ranges = p.newRanges(func(int) int { return dw.SplitRows })
	g, w := &p.ranges, &p.b.shared
	of := g.on(p.transport.Rank())
	tail := exchange.SharedRows{X: p.at(w.x), DO: p.at(w.do), DH: p.at(w.dh), A: p.at(w.a), Tokens: p.at(w.numbers)}
	if g.anyMoved() {
		d := p.rowBytes(1)
		err := p.gatherTail(at, of.tail, tailPart{rows.X, tail.X, d}, tailPart{rows.DO, tail.DO, d}, tailPart{rows.DH, tail.DH, each[0]}, tailPart{rows.A, tail.A, each[1]})
		if err != nil {
			return err
		}
	}
	for i := range of.whole {
		first := of.start + i*g.each
		r, move := rows, func(at *driver.DevicePtr, each int64) { *at += driver.DevicePtr(first * each) }
		move(&r.X, p.rowBytes(1))
		move(&r.DO, p.rowBytes(1))
		move(&r.DH, each[0])
		move(&r.A, each[1])
		if err := p.sharedPart(r, min(g.each, int64(p.mine)-first), i); err != nil {
			return err
		}
	}
	if of.tail == 0 {
		return nil
	}
	numbers := make([]uint32, of.tailTokens)
	for i := range numbers {
		numbers[i] = uint32(i)
	}
	if err := p.s.CopyToDevice(tail.Tokens, num.Bytes(numbers)); err != nil {
		return err
	}
	return p.sharedPart(tail, of.tailTokens, of.whole)
}

// sharedPart computes the partial sums of the rank's range with the number nth.
func (p *backward) sharedPart(rows exchange.SharedRows, tokens, nth int64) error {
	var to [len(sharedSums{})]driver.DevicePtr
	for i, of := range p.sharedSums() {
		if of.gradient != nil {
			to[i] = p.at(p.b.shared.own + 4*(nth*of.all+of.before))
		}
	}
	return steps.SharedPart(p.call, p.s, p.atHome, rows, int(tokens), to)
}

// sharedSums has the gradients of sharedExperts. gradient is nil if it is not wanted. The FP32 sums of a
// range lie one after the other: before is the number of elements of the gradients before this
// gradient, and all is the number of elements of all gradients.
type sharedSums [3]struct {
	gradient              *moe.Gradient
	elements, before, all int64
}

func (p *backward) sharedSums() (list sharedSums) {
	all := int64(0)
	for i, id := range sharedExperts {
		if g := p.of.Gradient(id); !g.IsZero() {
			list[i].gradient, list[i].elements, list[i].before = g, g.Shape.Elements(), all
			all += list[i].elements
		}
	}
	for i := range list {
		list[i].all = all
	}
	return list
}

// addShared sends the slices of all partial sums to the ranks that add them up, and the sums to all
// ranks.
func (p *backward) addShared(at Step) error {
	g, own, ranks := &p.ranges, p.transport.Rank(), p.transport.Ranks()
	ranges, most := int64(0), int64(0)
	for rank := range ranks {
		from, to := g.of(rank)
		ranges, most = ranges+to-from, max(most, to-from)
	}
	var parts, sums []Exchange
	base := int64(0) // offset of the slices of this gradient
	var adds []func() error
	for _, of := range p.sharedSums() {
		if of.gradient == nil {
			continue
		}
		mine := p.sliceOf(of.elements, own)
		for i := range most {
			parts = append(parts, p.partsOfSlices(i, 4*(i*of.all+of.before), base, of.elements))
		}
		to := of.gradient.Ptr
		each := of.gradient.Shape.Type.Bytes()
		args := exchange.PartsArgs{Partials: p.at(p.b.shared.slices + base), To: to + driver.DevicePtr(each*mine.first), N: int(ranges), Count: int(mine.count)}
		mode := gradient.Mode{F32: of.gradient.Shape.Type == moe.F32, Accumulate: of.gradient.Accumulate}
		if args.Count > 0 {
			adds = append(adds, func() error { return steps.AddParts(p.call, p.s, mode, args) })
		}
		e := Exchange{Send: args.To, Receive: to, Same: true, InPlace: true}
		for rank := range ranks {
			e.SendBytes, e.ReceiveBytes = append(e.SendBytes, each*mine.count), append(e.ReceiveBytes, each*p.sliceOf(of.elements, rank).count)
		}
		sums = append(sums, e)
		base += 4 * mine.count * ranges
	}
	if len(parts) > 0 {
		if err := p.move(at.moving("parts"), p.s, parts...); err != nil {
			return err
		}
	}
	for _, add := range adds {
		if err := add(); err != nil {
			return err
		}
	}
	return p.move(at.moving("sums"), p.s, sums...)
}

// partsOfSlices returns the exchange of slices of each rank's range i. from is the offset of the range's
// sums on this rank. base is the offset of this rank's slices of all ranges.
func (p *backward) partsOfSlices(i, from, base, elements int64) Exchange {
	own := p.transport.Rank()
	e := Exchange{Send: p.at(p.b.shared.own + from), Receive: p.at(p.b.shared.slices + base)}
	mine, before := p.sliceOf(elements, own), int64(0)
	first, end := p.ranges.of(own)
	for rank := range p.transport.Ranks() {
		theirs := p.sliceOf(elements, rank)
		send, receive := int64(0), int64(0)
		if i < end-first {
			send = 4 * theirs.count
		}
		from, to := p.ranges.of(rank)
		if i < to-from {
			receive = 4 * mine.count
		}
		e.SendAt, e.SendBytes = append(e.SendAt, 4*theirs.first), append(e.SendBytes, send)
		e.ReceiveAt, e.ReceiveBytes = append(e.ReceiveAt, 4*mine.count*(before+i)), append(e.ReceiveBytes, receive)
		before += to - from
	}
	return e
}
