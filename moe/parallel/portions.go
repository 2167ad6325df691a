package parallel

import (
	"encoding/binary"

	"sonicmoe/driver"
	"sonicmoe/jit/schedule"
	"sonicmoe/moe/internal/exchange"
)

// This file divides the products of a pass into portions. The host knows the counts of all
// ranks. So it chooses the rows of each portion, and writes the tables of row pairs. The rows of an
// expert are sorted by home, then by token. First come the products of some of this rank's own
// tokens, while tokens of other ranks arrive. Then come the tokens of other ranks, chunk by chunk.
// The other own tokens come last, while the last rows go home.

// portion is a part of the rows of this rank's experts. counters and table are offsets in the
// pass's uploads: the portion's counters, and its table with this number of entries. The counters
// are the number of entries, two tickets, and an unused word.
type portion struct{ counters, table, entries int }

// uploads are the numbers that a pass copies to the device after it knows the counts.
type uploads struct{ bytes []byte }

// counterBytes is the size of a portion's counters. An upload is aligned to this number of bytes.
const counterBytes = 16

// add adds words, and returns their offset.
func (u *uploads) add(words ...uint32) int {
	at := len(u.bytes)
	for _, w := range words {
		u.bytes = binary.LittleEndian.AppendUint32(u.bytes, w)
	}
	for len(u.bytes)%counterBytes != 0 {
		u.bytes = append(u.bytes, 0)
	}
	return at
}

// plan has the uploads of a pass. bases, shifts and offsets are offsets of words, see bases, shifts
// and exchange.Work. arrange has the offset of the shifts of each rank's entries, see arrangeShifts.
type plan struct {
	uploads
	bases, shifts, offsets int
	arrange                []int
	// own has two portions of this rank's own tokens. others has a portion of the other ranks'
	// tokens for each chunk. If the pass is small, there is one portion of all tokens in others.
	own    [2]portion
	others []portion
	// later reports whether the products of a portion have been queued.
	later bool
}

// planBytes returns the largest size of the uploads.
func (r *Rank) planBytes() int64 {
	ranks, words := r.transport.Ranks(), int64(0)
	words += int64(ranks + r.Config.NumExperts + r.count + 1 + ranks*r.count)
	portions := max(r.Chunks, mostChunks) + len(plan{}.own)
	// Each expert is in several segments, each of which may have one entry that is not full. The own tokens
	// have one segment. Each group of other ranks has one, and one group has two.
	segments := ranks + 1
	entries := int64(r.windowPairs()/schedule.PairRows + segments*r.count)
	return 4*words + int64(counterBytes)*int64(3+ranks+2*portions) + schedule.PairBytes*entries
}

// newPlan makes the uploads of a pass. y is the address for the rows of this rank's experts, and
// arrive the address where the rows of other ranks arrive.
func (p *pass) newPlan(arrive, y driver.DevicePtr) (u plan) {
	own, ranks := p.transport.Rank(), p.transport.Ranks()
	first, count := p.Experts()
	u.bases = u.add(p.bases()...)
	u.shifts = u.add(p.shifts(arrive, y)...)
	var offsets []uint32
	for _, rows := range p.madeBefore {
		offsets = append(offsets, uint32(rows))
	}
	u.offsets = u.add(offsets...)
	for _, shifts := range p.arrangeShifts() {
		u.arrange = append(u.arrange, u.add(shifts...))
	}
	if p.small {
		u.others = []portion{u.portion(p, first, first+count, [2]int{0, ranks})}
		return u
	}
	for i := range u.own {
		from, end := first+exchange.First(count, len(u.own), i), first+exchange.First(count, len(u.own), i+1)
		u.own[i] = u.portion(p, from, end, [2]int{own, own + 1})
	}
	for c := range p.chunks {
		from, end := p.chunkOf(own, c)
		u.others = append(u.others, u.portion(p, from, end, p.homes(c/p.parts)...))
	}
	return u
}

// portion adds a portion: the rows of the experts first to end-1 for tokens of some ranks.
func (u *plan) portion(p *pass, first, end int, ranks ...[2]int) portion {
	var table []uint32
	for expert := first; expert < end; expert++ {
		of := column(p.pairs, expert)
		for _, r := range ranks {
			row, rows := p.rowsBefore(expert)+sum(of[:r[0]]), sum(of[r[0]:r[1]])
			for done := int64(0); done < rows; done += schedule.PairRows {
				table = append(table, uint32(expert-p.firstOf(p.transport.Rank())), uint32(row+done), uint32(min(rows-done, schedule.PairRows)), 0)
			}
		}
	}
	return u.upload(table)
}

