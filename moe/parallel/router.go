package parallel

import (
	"sonicmoe/driver"
	"sonicmoe/moe"
	"sonicmoe/moe/internal/exchange"
	"sonicmoe/moe/internal/kernel/drouter"
)

// This file has the gradient of the router's weights, and the gradient of b2. One device sums over
// fixed ranges of tokens, and then adds the sums of the ranges. The group uses the same ranges over
// the tokens of all ranks, so that the result has the same bits. The rank that has the first token
// of a range sums over it, and gets the range's other tokens from the ranks after it. All ranks get
// all partial sums, and add them in the order of the ranges.

// routerGradient is the kernel that computes the gradient of the router's weights on one device. The
// group of ranks divides its tokens into the ranges of this kernel.
func (r *Rank) routerGradient() drouter.DRouter {
	return drouter.DRouter{Hidden: r.Config.Hidden, NumExperts: r.Config.NumExperts, TopK: r.Config.TopK}
}

// gateGradient is the same for the gate of the shared experts, which is a router with one expert.
func (r *Rank) gateGradient() drouter.DRouter {
	return drouter.DRouter{Hidden: r.Config.Hidden, NumExperts: 1, TopK: 1}
}

// ranges describes the ranges of tokens of a pass. Tokens are numbered over all ranks.
type ranges struct {
	// each is the number of tokens of a range. total is the number of all tokens.
	each, total int64
	// firsts has the number of the first token of each rank, followed by total.
	firsts []int64
}

// newRanges returns ranges of a number of tokens each. The parameter each returns this number for the
// number of all tokens.
func (p *backward) newRanges(each func(total int) int) ranges {
	g := ranges{firsts: []int64{0}}
	for _, n := range p.tokens {
		g.total += n
		g.firsts = append(g.firsts, g.total)
	}
	g.each = int64(each(int(g.total)))
	return g
}

// summedOn describes which tokens a rank sums: its first token of a range is start, counted from its own
// first token. whole ranges have only tokens of this rank, and the tail, if it has tokens, is a last range
// with this number of own tokens, and tailTokens tokens in all.
type summedOn struct{ start, whole, tail, tailTokens int64 }

// on returns which tokens a rank sums.
func (g *ranges) on(rank int) (of summedOn) {
	from, to := g.of(rank)
	end := g.firsts[rank+1]
	of = summedOn{start: min(from*g.each, end) - g.firsts[rank], whole: to - from}
	// If other ranks have tokens of the last range, all its tokens are gathered in the tail.
	if g.end(rank) > end && from < to {
		of.whole--
		of.tail, of.tailTokens = end-(to-1)*g.each, g.end(rank)-(to-1)*g.each
	}
	return of
}

// of returns the numbers of the ranges that a rank sums: `from` to `to`-1. A rank sums a range if the
// range starts with one of the rank's tokens.
func (g *ranges) of(rank int) (from, to int64) {
	up := func(token int64) int64 { return (token + g.each - 1) / g.each }
	return up(g.firsts[rank]), up(g.firsts[rank+1])
}

// end returns the number of the token after the last token of a rank's ranges.
func (g *ranges) end(rank int) int64 {
	_, to := g.of(rank)
	return min(to*g.each, g.total)
}

// moved returns how many tokens one rank (parameter from) sends to another (parameter to) to
// complete the receiver's last range.
func (g *ranges) moved(from, to int) int64 {
	if first, after := g.of(to); from <= to || first == after {
		return 0
	}
	return max(0, min(g.end(to), g.firsts[from+1])-g.firsts[from])
}

// anyMoved reports whether any rank sends tokens to another rank.
func (g *ranges) anyMoved() bool {
	for from := range len(g.firsts) - 1 {
		for to := range from {
			if g.moved(from, to) > 0 {
				return true
			}
		}
	}
	return false
}

// sumRouter computes the partial sums of this rank's ranges.
func (p *backward) sumRouter(at Step) error {
	if !p.wantsRouter() {
		return nil
	}
	return p.span(Span{Name: "router"}, p.s, func() error {
		inputs, err := steps.RouterInputs(p.call, p.s, p.atHome)
		if err != nil {
			return err
		}
		return p.sumRanges(at, p.routerGradient(), inputs)
	})
}

// sumRanges computes the partial sums of this rank's ranges.
func (p *backward) sumRanges(at Step, d drouter.DRouter, inputs exchange.RouterInputs) (err error) {
	p.summed, p.inputs = d, inputs
	p.ranges = p.newRanges(func(total int) int { _, each := d.Ranges(total); return each })
	g, own := &p.ranges, p.transport.Rank()
	of := g.on(own)
	if g.anyMoved() {
		if err := p.moveTail(at, of.tail); err != nil {
			return err
		}
	}
	sums := p.at(p.b.own)
	if of.whole > 0 {
		tokens := min(of.whole*g.each, int64(p.mine)-of.start)
		if err := steps.GradientRouter(p.call, p.s, p.part(p.inputs, of.start), int(tokens), int(g.each), sums); err != nil {
			return err
		}
	}
	if of.tail > 0 {
		at := p.inputs
		at.X, at.DLogits, at.ExpertIDs, at.Dense = p.at(p.b.tail.x), p.at(p.b.tail.dlogits), p.at(p.b.tail.ids), 0
		if p.inputs.Dense != 0 {
			at.Dense = p.at(p.b.tail.dense)
		}
		return steps.GradientRouter(p.call, p.s, at, int(of.tailTokens), int(g.each), sums+driver.DevicePtr(of.whole*p.rangeBytes()))
	}
	return nil
}

