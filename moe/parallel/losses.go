package parallel

import (
	"fmt"

	"sonicmoe/moe"
	"sonicmoe/moe/internal/exchange"
)

// This file has the losses on the logits. A rank computes the gradients of its own tokens with the
// counts of all ranks. The losses of all tokens then go to all ranks, which add them in the order of one
// device.

// lossesLayout has offsets in bytes. counts has the first row of each expert over all ranks. ids has the
// expert ids of the sequences with tokens of this rank. own has the losses of this rank's tokens, and
// values the losses of all tokens.
type lossesLayout struct{ counts, ids, own, values int64 }

func (r *Rank) lossesLayout(s *space) (w lossesLayout) {
	return lossesLayout{
		counts: s.take(4*int64(r.Config.NumExperts+1) + counterBytes), ids: s.take(4 * int64(r.windowRows()*r.Config.TopK)),
		own: s.take(8 * int64(r.MaxTokens)), values: s.take(8 * int64(r.windowRows())),
	}
}

// checkSequence checks the length of sequences.
func (p *backward) checkSequence() error {
	if s, all := p.of.Sequence, sum(p.tokens); s < 0 || s > 0 && all%int64(s) != 0 {
		return &moe.ArgError{Field: "Sequence", Got: fmt.Sprint(s), Want: fmt.Sprintf("0, or a divisor of the %d tokens of all ranks", all)}
	}
	return nil
}

// hasLosses reports whether the pass adds gradients of the balance loss or the z-loss.
func (p *backward) hasLosses() bool { return p.of.Balance != 0 || p.of.ZLoss != 0 }

// losses computes the losses and their gradients.
func (p *backward) losses(at Step) error {
	reports := !p.of.RouterLosses.IsZero()
	if !p.hasLosses() && !reports {
		return nil
	}
	all := sum(p.tokens)
	if all == 0 {
		if reports {
			return p.s.Fill32(p.of.RouterLosses.Ptr, 0, 2)
		}
		return nil
	}
	of := exchange.LossTokens{Total: int(all), Length: int(all), Listed: p.mine, Offsets: p.at(p.b.losses.counts), Values: p.at(p.b.losses.own)}
	if p.of.Sequence > 0 {
		of.Length = p.of.Sequence
		if err := p.gatherIDs(at, &of); err != nil {
			return err
		}
	}
	return p.span(Span{Name: "losses"}, p.s, func() error {
		if err := p.tokenLosses(of); err != nil || !reports {
			return err
		}
		e := p.gather(of.Values, p.at(p.b.losses.values), 8)
		if err := p.move(at.moving("values"), p.s, e); err != nil {
			return err
		}
		of.Values = e.Receive
		return steps.SumLosses(p.call, p.s, p.atHome, of)
	})
}

// tokenLosses queues the losses of this rank's tokens.
func (p *backward) tokenLosses(of exchange.LossTokens) error {
	if p.mine == 0 {
		return nil
	}
	counts, before := []uint32{0}, int64(0)
	for expert := range p.Config.NumExperts {
		before += sum(column(p.pairs, expert))
		counts = append(counts, uint32(before))
	}
	var u uploads
	u.add(counts...)
	if err := p.s.CopyToDevice(of.Offsets, u.bytes); err != nil {
		return err
	}
	return steps.TokenLosses(p.call, p.s, p.atHome, of)
}

// gatherIDs gathers the expert ids of all sequences that have tokens of this rank.
func (p *backward) gatherIDs(at Step, of *exchange.LossTokens) error {
	firsts, length := []int64{0}, int64(of.Length)
	for i, n := range p.tokens {
		firsts = append(firsts, firsts[i]+n)
	}
	// listed returns the tokens of the sequences that have tokens of a rank: from first to end-1.
	listed := func(rank int) (first, end int64) {
		if p.tokens[rank] == 0 {
			return 0, 0
		}
		return firsts[rank] / length * length, (firsts[rank+1] + length - 1) / length * length
	}
	own, each := p.transport.Rank(), 4*int64(p.Config.TopK)
	first, end := listed(own)
	of.Listed, of.First, of.ExpertIDs = int(end-first), int(firsts[own]-first), p.at(p.b.losses.ids)
	e := Exchange{Send: p.of.ExpertIDs.Ptr, Receive: of.ExpertIDs}
	for rank := range p.transport.Ranks() {
		to, toEnd := listed(rank)
		from := max(to, firsts[own])
		e.SendAt = append(e.SendAt, each*(from-firsts[own]))
		e.SendBytes = append(e.SendBytes, each*max(0, min(toEnd, firsts[own+1])-from))
		e.ReceiveBytes = append(e.ReceiveBytes, each*max(0, min(end, firsts[rank+1])-max(first, firsts[rank])))
	}
	return p.move(at.moving("ids"), p.s, e)
}