// upload adds the portion with a table.
func (u *plan) upload(table []uint32) portion {
	entries := len(table) / (schedule.PairBytes / 4)
	return portion{counters: u.add(uint32(entries), 0, 0, 0), table: u.add(table...), entries: entries}
}

// bases returns the numbers [W] of exchange.EntriesArgs.Bases.
func (p *pass) bases() (list []uint32) {
	own, first := p.transport.Rank(), int64(0)
	for to, n := range p.rows[own] {
		// In a rank's window, the rows from lower ranks come first.
		list = append(list, uint32(sum(column(p.rows, to)[:own])-first))
		first += n
	}
	return list
}

// shifts returns, for each expert, what to add to the place of a pair to get the index of its row,
// counted from the address where the rows of other ranks arrive. y is the address of the rows of
// this rank's experts.
func (p *pass) shifts(arrive, y driver.DevicePtr) []uint32 {
	own := p.transport.Rank()
	first, count := p.Experts()
	list := make([]uint32, p.Config.NumExperts)
	for expert := first; expert < first+count; expert++ {
		row := int64(y-arrive)/p.rowBytes(1) + p.rowsBefore(expert) + sum(column(p.pairs, expert)[:own])
		list[expert] = uint32(row - p.sentBefore[expert])
	}
	return list
}

// arrangeShifts returns, for each rank and each of this rank's experts, what to add to the index of
// a received entry to get its row.
func (p *pass) arrangeShifts() (list [][]uint32) {
	first, count := p.Experts()
	before := make([]int64, count) // rows of the expert from lower ranks
	entry := int64(0)
	for _, pairs := range p.pairs {
		var shifts []uint32
		for i, n := range pairs[first : first+count] {
			shifts = append(shifts, uint32(p.madeBefore[i]+before[i]-entry))
			before[i] += n
			entry += n
		}
		list = append(list, shifts)
	}
	return list
}

// arrange queues the kernels that find the rows of the entries of the ranks first to end-1, which
// have arrived.
func (p *pass) arrange(first, end int) error {
	entry := 0
	for rank := range end {
		n := int(p.pairsTo(&p.counts, rank, p.transport.Rank()))
		if rank >= first && n > 0 {
			at := driver.DevicePtr(4 * entry)
			err := steps.Arrange(p.experts, p.s, exchange.ArrangeArgs{
				Tokens: p.received.tokens + at, Experts: p.received.experts + at, First: entry, Count: n, Shifts: p.uploaded(p.plan.arrange[rank]),
				Gather: p.at(p.w.gather), Pairs: p.at(p.w.pairsOf), Inverse: p.at(p.w.inverse),
			})
			if err != nil {
				return err
			}
		}
		entry += n
	}
	return nil
}

// multiply queues the products of a portion on a stream.
func (p *pass) multiply(of Span, s driver.Stream, part portion) error {
	if part.entries == 0 {
		return nil
	}
	work := p.work(part)
	work.Y, work.Gather, work.Pairs, work.Offsets = p.y(), p.at(p.w.gather), p.at(p.w.pairsOf), p.uploaded(p.plan.offsets)
	return p.span(of, s, func() error { return steps.Experts(p.experts, s, p.expertArgs(p.ownerWorkspace()), work) })
}

// work returns the table of a portion, whose products are queued next.
func (p *pass) work(part portion) exchange.Work {
	later := p.plan.later
	p.plan.later = true
	return exchange.Work{Table: p.uploaded(part.table), RowPairs: p.uploaded(part.counters), Tickets: p.uploaded(part.counters + 4), Later: later}
}

// productsOf returns the stream of the products of a chunk. The portions take turns on two streams. A
// portion then starts on multiprocessors that the portion before it no longer needs. If a
// kernel sums or packs the rows of a chunk, the portions are on one stream, so that this kernel does not wait
// for multiprocessors.
func (p *pass) productsOf(c int) driver.Stream {
	if c%2 == 1 && c < p.chunks && !p.sums() && !p.packs {
		return p.other()
	}
	return p.s
}

// multiplyChunk queues the products of a chunk, and after the last chunk those of the second portion
// of this rank's own tokens.
func (p *pass) multiplyChunk(c int) error {
	switch {
	case c < p.chunks:
		if group := c / p.parts; group > 0 && c%p.parts == 0 {
			if err := p.productsOf(c).Wait(p.arrived[group-1]); err != nil {
				return err
			}
		}
		return p.multiply(Span{Name: "experts", Chunk: c}, p.productsOf(c), p.plan.others[c])
	case !p.small:
		return p.multiply(Span{Name: "own experts", Chunk: 1}, p.s, p.plan.own[1])
	}
	return nil
}

// uploaded returns the address of an upload.
func (p *pass) uploaded(at int) driver.DevicePtr { return p.at(p.w.uploads + int64(at)) }
