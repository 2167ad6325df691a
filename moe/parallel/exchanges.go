package parallel

import (
	"slices"

	"sonicmoe/driver"
	"sonicmoe/moe"
	"sonicmoe/moe/internal/exchange"
)

// rowsOut returns the exchange that sends token rows to the owners of their experts. from and to
// are the addresses of the rows to send and of the window. The function pack writes the rank's own rows.
func (p *pass) rowsOut(from, to driver.DevicePtr) Exchange {
	own, each := p.transport.Rank(), p.rowBytes(1)
	return Exchange{Send: from, Receive: to, SendBytes: times(p.rows[own], each), ReceiveBytes: times(column(p.rows, own), each), InPlace: true}
}

// groupOut returns the part of the exchange rowsOut that brings the tokens of a group.
func (p *pass) groupOut(rows Exchange, group int) Exchange {
	own, e := p.transport.Rank(), rows
	e.SendAt, e.ReceiveAt, e.SendBytes, e.ReceiveBytes = nil, nil, slices.Clone(rows.SendBytes), slices.Clone(rows.ReceiveBytes)
	for rank := range p.transport.Ranks() {
		e.SendAt, e.ReceiveAt = append(e.SendAt, int64(rows.From(rank)-rows.Send)), append(e.ReceiveAt, int64(rows.To(rank)-rows.Receive))
		if !p.serves(group, rank, own) {
			e.SendBytes[rank] = 0
		}
		if !p.serves(group, own, rank) {
			e.ReceiveBytes[rank] = 0
		}
	}
	return e
}

// pairsOut returns the exchange that sends some bytes of every pair to the owner of the pair's
// expert. The parameter each is the number of bytes of a pair. The sender stores pairs by expert,
// and so by rank. The receiver stores pairs by sending rank and expert.
func (p *pass) pairsOut(each int64, from, to driver.DevicePtr) Exchange {
	own := p.transport.Rank()
	e := Exchange{Send: from, Receive: to}
	for rank := range p.transport.Ranks() {
		e.SendBytes = append(e.SendBytes, each*p.pairsTo(&p.counts, own, rank))
		e.ReceiveBytes = append(e.ReceiveBytes, each*p.pairsTo(&p.counts, rank, own))
	}
	return e
}

// pairsBack returns the exchange that sends some bytes of every pair from the owner of its expert to
// the token's home. The parameter each is the number of bytes of a pair.
func (p *pass) pairsBack(each int64, from, to driver.DevicePtr) Exchange {
	e := p.pairsOut(each, to, from)
	e.Send, e.Receive, e.SendBytes, e.ReceiveBytes = e.Receive, e.Send, e.ReceiveBytes, e.SendBytes
	return e
}

// rowsBack returns the exchanges that send the rows of a chunk's experts home. Each exchange has one
// expert of every rank. from is the address of the rows of all experts of this rank, which are
// sorted by expert, home and token. The home stores rows by expert, too. It does not get the rows of
// its own experts, but reads these rows where the experts wrote them.
func (p *pass) rowsBack(c int, from, to driver.DevicePtr) (list []Exchange) {
	own, each, most := p.transport.Rank(), p.rowBytes(1), 0
	for rank := range p.transport.Ranks() {
		first, end := p.chunkOf(rank, c)
		most = max(most, end-first)
	}
	for i := range most {
		e := Exchange{Receive: to, InPlace: true}
		expert, end := p.chunkOf(own, c)
		expert = min(expert+i, end)
		e.Send = from + driver.DevicePtr(each*p.rowsBefore(expert))
		for rank, pairs := range p.pairs {
			there, last := p.chunkOf(rank, c)
			there = min(there+i, last)
			e.ReceiveAt = append(e.ReceiveAt, each*p.sentBefore[there])
			e.SendBytes = append(e.SendBytes, each*sum(pairs[expert:min(expert+1, end)]))
			e.ReceiveBytes = append(e.ReceiveBytes, each*sum(p.pairs[own][there:min(there+1, last)]))
		}
		list = append(list, e)
	}
	return list
}

// packedBack returns the exchange that sends the packed rows of a chunk's experts home. from is the
// address of the packed rows of all chunks, which are sorted by home, expert and token. The home gets no
// rows of its own experts, but reads these rows where the experts wrote them.
func (p *pass) packedBack(c int, from, to driver.DevicePtr) Exchange {
	own, each, before := p.transport.Rank(), p.rowBytes(1), int64(0)
	e := Exchange{Send: from, Receive: to, InPlace: true}
	first, end := p.chunkOf(own, c)
	for rank, pairs := range p.pairs {
		there, last := p.chunkOf(rank, c)
		e.SendAt = append(e.SendAt, each*(before+sum(pairs[p.firstOf(own):first])))
		e.SendBytes = append(e.SendBytes, each*sum(pairs[first:end]))
		e.ReceiveAt = append(e.ReceiveAt, each*p.sentBefore[there])
		e.ReceiveBytes = append(e.ReceiveBytes, each*(p.sentBefore[last]-p.sentBefore[there]))
		if !p.serves(c/p.parts, own, rank) {
			e.SendBytes[rank] = 0
		}
		if !p.serves(c/p.parts, rank, own) {
			e.ReceiveBytes[rank] = 0
		}
		if rank != own {
			before += p.pairsTo(&p.counts, rank, own)
		}
	}
	return e
}

