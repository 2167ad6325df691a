package ptx

// threadIndex numbers the values that a kernel computes once from %tid.x.
type threadIndex int

const (
	tidX threadIndex = iota // %tid.x itself
	laneIndex
	warpIndex
	warpgroupIndex
	threadInWarpgroup
	threadIndices
)

// Lane is the thread's index in its warp, %tid.x mod 32. Like [Kernel.Warp],
// [Kernel.Warpgroup] and [Kernel.ThreadInWarpgroup] it is for CTAs of one
// dimension, is computed where it is first used, and later calls in the same
// body, or in one nested in it, return the same register.
func (k *Kernel) Lane() U32 { return k.fromTid(laneIndex) }

// Warp is the index of the thread's warp in the CTA, %tid.x / 32.
func (k *Kernel) Warp() U32 { return k.fromTid(warpIndex) }

// Warpgroup is the index of the thread's warpgroup in the CTA, %tid.x / 128.
func (k *Kernel) Warpgroup() U32 { return k.fromTid(warpgroupIndex) }

// ThreadInWarpgroup is the thread's index in its warpgroup, %tid.x mod 128.
func (k *Kernel) ThreadInWarpgroup() U32 { return k.fromTid(threadInWarpgroup) }

// fromTid returns the value of an index, computed by its first use in a body
// that encloses the present one.
func (k *Kernel) fromTid(i threadIndex) U32 {
	if !k.thread[i].missing() {
		return U32{k.thread[i]}
	}
	k.unguarded(func() {
		tid := U32{k.thread[tidX]}
		if tid.v.missing() {
			tid = k.TidX() // special keeps it
		}
		switch i {
		case laneIndex:
			k.thread[i] = tid.AndI(31).v
		case warpIndex:
			k.thread[i] = tid.ShrI(5).v
		case warpgroupIndex:
			k.thread[i] = tid.ShrI(7).v
		case threadInWarpgroup:
			k.thread[i] = tid.AndI(127).v
		}
	})
	return U32{k.thread[i]}
}

// unguarded emits what emit does without the guard and the register name of
// the present body: later instructions use its registers too.
func (k *Kernel) unguarded(emit func()) {
	guarded, hint := k.guarded, k.hint
	k.guarded, k.hint = false, ""
	emit()
	k.guarded, k.hint = guarded, hint
}
