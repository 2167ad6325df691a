package pipeline

import "sonicmoe/ptx"

// CTA hands out what the threads of a CTA share: dynamic shared memory, front to
// back, mbarriers in it, and named barriers. Each has a name, which stands in
// the kernel's text and in reports.
type CTA struct {
	k    *ptx.Kernel
	base ptx.Shared
	used int // bytes
	// named is the next named barrier; 0 is BarSync of the whole CTA.
	named     int
	mbarriers []mbarrier
}

// mbarrier is one that Ready makes valid.
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

// pieces reserves count pieces of the given size, one behind the other.
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

// Mbarriers reserves n mbarriers, 8 bytes apart, whose phases each take that
// number of arrivals.
func (c *CTA) Mbarriers(name string, n, arrivals int) ptx.Shared {
	at := c.pieces(name, n, mbarrierBytes, mbarrierBytes)
	for i := range n {
		c.mbarriers = append(c.mbarriers, mbarrier{at.At(mbarrierBytes * i), arrivals})
	}
	return at
}

// Ready makes the mbarriers valid, in one thread, and lets all others see that.
// Every thread of the CTA must come here before it uses one.
func (c *CTA) Ready(tid ptx.U32) {
	c.k.If(tid.EqI(0), func() {
		for _, b := range c.mbarriers {
			c.k.MbarrierInit(b.at, ptx.Uint(b.arrivals))
		}
		c.k.FenceMbarrierInit()
	})
	c.k.BarSync(ptx.Uint(0))
}

// mostNamed is how many named barriers a CTA has, 0 included.
const mostNamed = 16

// NamedBarriers reserves n named barriers for that number of threads each.
func (c *CTA) NamedBarriers(name string, n, threads int) NamedBarriers {
	b := NamedBarriers{k: c.k, first: c.named, threads: threads}
	if c.named += n; c.named > mostNamed {
		c.k.Errorf("named barriers %s: a CTA has %d, %d are wanted", name, mostNamed, c.named)
	} else {
		c.k.AddName(ptx.Name{Kind: ptx.NamedBarriers, At: b.first, Count: n, Text: name})
	}
	return b
}

// NamedBarriers are barriers for some of a CTA's threads.
type NamedBarriers struct {
	k              *ptx.Kernel
	first, threads int
}

// Sync waits at barrier i until all its threads have come; these are synchronised.
func (b NamedBarriers) Sync(i ptx.U32) {
	b.k.BarSync(i.AddI(b.first), ptx.Uint(b.threads))
}

// Arrive comes to barrier i and does not wait.
func (b NamedBarriers) Arrive(i ptx.U32) {
	b.k.BarArrive(i.AddI(b.first), ptx.Uint(b.threads))
}
