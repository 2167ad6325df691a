package parallel

import "sonicmoe/moe/internal/exchange"

// This file divides the experts among ranks, and the experts of a rank into chunks.

// firstOf returns the number of a rank's first expert, or E for the number of ranks.
func (r *Rank) firstOf(rank int) int {
	return exchange.First(r.Config.NumExperts, r.transport.Ranks(), rank)
}

// A pass whose experts get smallBytes of rows or more on average has several chunks, whose rows go home
// while products run. With smaller experts the products would be too short to hide an exchange: the
// pass then has one chunk.
//
// The rows of one expert for one home are next to each other, so they can be sent from where the expert
// wrote them. But short copies are slow. If the rows of an expert for a home have fewer bytes than
// longPiece returns, on average, the pass therefore packs the rows of a chunk by home, and a copy sends all
// rows of a chunk for one home.
const (
	smallBytes = 1 << 20
	mostChunks = 8
)

// longPiece returns the number of bytes from which a piece is sent without packing. With more than two ranks
// the exchanges take longer than the products, and every pass packs its rows.
func longPiece(ranks int) int64 {
	if ranks > 2 {
		return 1 << 40
	}
	return 2 << 20
}

// Chunks returns the number of chunks of a large pass if Options.Chunks is 0. With more chunks the
// first rows go home earlier, but each chunk costs some time at its end. Two ranks have longer products of
// their own tokens to hide the last rows, so fewer chunks are faster.
func Chunks(experts, ranks int) int {
	switch ranks {
	case 1:
		return 1
	case 2:
		return min(mostChunks/2, experts/ranks)
	}
	return min(mostChunks, experts/ranks)
}

// divide chooses the number of chunks of a pass by its counts, and whether it packs rows. All ranks
// choose the same, because all have the same counts. It also adds up counts.
func (p *pass) divide() {
	all, experts, ranks := int64(0), int64(p.Config.NumExperts), p.transport.Ranks()
	for _, pairs := range p.pairs {
		all += p.rowBytes(int(sum(pairs)))
	}
	p.chunks, p.small = p.Chunks, false
	if p.chunks == 0 {
		p.chunks = Chunks(int(experts), ranks)
		if ranks == 1 || all < smallBytes*experts {
			p.chunks, p.small = 1, true
		}
	}
	p.packs = p.small || !p.sums() && all < p.longPiece*experts*int64(ranks) && p.hasRoom()
	p.groups, p.parts = 1, p.chunks
	if p.sums() || p.packs {
		p.groups, p.parts = Groups(p.chunks, ranks, p.sums())
	}
	p.chunks = p.groups * p.parts
	p.sentBefore, p.madeBefore = []int64{0}, []int64{0}
	for i, n := range p.pairs[p.transport.Rank()] {
		p.sentBefore = append(p.sentBefore, p.sentBefore[i]+n)
	}
	first, count := p.Experts()
	for i := range count {
		p.madeBefore = append(p.madeBefore, p.madeBefore[i]+sum(column(p.pairs, first+i)))
	}
}

// Groups divides a number of chunks: a chunk has the tokens of one group of other ranks, and a part of the
// experts. The tokens of a group arrive while the products of the groups before run. With partial sums each
// chunk has all experts.
func Groups(chunks, ranks int, sums bool) (groups, parts int) {
	groups = max(1, min(chunks, ranks-1))
	if sums {
		return groups, 1
	}
	return groups, chunks / groups
}

// hasRoom reports whether every rank has room to pack its rows for other ranks.
func (p *pass) hasRoom() bool {
	for rank := range p.pairs {
		if p.receives(&p.counts, rank)-p.pairsTo(&p.counts, rank, rank) > int64(p.largePacked()) {
			return false
		}
	}
	return true
}

// rowsBefore returns the number of rows of this rank's experts below an expert.
func (p *pass) rowsBefore(expert int) int64 {
	first, _ := p.Experts()
	return p.madeBefore[expert-first]
}

// largePacked returns the largest number of rows that a pass packs to send them home if it is not small.
// With four ranks this is a third more than a rank sends on average.
func (r *Rank) largePacked() int { return r.MaxTokens * r.Config.TopK }

// packedRows returns the largest number of rows that any pass packs to send them home.
func (r *Rank) packedRows() int {
	if r.transport.Ranks() == 1 {
		return 0
	}
	small := int(smallBytes * int64(r.Config.NumExperts) / r.rowBytes(1))
	return min(r.windowPairs(), max(small, r.largePacked()))
}

// backRows returns the largest number of rows that a pass writes to the buffer back.
func (r *Rank) backRows() int {
	if r.sums() {
		return r.windowRows()
	}
	return r.packedRows()
}

// chunkOf returns the numbers of a rank's experts in chunk c: first to end-1.
func (p *pass) chunkOf(rank, c int) (first, end int) {
	from := p.firstOf(rank)
	count := p.firstOf(rank+1) - from
	part := c % p.parts
	return from + exchange.First(count, p.parts, part), from + exchange.First(count, p.parts, part+1)
}

// pairsTo returns the number of pairs that one rank (parameter from) sends to another.
func (r *Rank) pairsTo(c *counts, from, to int) int64 {
	return sum(c.pairs[from][r.firstOf(to):r.firstOf(to+1)])
}

// receives returns the number of pairs that a rank receives.
func (r *Rank) receives(c *counts, rank int) (n int64) {
	for from := range c.pairs {
		n += r.pairsTo(c, from, rank)
	}
	return n
}
