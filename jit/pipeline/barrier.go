package pipeline

import "sonicmoe/ptx"

// WaitParity waits until the barrier's phase of the given parity is complete.
func WaitParity(k *ptx.Kernel, bar ptx.Shared, parity ptx.U32) {
	k.Loop(func() {
		k.BreakIf(k.MbarrierTryWaitParity(bar, parity))
	})
}

// ClusterSync waits for all threads of the cluster: after [CTA.Ready], so that
// the CTAs may use each other's barriers, and before the end, so that none is
// gone while another still signals it.
func ClusterSync(k *ptx.Kernel) {
	k.ClusterArrive()
	k.ClusterWait()
}
