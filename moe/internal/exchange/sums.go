package exchange

import (
	"sonicmoe/driver"
	"sonicmoe/jit"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/route/order"
	"sonicmoe/ptx"
)

// SumPlaces finds the rows that a rank adds up for its tokens if other ranks send partial sums. A pair
// with one of the rank's own experts has its own row. The token's first pair of another rank has that
// rank's partial sum. The other pairs of that rank have no row. A thread handles one pair.
type SumPlaces struct{ NumExperts, TopK int }

// SlotBytes is the size of a pair's slot in the list that goes to each rank.
const SlotBytes = 4

const sumPlacesThreads = 256

// SumPlacesArgs are the arguments of [SumPlaces]. The package comment defines T, K, E, W and P.
type SumPlacesArgs struct {
	// ExpertIDs, Scores, Places and RowPlaces [T, K] are tensors of [Split].
	ExpertIDs, Scores, Places, RowPlaces driver.DevicePtr
	// Shifts [E] u32 has what to add to the place of a pair to get the index of its row, modulo 2^32. It
	// is used for the rank's own experts.
	Shifts driver.DevicePtr
	// Rows [T, K] u32 and Weights [T, K] f32 are outputs: the index of the row of each pair, or
	// order.NoRow, and the factor of the row. The factor is the score, or 1 for a partial sum.
	Rows, Weights driver.DevicePtr
	// Slots [P] u32 is an output, in the order of Split.Pairs. It has the number of earlier pairs of the
	// same token and rank.
	Slots driver.DevicePtr
	// Rank is the number of this rank. Ranks is W, and Pairs is T·K.
	Rank, Ranks, Pairs int
}

// Build emits the kernel.
func (s SumPlaces) Build() (*jit.Kernel[SumPlacesArgs], error) {
	k := jit.NewBuilder[SumPlacesArgs]("moe_sum_places", sumPlacesThreads, 1)
	k.CTAs(func(a *SumPlacesArgs) int { return (a.Pairs + sumPlacesThreads - 1) / sumPlacesThreads })
	ids, scores := k.Ptr(&k.Args.ExpertIDs), k.Ptr(&k.Args.Scores)
	places, rowPlaces, shifts := k.Ptr(&k.Args.Places), k.Ptr(&k.Args.RowPlaces), k.Ptr(&k.Args.Shifts)
	rows, weights, slots := k.Ptr(&k.Args.Rows), k.Ptr(&k.Args.Weights), k.Ptr(&k.Args.Slots)
	own, ranks, pairs := k.U32(&k.Args.Rank), k.U32(&k.Args.Ranks), k.U32(&k.Args.Pairs)
	pair := k.CtaidX().MulI(sumPlacesThreads).Add(k.TidX())
	k.GridDepWait()
	k.GridDepLaunch()
	k.If(pair.Lt(pairs), func() {
		place := ptx.LdGlobal[ptx.U32](places.Index(pair, 4))
		row, weight := ptx.NewVar(k.Kernel, ptx.LdGlobal[ptx.U32](rowPlaces.Index(pair, 4))), ptx.NewVar(k.Kernel, ptx.Float(1))
		k.If(place.NeI(order.NoRow), func() {
			rank, slot := rankOf(ids, pair, s.NumExperts, ranks), ptx.NewVar(k.Kernel, ptx.Uint(0))
			k.For(pair.Sub(pair.RemI(s.TopK)), pair, ptx.Uint(1), func(earlier ptx.U32) {
				same := rankOf(ids, earlier, s.NumExperts, ranks).Eq(rank)
				slot.Set(slot.Get().Add(ptx.Select(same, ptx.Uint(1), ptx.Uint(0))))
			})
			ptx.StGlobal(slots.Index(place, 4), slot.Get())
			k.If(rank.Eq(own), func() {
				id := ptx.LdGlobal[ptx.U32](ids.Index(pair, 4))
				row.Set(place.Add(ptx.LdGlobal[ptx.U32](shifts.Index(id, 4))))
				weight.Set(ptx.LdGlobal[ptx.F32](scores.Index(pair, 4)))
			})
		})
		ptx.StGlobal(rows.Index(pair, 4), row.Get())
		ptx.StGlobal(weights.Index(pair, 4), weight.Get())
	})
	return k.Build()
}

// Slots sorts the rows of received entries by token and slot. A thread handles one entry.
type Slots struct{ TopK int }

const slotsThreads = 256

// SlotsArgs are the arguments of [Slots]. N is the number of received tokens, and L the number of
// received entries of all ranks.
type SlotsArgs struct {
	// Tokens [L] i32, Scores [L] f32 and Slots [L] u32 are the received entries: the token's index in
	// the window, the score, and the slot of the pair, see [SumPlaces]. Inverse [L] u32 is a tensor of
	// [Arrange].
	Tokens, Scores, Slots, Inverse driver.DevicePtr
	// First is the index of the first entry to handle, and Count is the number of entries to handle.
	First, Count int
	// Rows [N, K] u32 and Weights [N, K] f32 are outputs: the row and the score of each token and slot.
	// Elements without an entry are not written.
	Rows, Weights driver.DevicePtr
}

// Build emits the kernel.
func (s Slots) Build() (*jit.Kernel[SlotsArgs], error) {
	k := jit.NewBuilder[SlotsArgs]("moe_slots", slotsThreads, 1)
	k.CTAs(func(a *SlotsArgs) int { return (a.Count + slotsThreads - 1) / slotsThreads })
	tokens, scores := k.Ptr(&k.Args.Tokens), k.Ptr(&k.Args.Scores)
	slots, inverse := k.Ptr(&k.Args.Slots), k.Ptr(&k.Args.Inverse)
	rows, weights := k.Ptr(&k.Args.Rows), k.Ptr(&k.Args.Weights)
	first, count := k.U32(&k.Args.First), k.U32(&k.Args.Count)
	at := k.CtaidX().MulI(slotsThreads).Add(k.TidX())
	k.GridDepWait()
	k.GridDepLaunch()
	k.If(at.Lt(count), func() {
		entry := first.Add(at)
		to := ptx.LdGlobal[ptx.U32](tokens.Index(entry, 4)).MulI(s.TopK).Add(ptx.LdGlobal[ptx.U32](slots.Index(entry, 4)))
		ptx.StGlobal(rows.Index(to, 4), ptx.LdGlobal[ptx.U32](inverse.Index(entry, 4)))
		ptx.StGlobal(weights.Index(to, 4), ptx.LdGlobal[ptx.F32](scores.Index(entry, 4)))
	})
	return k.Build()
}

// SumPlacesKernel is the kernel [SumPlaces], and SlotsKernel the kernel [Slots].
var (
	SumPlacesKernel = &registry.Kernel[SumPlacesArgs]{KernelName: "sum-places", Emit: func(l registry.Layer) (*jit.Kernel[SumPlacesArgs], error) {
		return SumPlaces{NumExperts: l.NumExperts, TopK: l.TopK}.Build()
	}}
	SlotsKernel = &registry.Kernel[SlotsArgs]{KernelName: "slots", Emit: func(l registry.Layer) (*jit.Kernel[SlotsArgs], error) {
		return Slots{TopK: l.TopK}.Build()
	}}
)
