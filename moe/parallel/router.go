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
	return drouter.DRouter{Hidden: r.Config.Hidden, NumExperts: r.Config.NumExperts}
}

// ranges describes the ranges of tokens of a pass. Tokens are numbered over all ranks.
type ranges struct {
	// each is the number of tokens of a range. total is the number of all tokens.
	each, total int64
	// firsts has the number of the first token of each rank, followed by total.
	firsts []int64
}

func (p *backward) newRanges() ranges {
	g := ranges{firsts: []int64{0}}
	for _, n := range p.tokens {
		g.total += n
		g.firsts = append(g.firsts, g.total)
	}
	_, each := p.routerGradient().Ranges(int(g.total))
	g.each = int64(each)
	return g
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
	return p.span(Span{Name: "router"}, p.s, func() error { return p.sumRanges(at, steps.RouterInputs) })
}

// sumRanges computes the partial sums of this rank's ranges. inputsOf queues the kernels that
// complete the inputs.
func (p *backward) sumRanges(at Step, inputsOf func(*moe.Call, driver.Stream, moe.BackwardArgs) (exchange.RouterInputs, error)) (err error) {
	p.ranges = p.newRanges()
	if p.inputs, err = inputsOf(p.call, p.s, p.atHome); err != nil {
		return err
	}
	g, own := &p.ranges, p.transport.Rank()
	from, to := g.of(own)
	mine, start := g.firsts[own+1], min(from*g.each, g.firsts[own+1])-g.firsts[own]
	// If other ranks have tokens of the last range, all its tokens are gathered in the tail.
	whole, tail := to-from, int64(0)
	if g.end(own) > mine && from < to {
		whole--
		tail = mine - (to-1)*g.each
	}
	if g.anyMoved() {
		if err := p.moveTail(at, tail); err != nil {
			return err
		}
	}
	sums := p.at(p.b.own)
	if whole > 0 {
		tokens := min(whole*g.each, mine-g.firsts[own]-start)
		if err := steps.GradientRouter(p.call, p.s, p.part(p.inputs, start), int(tokens), int(g.each), sums); err != nil {
			return err
		}
	}
	if tail > 0 {
		at := exchange.RouterInputs{X: p.at(p.b.tail.x), DLogits: p.at(p.b.tail.dlogits), ExpertIDs: p.at(p.b.tail.ids), Bias: p.inputs.Bias}
		if p.inputs.Dense != 0 {
			at.Dense = p.at(p.b.tail.dense)
		}
		return steps.GradientRouter(p.call, p.s, at, int(g.end(own)-(to-1)*g.each), int(g.each), sums+driver.DevicePtr(whole*p.rangeBytes()))
	}
	return nil
}

// rangeBytes returns the size of the partial sums of a range.
func (p *backward) rangeBytes() int64 { return 4 * int64(p.Config.NumExperts) * int64(p.Config.Hidden) }

// tokenBytes returns the bytes of a token in X, DLogits, ExpertIDs and Dense of the inputs.
func (p *backward) tokenBytes() [4]int64 {
	k := 4 * int64(p.Config.TopK)
	return [4]int64{p.rowBytes(1), k, k, 4 * int64(p.Config.NumExperts)}
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
	g, own := &p.ranges, p.transport.Rank()
	last := p.part(p.inputs, int64(p.mine)-tail)
	var list []Exchange
	each := p.tokenBytes()
	for i, t := range []struct{ from, last, to driver.DevicePtr }{
		{p.inputs.X, last.X, p.at(p.b.tail.x)}, {p.inputs.DLogits, last.DLogits, p.at(p.b.tail.dlogits)},
		{p.inputs.ExpertIDs, last.ExpertIDs, p.at(p.b.tail.ids)}, {p.inputs.Dense, last.Dense, p.at(p.b.tail.dense)},
	} {
		if t.from == 0 && p.inputs.Dense == 0 && i == 3 {
			continue
		}
		if err := p.s.Copy(t.to, t.last, tail*each[i]); err != nil {
			return err
		}
		e := Exchange{Send: t.from, Receive: t.to + driver.DevicePtr(tail*each[i])}
		for rank := range p.transport.Ranks() {
			e.SendBytes, e.ReceiveBytes = append(e.SendBytes, g.moved(own, rank)*each[i]), append(e.ReceiveBytes, g.moved(rank, own)*each[i])
		}
		list = append(list, e)
	}
	return p.move(at, p.s, list...)
}

// partials sends all partial sums of the router's gradient to all ranks, and queues their sum.
func (p *backward) partials(at Step) error {
	if !p.wantsRouter() {
		return nil
	}
	return p.sumPartials(at, p.atHome)
}

// sumPartials sends all partial sums to all ranks, and queues their sum, which goes to to.DRouter.
func (p *backward) sumPartials(at Step, to moe.BackwardArgs) error {
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
	return steps.SumRouter(p.call, p.s, to, p.at(p.b.partials), int(all))
}

// biases computes the gradient of b2. Every rank adds the partial sums of all experts, and keeps the
// sums of its own experts.
func (p *backward) biases(at Step) error {
	if !p.wantsB2() {
		return nil
	}
	return p.span(Span{Name: "biases"}, p.s, func() error {
		if err := p.sumRanges(at, steps.BiasInputs); err != nil {
			return err
		}
		to, own := p.atHome, p.of.DB2
		to.DRouter = own
		to.DRouter.Ptr = p.at(p.b.biases)
		to.DRouter.Shape.Dims[0] = int64(p.Config.NumExperts)
		first, _ := p.Experts()
		part := to.DRouter.Ptr + driver.DevicePtr(own.Shape.Bytes()/own.Shape.Dims[0]*int64(first))
		if own.Accumulate {
			if err := p.s.Copy(part, own.Ptr, own.Shape.Bytes()); err != nil {
				return err
			}
		}
		if err := p.sumPartials(at, to); err != nil {
			return err
		}
		return p.s.Copy(own.Ptr, part, own.Shape.Bytes())
	})
}
