package parallel

import (
	"sonicmoe/driver"
	"sonicmoe/moe"
	"sonicmoe/moe/internal/exchange"
	"sonicmoe/moe/internal/kernel"
	routed "sonicmoe/moe/internal/route/order"
)

// This file has the passes with Options.PartialSums. A rank adds up its rows of Y for each token of
// another rank, and sends one row home for each token that it has received. The home adds its own rows,
// and the partial sums, in the order of the slots. A partial sum has the slot of the first pair of its
// rank. A sum is complete when all experts of the rank are done, so a chunk of the pass has the tokens of
// some homes and all experts. The first chunk of a rank is for the ranks after it.

// sums reports whether passes send partial sums. A single rank has none to send.
func (r *Rank) sums() bool { return r.PartialSums && r.transport.Ranks() > 1 }

// slotBytes returns the size of a tensor [rows, K] of 32-bit words. K is the largest number of pairs of a
// token here. It is 0 if ranks do not send partial sums.
func (r *Rank) slotBytes(rows int) int64 {
	if !r.sums() {
		return 0
	}
	return 4 * int64(rows*r.owner.Config().TopK)
}

// homes returns ranges of ranks whose tokens are in a group of this rank.
func (p *pass) homes(group int) (list [][2]int) {
	ranks, after := p.transport.Ranks(), p.transport.Rank()+1
	first, end := after+exchange.First(ranks-1, p.groups, group), after+exchange.First(ranks-1, p.groups, group+1)
	if first < ranks {
		list = append(list, [2]int{first, min(end, ranks)})
	}
	if end > ranks {
		list = append(list, [2]int{max(first, ranks) - ranks, end - ranks})
	}
	return list
}

// serves reports whether a group of one rank (parameter from) has the tokens of another.
func (p *pass) serves(group, from, to int) bool {
	ranks := p.transport.Ranks()
	after := (to-from+ranks)%ranks - 1 // -1 for the rank itself
	return exchange.First(ranks-1, p.groups, group) <= after && after < exchange.First(ranks-1, p.groups, group+1)
}

// sumsBack returns the exchange that sends the partial sums of a chunk home. The sums at the address
// `from` are in the order of the window. The home stores them in the order of the tokens that it sent.
func (p *pass) sumsBack(c int, from, to driver.DevicePtr) Exchange {
	own, each := p.transport.Rank(), p.rowBytes(1)
	e := Exchange{Send: from, Receive: to, SendAt: []int64{}, ReceiveAt: []int64{}}
	sent, received := int64(0), int64(0)
	for rank := range p.transport.Ranks() {
		out, in := each*p.rows[rank][own], each*p.rows[own][rank]
		e.SendAt, e.ReceiveAt = append(e.SendAt, sent), append(e.ReceiveAt, received)
		sent, received = sent+out, received+in
		if !p.serves(c, own, rank) {
			out = 0
		}
		if !p.serves(c, rank, own) {
			in = 0
		}
		e.SendBytes, e.ReceiveBytes = append(e.SendBytes, out), append(e.ReceiveBytes, in)
	}
	return e
}

// findSums queues the kernels that come before the exchange of tokens. They find the rows that the rank
// adds up for its own tokens, and clear the slots of received tokens.
func (p *pass) findSums() error {
	rows := int(sum(column(p.rows, p.transport.Rank())))
	if err := p.s.Fill32(p.received.slots, routed.NoRow, p.slotBytes(rows)/4); err != nil {
		return err
	}
	return p.findRows(p.uploaded(p.plan.shifts))
}

// sumPlaces queues the kernel of this name.
func (p *pass) sumPlaces(shifts driver.DevicePtr) error {
	of := &p.split
	return steps.SumPlaces(p.call, p.s, exchange.SumPlacesArgs{
		ExpertIDs: of.ExpertIDs, Scores: of.Scores, Places: of.Places, RowPlaces: of.RowPlaces, Shifts: shifts,
		Rows: p.found, Weights: p.weights, Slots: p.slots, Rank: p.transport.Rank(), Ranks: of.Ranks, Pairs: p.mine * p.Config.TopK,
	})
}

// arrangeSlots queues the kernels that sort the rows of other ranks' tokens by token and slot.
func (p *pass) arrangeSlots() error {
	if !p.sums() {
		return nil
	}
	entry := 0
	for rank := range p.transport.Ranks() {
		n := int(p.pairsTo(&p.counts, rank, p.transport.Rank()))
		if rank != p.transport.Rank() && n > 0 {
			err := steps.Slots(p.experts, p.s, exchange.SlotsArgs{
				Tokens: p.received.tokens, Scores: p.received.scores, Slots: p.at(p.w.gotSlots), Inverse: p.at(p.w.inverse),
				First: entry, Count: n, Rows: p.received.slots, Weights: p.at(p.w.slotScores),
			})
			if err != nil {
				return err
			}
		}
		entry += n
	}
	return nil
}

// sumOthers queues the sums of a chunk with the function add. The rows are at the address `from`.
func (p *pass) sumOthers(c int, add func(*moe.Call, driver.Stream, kernel.AggregateArgs) error, from, to driver.DevicePtr) error {
	rows := column(p.rows, p.transport.Rank())
	return p.span(Span{Name: "partial sums", Chunk: c}, p.s, func() error {
		for _, of := range p.homes(c) {
			before, n := sum(rows[:of[0]]), sum(rows[of[0]:of[1]])
			if n == 0 {
				continue
			}
			at := driver.DevicePtr(p.slotBytes(int(before)))
			err := add(p.experts, p.s, kernel.AggregateArgs{
				Y: from, O: to + driver.DevicePtr(p.rowBytes(int(before))), Inverse: p.received.slots + at, Scores: p.at(p.w.slotScores) + at, Tokens: int(n),
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
}
