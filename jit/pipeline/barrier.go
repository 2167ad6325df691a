package pipeline

import "sonicmoe/ptx"

// WaitParity waits until the barrier's phase of the given parity is complete.
func WaitParity(k *ptx.Kernel, bar ptx.Shared, parity ptx.U32) {
	k.Loop(func() {
		k.BreakIf(k.MbarrierTryWaitParity(bar, parity))
	})
}

// ClusterSync waits for all threads of the cluster. Kernels need it after
// [CTA.Ready], before a CTA uses another CTA's barriers, and at the end, so that
// no CTA ends while another still signals its barriers.
func ClusterSync(k *ptx.Kernel) {
	k.ClusterArrive()
	k.ClusterWait()
}