// packChunk packs the rows that an exchange of packedBack sends. index is the address of the row of each
// received pair.
func (p *pass) packChunk(c int, call *moe.Call, from, index driver.DevicePtr, e *Exchange) error {
	own, before := p.transport.Rank(), int64(0)
	first, _ := p.chunkOf(own, c)
	for rank, pairs := range p.pairs {
		n := e.SendBytes[rank] / p.rowBytes(1)
		at := before + sum(pairs[p.firstOf(own):first])
		if rank != own && n > 0 {
			err := steps.Rows(call, p.s, exchange.RowsArgs{From: from, Index: index + driver.DevicePtr(4*at), To: e.From(rank), Count: int(n)})
			if err != nil {
				return err
			}
		}
		before += p.pairsTo(&p.counts, rank, own)
	}
	return nil
}

// aligned returns the first address at or after p, aligned to 256 bytes, that lies a whole number of
// rows after another address.
func (r *Rank) aligned(p, other driver.DevicePtr) driver.DevicePtr {
	for (p-other)%driver.DevicePtr(r.rowBytes(1)) != 0 {
		p += alignment
	}
	return p
}

// alignedBytes returns the room for rows at an address that aligned returns.
func (r *Rank) alignedBytes(rows int) int64 { return r.rowBytes(rows) + r.rowBytes(alignment) }

// pack packs the rows of a tensor of this rank's tokens that the exchange rowsOut sends. It writes the rows that stay
// on this rank to the window.
func (p *pass) pack(from driver.DevicePtr, e *Exchange) error {
	own, each := p.transport.Rank(), p.rowBytes(1)
	for _, of := range []struct {
		first, end int // ranks
		to         driver.DevicePtr
	}{{0, own, e.Send}, {own + 1, p.transport.Ranks(), e.From(own + 1)}, {own, own + 1, e.To(own)}} {
		n := sum(e.SendBytes[of.first:of.end]) / each
		if n == 0 {
			continue
		}
		at := p.split.RowTokens + driver.DevicePtr(4*sum(e.SendBytes[:of.first])/each)
		if err := steps.Rows(p.call, p.s, exchange.RowsArgs{From: from, Index: at, To: of.to, Count: int(n)}); err != nil {
			return err
		}
	}
	return nil
}

// send sends packed rows, one group of other ranks after the other, and lists with the first group. The function own
// queues what the rank can do for its own tokens. If overlaps is true, the exchanges are on the side stream, and run
// next to this work. The stream of the pass waits for the first group. For a later group it must wait for p.arrived.
func (p *pass) send(at Step, overlaps bool, rows Exchange, own func() error, lists ...Exchange) error {
	stream := p.s
	if overlaps {
		stream = p.side
	}
	if err := p.order(p.made, p.s, stream); err != nil {
		return err
	}
	// The host queues own work before the exchange, because it may wait for other ranks in Move.
	if err := own(); err != nil {
		return err
	}
	if err := p.move(at, stream, append([]Exchange{p.groupOut(rows, 0)}, lists...)...); err != nil {
		return err
	}
	if err := p.order(p.moved, stream, p.s); err != nil {
		return err
	}
	for at.Chunk = 1; at.Chunk < p.groups; at.Chunk++ {
		if len(p.arrived) < at.Chunk {
			e, err := p.dev.NewEvent()
			if err != nil {
				return err
			}
			p.arrived = append(p.arrived, e)
		}
		if err := p.move(at, stream, p.groupOut(rows, at.Chunk)); err != nil {
			return err
		}
		if err := p.arrived[at.Chunk-1].Record(stream); err != nil {
			return err
		}
	}
	return nil
}

// column returns what each rank sends to one receiver: element i is of[i][to].
func column(of [][]int64, to int) []int64 {
	list := make([]int64, len(of))
	for i, row := range of {
		list[i] = row[to]
	}
	return list
}

func sum(list []int64) (n int64) {
	for _, v := range list {
		n += v
	}
	return n
}

// times returns the numbers of a list times n.
func times(list []int64, n int64) []int64 {
	product := make([]int64, len(list))
	for i, v := range list {
		product[i] = v * n
	}
	return product
}
