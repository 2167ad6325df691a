package pipeline

import "sonicmoe/ptx"

// WaitParity waits until the barrier's phase of the given parity is complete.
func WaitParity(k *ptx.Kernel, bar ptx.Shared, parity ptx.U32) {
	k.Loop(func() {
		k.BreakIf(k.MbarrierTryWaitParity(bar, parity))
	})
}

// Setup collects the mbarriers of a kernel and makes them valid before any
// role starts.
type Setup struct {
	k    *ptx.Kernel
	bars []barrier
}

type barrier struct {
	at    ptx.Shared
	count int
}

// NewSetup starts a collection.
func NewSetup(k *ptx.Kernel) *Setup { return &Setup{k: k} }

// Barrier takes room for one mbarrier that count arrivals complete.
func (s *Setup) Barrier(mem *Shared, count int) ptx.Shared {
	at := mem.Take(8, 8)
	s.add(at, count)
	return at
}

func (s *Setup) add(at ptx.Shared, count int) { s.bars = append(s.bars, barrier{at, count}) }

// Done initialises the barriers in one thread and lets all others see them.
// Every thread of the CTA must come here.
func (s *Setup) Done(tid ptx.U32) {
	s.k.If(tid.EqI(0), func() {
		for _, b := range s.bars {
			s.k.MbarrierInit(b.at, ptx.Uint(b.count))
		}
		s.k.FenceMbarrierInit()
	})
	s.k.BarSync(ptx.Uint(0))
}

// ClusterSync waits for all threads of the cluster: after Done, so that the
// CTAs may use each other's barriers, and before the end, so that none is
// gone while another still signals it.
func ClusterSync(k *ptx.Kernel) {
	k.ClusterArrive()
	k.ClusterWait()
}
