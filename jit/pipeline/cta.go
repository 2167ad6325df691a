package pipeline

import "sonicmoe/ptx"

// CTA allocates what the threads of a CTA share: dynamic shared memory, from front to back,
// mbarriers in it, and named barriers. Each allocation has a name, which appears in the kernel's
// text and in reports.
type CTA struct {
	k    *ptx.Kernel
	base ptx.Shared
	used int // bytes allocated so far
	// named is the number of the next named barrier. Barrier 0 is for BarSync of the whole CTA.
	named     int
	mbarriers []mbarrier
}

// mbarrier is an mbarrier that Ready has to initialise.
type mbarrier struct {
	at       ptx.Shared
	arrivals int
}

// NewCTA returns an allocator that starts at the front of k's dynamic shared memory, which is
// aligned to 1024 bytes.
func NewCTA(k *ptx.Kernel) *CTA { return &CTA{k: k, base: k.SharedBase(), named: 1} }

// Shared reserves shared memory. align is a power of two up to 1024.
func (c *CTA) Shared(name string, bytes, align int) ptx.Shared {
	return c.pieces(name, 1, bytes, align)
}

// pieces reserves count adjacent pieces of shared memory, of the given size each.
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

// Mbarriers reserves n mbarriers, 8 bytes apart. A phase of each completes after the given number
// of arrivals.
func (c *CTA) Mbarriers(name string, n, arrivals int) ptx.Shared {
	at := c.pieces(name, n, mbarrierBytes, mbarrierBytes)
	for i := range n {
		c.mbarriers = append(c.mbarriers, mbarrier{at.At(mbarrierBytes * i), arrivals})
	}
	return at
}

// Ready initialises all reserved mbarriers in one thread, and makes them visible to all threads.
// Every thread of the CTA must call it before it uses an mbarrier.
func (c *CTA) Ready(tid ptx.U32) {
	c.k.If(tid.EqI(0), func() {
		for _, b := range c.mbarriers {
			c.k.MbarrierInit(b.at, ptx.Uint(b.arrivals))
		}
		c.k.FenceMbarrierInit()
	})
	c.k.BarSync(ptx.Uint(0))
}

// mostNamed is the number of named barriers of a CTA, including barrier 0.
const mostNamed = 16

// NamedBarriers reserves n named barriers. The given number of threads uses each of them.
func (c *CTA) NamedBarriers(name string, n, threads int) NamedBarriers {
	b := NamedBarriers{k: c.k, first: c.named, threads: threads}
	if c.named += n; c.named > mostNamed {
		c.k.Errorf("named barriers %s: a CTA has %d, the kernel needs %d", name, mostNamed, c.named)
	} else {
		c.k.AddName(ptx.Name{Kind: ptx.NamedBarriers, At: b.first, Count: n, Text: name})
	}
	return b
}

// NamedBarriers is a set of named barriers for a part of the CTA's threads.
type NamedBarriers struct {
	k              *ptx.Kernel
	first, threads int
}

// Sync arrives at barrier i, and waits until all threads of the barrier have arrived.
func (b NamedBarriers) Sync(i ptx.U32) {
	b.k.BarSync(i.AddI(b.first), ptx.Uint(b.threads))
}

// Arrive arrives at barrier i without waiting.
func (b NamedBarriers) Arrive(i ptx.U32) {
	b.k.BarArrive(i.AddI(b.first), ptx.Uint(b.threads))
}
