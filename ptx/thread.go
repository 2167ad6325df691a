package ptx

// threadIndex identifies %tid.x or one of the indices that a kernel computes once from it.
type threadIndex int

const (
	tidX threadIndex = iota // %tid.x itself
	laneIndex
	warpIndex
	warpgroupIndex
	threadInWarpgroup
	threadIndices
)

// Lane returns the thread's index in its warp, %tid.x mod 32. [Kernel.Warp], [Kernel.Warpgroup],
// [Kernel.ThreadInWarpgroup] and Lane require CTAs of one dimension. The first call computes the
// index. Later calls in the same body, or in a body nested in it, return the same register.
func (k *Kernel) Lane() U32 { return k.fromTid(laneIndex) }

// Warp returns the index of the thread's warp in the CTA, %tid.x / 32.
func (k *Kernel) Warp() U32 { return k.fromTid(warpIndex) }

// Warpgroup returns the index of the thread's warpgroup in the CTA, %tid.x / 128.
func (k *Kernel) Warpgroup() U32 { return k.fromTid(warpgroupIndex) }

// ThreadInWarpgroup returns the thread's index in its warpgroup, %tid.x mod 128.
func (k *Kernel) ThreadInWarpgroup() U32 { return k.fromTid(threadInWarpgroup) }

// LaneOf returns the lane of a thread: its index mod 32. [WarpOf], [WarpgroupOf], [InWarpgroup] and
// LaneOf compute the result at each call. A kernel uses them for a thread index other than %tid.x,
// or where a register that lives from the start of the kernel on would cost more than an instruction.
func LaneOf(thread U32) U32 { return thread.AndI(31) }

// WarpOf returns the warp of a thread: its index / 32.
func WarpOf(thread U32) U32 { return thread.ShrI(5) }

// WarpgroupOf returns the warpgroup of a thread: its index / 128.
func WarpgroupOf(thread U32) U32 { return thread.ShrI(7) }

// InWarpgroup returns the index of a thread in its warpgroup: its index mod 128.
func InWarpgroup(thread U32) U32 { return thread.AndI(127) }

// fromTid returns the index i. It computes the index if no enclosing body has done so.
func (k *Kernel) fromTid(i threadIndex) U32 {
	if !k.thread[i].missing() {
		return U32{k.thread[i]}
	}
	k.unguarded(func() {
		tid := U32{k.thread[tidX]}
		if tid.v.missing() {
			tid = k.TidX() // TidX stores it in k.thread
		}
		switch i {
		case laneIndex:
			k.thread[i] = LaneOf(tid).v
		case warpIndex:
			k.thread[i] = WarpOf(tid).v
		case warpgroupIndex:
			k.thread[i] = WarpgroupOf(tid).v
		case threadInWarpgroup:
			k.thread[i] = InWarpgroup(tid).v
		}
	})
	return U32{k.thread[i]}
}

// unguarded calls emit without the guard and the register names of the present body, because
// instructions after the body also read the registers that emit sets.
func (k *Kernel) unguarded(emit func()) {
	guarded, hint := k.guarded, k.hint
	k.guarded, k.hint = false, ""
	emit()
	k.guarded, k.hint = guarded, hint
}
