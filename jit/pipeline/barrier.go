package pipeline

import "sonicmoe/ptx"

// WaitParity waits until the phase with the given parity is complete at the mbarrier bar.
func WaitParity(k *ptx.Kernel, bar ptx.Shared, parity ptx.U32) {
	k.Loop(func() {
		k.BreakIf(k.MbarrierTryWaitParity(bar, parity))
	})
}

// ClusterSync waits for all threads of the cluster. A kernel needs it after [CTA.Ready], before a
// CTA uses the mbarriers of another CTA. It also needs it at the end, so that no CTA ends while
// another still signals its mbarriers.
func ClusterSync(k *ptx.Kernel) {
	k.ClusterArrive()
	k.ClusterWait()
}