// rangeBytes returns the size of the partial sums of a range.
func (p *backward) rangeBytes() int64 { return 4 * int64(p.summed.NumExperts) * int64(p.summed.Hidden) }

// tokenBytes returns the bytes of a token in X, DLogits, ExpertIDs and Dense of the inputs.
func (p *backward) tokenBytes() [4]int64 {
	k := 4 * int64(p.summed.TopK)
	return [4]int64{p.rowBytes(1), k, k, 4 * int64(p.summed.NumExperts)}
}

// part returns the inputs without their first tokens. The parameter from is the number of tokens to
// leave out.
func (p *backward) part(of exchange.RouterInputs, from int64) exchange.RouterInputs {
	each := p.tokenBytes()
	for i, at := range []*driver.DevicePtr{&of.X, &of.DLogits, &of.ExpertIDs, &of.Dense} {
		if *at != 0 {
			*at += driver.DevicePtr(from * each[i])
		}
	}
	return of
}

// moveTail gathers the tokens of ranges that are on several ranks. The last tail tokens of this
// rank come first in its own tail buffer.
func (p *backward) moveTail(at Step, tail int64) error {
	each, w := p.tokenBytes(), &p.b.tail
	list := []tailPart{{p.inputs.X, p.at(w.x), each[0]}, {p.inputs.DLogits, p.at(w.dlogits), each[1]}, {p.inputs.ExpertIDs, p.at(w.ids), each[2]}}
	if p.inputs.Dense != 0 {
		list = append(list, tailPart{p.inputs.Dense, p.at(w.dense), each[3]})
	}
	return p.gatherTail(at, tail, list...)
}

// tailPart is a tensor of this rank's tokens, with the address of its part in a tail buffer. A token has
// the number of bytes each.
type tailPart struct {
	from, to driver.DevicePtr
	each     int64
}

// gatherTail gathers parts of a tail. The parameter tail is the number of this rank's last tokens in its
// own tail.
func (p *backward) gatherTail(at Step, tail int64, parts ...tailPart) error {
	g, own := &p.ranges, p.transport.Rank()
	var list []Exchange
	for _, t := range parts {
		if tail > 0 {
			if err := p.s.Copy(t.to, t.from+driver.DevicePtr((int64(p.mine)-tail)*t.each), tail*t.each); err != nil {
				return err
			}
		}
		e := Exchange{Send: t.from, Receive: t.to + driver.DevicePtr(tail*t.each)}
		for rank := range p.transport.Ranks() {
			e.SendBytes, e.ReceiveBytes = append(e.SendBytes, g.moved(own, rank)*t.each), append(e.ReceiveBytes, g.moved(rank, own)*t.each)
		}
		list = append(list, e)
	}
	return p.move(at.moving("tokens"), p.s, list...)
}

// partials sends all partial sums of the router's gradient to all ranks, and queues their sum.
func (p *backward) partials(at Step) error {
	if !p.wantsRouter() {
		return nil
	}
	return p.sumPartials(at, p.of.DRouter)
}

// sumPartials sends all partial sums to all ranks, and queues their sum, which goes to the gradient `to`.
func (p *backward) sumPartials(at Step, to moe.Gradient) error {
	g, own := &p.ranges, p.transport.Rank()
	e := Exchange{Send: p.at(p.b.own), Receive: p.at(p.b.partials), Same: true}
	from, end := g.of(own)
	all := int64(0)
	for rank := range p.transport.Ranks() {
		first, after := g.of(rank)
		all += after - first
		e.SendBytes, e.ReceiveBytes = append(e.SendBytes, (end-from)*p.rangeBytes()), append(e.ReceiveBytes, (after-first)*p.rangeBytes())
	}
	if err := p.move(at, p.s, e); err != nil {
		return err
	}
	return steps.SumRouter(p.call, p.s, to, p.inputs.Gate, p.at(p.b.partials), int(all))
}

// biases computes the gradient of b2. Every rank adds the partial sums of all experts, and keeps the
// sums of its own experts.
func (p *backward) biases(at Step) error {
	if !p.wantsB2() {
		return nil
	}
	return p.span(Span{Name: "biases"}, p.s, func() error {
		inputs, err := steps.BiasInputs(p.call, p.s, p.atHome)
		if err != nil {
			return err
		}
		if err := p.sumRanges(at, p.routerGradient(), inputs); err != nil {
			return err
		}
		to, own := p.of.DB2, p.of.DB2
		to.Ptr = p.at(p.b.biases)
		to.Shape.Dims[0] = int64(p.Config.NumExperts)
		first, _ := p.Experts()
		part := to.Ptr + driver.DevicePtr(own.Shape.Bytes()/own.Shape.Dims[0]*int64(first))
		if own.Accumulate {
			if err := p.s.Copy(part, own.Ptr, own.Shape.Bytes()); err != nil {
				return err
			}
		}
		if err := p.sumPartials(at.moving("sums"), to); err != nil {
			return err
		}
		return p.s.Copy(own.Ptr, part, own.Shape.Bytes())
	})
}
