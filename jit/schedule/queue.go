package schedule

import (
	"sonicmoe/jit/pipeline"
	"sonicmoe/ptx"
)

// Item is a piece of work that a queue passes on through shared memory.
type Item[T any] interface {
	// Words returns the item as 4 or 8 words. FromWords is its inverse.
	Words() []ptx.U32
	FromWords(words []ptx.U32) T
	// IsEnd returns a predicate that is true for the item after the last one.
	IsEnd() ptx.Pred
}

// Queue passes items to the roles of a persistent CTA. One thread publishes them in a small ring,
// and every role reads the same sequence. In a cluster of two CTAs, one thread publishes an item
// for each CTA.
type Queue[T Item[T]] struct {
	k     *ptx.Kernel
	bytes int // size of an item
	ctas  int // number of CTAs in a cluster
	ring  *pipeline.Ring
	// outbox is shared memory of the publishing CTA of a cluster. The publisher writes the other
	// CTA's items there before it copies them to the other CTA.
	outbox ptx.Shared
}

// QueueDepth is the number of items by which the publisher may be ahead of the slowest reader.
const QueueDepth = 4

// NewQueue returns a queue of items of 4 or 8 words, for clusters of ctas CTAs (1 or 2). readers is
// the number of arrivals in each CTA that release an item: one for each reading warp, or 1 if only
// a single thread reads.
func NewQueue[T Item[T]](k *ptx.Kernel, cta *pipeline.CTA, words, readers, ctas int) *Queue[T] {
	q := &Queue[T]{k: k, bytes: 4 * words, ctas: ctas}
	if q.clustered() {
		q.outbox = cta.Shared("queue.outbox", QueueDepth*q.bytes, 16)
		readers *= 2
	}
	q.ring = cta.Ring("queue", QueueDepth, q.bytes, 1, readers)
	return q
}

func (q *Queue[T]) clustered() bool { return q.ctas == 2 }

// Reader is the position of a role in the queue.
type Reader[T Item[T]] struct {
	q      *Queue[T]
	at     *pipeline.Cursor
	leader ptx.Pred
}

// Reader returns a reader at the first item. leader is true in one lane of each reading warp; this
// lane releases an item after the warp has read it. If only one thread reads, leader is [ptx.True].
func (q *Queue[T]) Reader(leader ptx.Pred) *Reader[T] {
	return &Reader[T]{q: q, at: q.ring.Consumer(), leader: leader}
}

// Next waits for the next item and returns it.
func (r *Reader[T]) Next() T {
	k := r.q.k
	s := r.at.Wait()
	var words []ptx.U32
	for at := 0; at < r.q.bytes; at += 16 {
		words = append(words, ptx.LdSharedVec[ptx.U32](s.Data.At(at), 4)...)
	}
	if r.leader != ptx.True() { // the leader must not release the item before all lanes have read it
		k.BarWarpSync(ptx.Uint(ptx.FullMask))
	}
	k.Guarded(r.leader, func() {
		if r.q.clustered() {
			s.ReleaseTo(k, ptx.Uint(0))
		} else {
			s.Release(k)
		}
	})
	r.at.Advance()
	var t T
	return t.FromWords(words)
}

// Count returns the number of items read, modulo [QueueDepth]. It is the same in all
// roles.
func (r *Reader[T]) Count() ptx.U32 { return r.at.Index() }

// Each runs body on the GPU for each item of this CTA.
func (r *Reader[T]) Each(body func(t T)) {
	k := r.q.k
	k.Loop(func() {
		t := r.Next()
		k.BreakIf(t.IsEnd())
		body(t)
	})
}

// Publishes reports whether this CTA publishes: in a cluster, the first CTA
// publishes for both.
func (q *Queue[T]) Publishes() ptx.Pred {
	if q.clustered() {
		return q.k.ClusterCtarank().EqI(0)
	}
	return ptx.True()
}

// Publisher passes items to the readers. Only one thread of the CTA or cluster may use it.
type Publisher[T Item[T]] struct {
	q  *Queue[T]
	at *pipeline.Cursor
}

// Publisher returns a publisher at the first item.
func (q *Queue[T]) Publisher() *Publisher[T] { return &Publisher[T]{q, q.ring.Producer()} }

// Publish passes the next item to the readers. It is for a kernel without clusters.
func (p *Publisher[T]) Publish(t T) {
	s := p.at.Acquire()
	p.q.store(t, s.Data)
	p.q.k.MbarrierArrive(s.Full)
	p.at.Advance()
}

// PublishPair passes the next pair of items to the readers of a cluster: pair[i] to CTA i. It
// writes the first item to its own shared memory, and copies only the second one to the other CTA.
// Copying both in the same way would be simpler, but compute-sanitizer's memcheck stops a kernel
// that copies from a CTA to itself.
func (p *Publisher[T]) PublishPair(pair [2]T) {
	k, s, bytes := p.q.k, p.at.Acquire(), p.q.bytes
	out := p.q.outbox.Plus(p.at.Index().MulI(bytes))
	p.q.store(pair[1], out)
	k.FenceProxyAsync(".shared::cta")
	there := func(s ptx.Shared) ptx.Shared { return ptx.SharedAt(s.Addr().MapaI(1)) }
	full := there(s.Full)
	k.MbarrierArriveExpectTxCluster(full, ptx.Uint(bytes))
	k.BulkCopyCluster(there(s.Data), out, ptx.Uint(bytes), full)
	p.q.store(pair[0], s.Data)
	k.MbarrierArrive(s.Full)
	p.at.Advance()
}

// store writes an item to the CTA's shared memory.
func (q *Queue[T]) store(t T, to ptx.Shared) {
	words := t.Words()
	for i := 0; i < len(words); i += 4 {
		ptx.StShared(to.At(4*i), words[i:i+4]...)
	}
}
