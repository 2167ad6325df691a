package pipeline

import "sonicmoe/ptx"

// CTA allocates what the threads of a CTA share: dynamic shared memory, front to
// back, mbarriers within it, and named barriers. Each allocation has a name, which
// appears in the kernel's text and in reports.
type CTA struct {
	k    *ptx.Kernel
	base ptx.Shared
	used int // bytes
	// named is the number of the next named barrier. Barrier 0 is BarSync of the whole
	// CTA.
	named     int
	mbarriers []mbarrier
}

// mbarrier is an mbarrier that Ready initialises.
type mbarrier struct {
	at       ptx.Shared
	arrivals int
}

// NewCTA starts at the front of k's dynamic shared memory, which is aligned to
// 1024 bytes.
func NewCTA(k *ptx.Kernel) *CTA { return &CTA{k: k, base: k.SharedBase(), named: 1} }

// Shared reserves bytes, aligned (a power of two up to 1024).
func (c *CTA) Shared(name string, bytes, align int) ptx.Shared {
	return c.pieces(name, 1, bytes, align)
}

// pieces reserves count adjacent pieces of the given size.
func (c *CTA) pieces(name string, count, bytes, align int) ptx.Shared {
	c.used = (c.used + align - 1) / align * align
	at := c.base.At(c.used)
	if bytes > 0 {
		c.k.AddName(ptx.Name{Kind: ptx.SharedRegion, At: c.used, Count: count, Bytes: bytes, Text: name})
	}
	c.used += count * bytes
	return at
}

// mbarrierBytes is the size of an mbarrier.
const mbarrierBytes = 8

// Mbarriers reserves n mbarriers, 8 bytes apart. Each phase completes after the
// given number of arrivals.
func (c *CTA) Mbarriers(name string, n, arrivals int) ptx.Shared {
	at := c.pieces(name, n, mbarrierBytes, mbarrierBytes)
	for i := range n {
		c.mbarriers = append(c.mbarriers, mbarrier{at.At(mbarrierBytes * i), arrivals})
	}
	return at
}

// Ready initialises the mbarriers in one thread and makes them visible to all
// threads. Every thread of the CTA must call it before it uses an mbarrier.
func (c *CTA) Ready(tid ptx.U32) {
	c.k.If(tid.EqI(0), func() {
		for _, b := range c.mbarriers {
			c.k.MbarrierInit(b.at, ptx.Uint(b.arrivals))
		}
		c.k.FenceMbarrierInit()
	})
	c.k.BarSync(ptx.Uint(0))
}

// mostNamed is the number of named barriers of a CTA, 0 included.
const mostNamed = 16

// NamedBarriers reserves n named barriers, each for the given number of threads.
func (c *CTA) NamedBarriers(name string, n, threads int) NamedBarriers {
	b := NamedBarriers{k: c.k, first: c.named, threads: threads}
	if c.named += n; c.named > mostNamed {
		c.k.Errorf("named barriers %s: a CTA has %d, the kernel needs %d", name, mostNamed, c.named)
	} else {
		c.k.AddName(ptx.Name{Kind: ptx.NamedBarriers, At: b.first, Count: n, Text: name})
	}
	return b
}

// NamedBarriers are barriers for a part of a CTA's threads.
type NamedBarriers struct {
	k              *ptx.Kernel
	first, threads int
}

// Sync arrives at barrier i and waits until all its threads have arrived.
func (b NamedBarriers) Sync(i ptx.U32) {
	b.k.BarSync(i.AddI(b.first), ptx.Uint(b.threads))
}

// Arrive arrives at barrier i without waiting.
func (b NamedBarriers) Arrive(i ptx.U32) {
	b.k.BarArrive(i.AddI(b.first), ptx.Uint(b.threads))
}
