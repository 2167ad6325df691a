package parallel

import "sonicmoe/moe/internal/exchange"

// This file divides the experts among ranks, and the experts of a rank into chunks.

// firstOf returns the number of a rank's first expert, or E for the number of ranks.
func (r *Rank) firstOf(rank int) int {
	return exchange.First(r.Config.NumExperts, r.transport.Ranks(), rank)
}

// A pass whose experts get packedBytes of rows or more on average has several chunks, and sends each
// expert's rows from where the expert wrote them. With smaller experts the many exchanges would take
// longer than packing the rows, and the products would be too short to hide an exchange: the pass
// then has one chunk, and packs its rows.
const (
	packedBytes = 1 << 20
	mostChunks  = 4
)

// Chunks returns the number of chunks of a large pass if Options.Chunks is 0. With more chunks the
// first rows go home earlier, but each chunk costs some time at its end.
func Chunks(experts, ranks int) int {
	if ranks == 1 {
		return 1
	}
	return min(mostChunks, experts/ranks)
}

// divide chooses the number of chunks of a pass by its counts, and whether it packs rows. All ranks
// choose the same, because all have the same counts. It also adds up counts.
func (p *pass) divide() {
	all, experts, ranks := int64(0), p.Config.NumExperts, p.transport.Ranks()
	for _, pairs := range p.pairs {
		all += sum(pairs)
	}
	p.chunks, p.packs = p.Chunks, false
	if p.chunks == 0 {
		p.chunks = Chunks(experts, ranks)
		if ranks == 1 || p.rowBytes(int(all)) < packedBytes*int64(experts) {
			p.chunks, p.packs = 1, true
		}
	}
	if p.sums() {
		p.chunks = min(p.chunks, ranks-1)
	}
	p.sentBefore, p.madeBefore = []int64{0}, []int64{0}
	for i, n := range p.pairs[p.transport.Rank()] {
		p.sentBefore = append(p.sentBefore, p.sentBefore[i]+n)
	}
	first, count := p.Experts()
	for i := range count {
		p.madeBefore = append(p.madeBefore, p.madeBefore[i]+sum(column(p.pairs, first+i)))
	}
}

// rowsBefore returns the number of rows of this rank's experts below an expert.
func (p *pass) rowsBefore(expert int) int64 {
	first, _ := p.Experts()
	return p.madeBefore[expert-first]
}

// packedRows returns the largest number of rows that a pass packs to send them home.
func (r *Rank) packedRows() int {
	if r.Chunks > 0 || r.transport.Ranks() == 1 {
		return 0
	}
	return int(min(int64(r.windowPairs()), packedBytes*int64(r.Config.NumExperts)/r.rowBytes(1)))
}

// backRows returns the largest number of rows that a pass writes to the buffer back.
func (r *Rank) backRows() int {
	if r.sums() {
		return r.windowRows()
	}
	return r.packedRows()
}

// chunkOf returns the numbers of the experts in chunk c of a rank: first to end-1.
func (p *pass) chunkOf(rank, c int) (first, end int) {
	from := p.firstOf(rank)
	count := p.firstOf(rank+1) - from
	return from + exchange.First(count, p.chunks, c), from + exchange.First(count, p.chunks, c+1)
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
