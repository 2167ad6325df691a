package exchange

import (
	"sonicmoe/driver"
	"sonicmoe/jit"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/route/order"
	"sonicmoe/ptx"
)

// Entries writes, for each pair in the order of its rank, an entry of the list that the
// rank's experts get: the row of the token in the rank's window, the expert's number on the
// rank, and the score. A thread handles one entry.
type Entries struct{ NumExperts, TopK int }

// EntryBytes is the size of an entry: three words.
const EntryBytes = 12

const entriesThreads = 256

// EntriesArgs are the arguments of [Entries].
type EntriesArgs struct {
	// Pairs, ExpertIDs, Scores, PairRanks and RowPlaces come from [Split].
	Pairs, ExpertIDs, Scores, PairRanks, RowPlaces driver.DevicePtr
	// Bases [W] u32 is added to the place of a row: the first row of this rank in the window
	// of each rank, less the place of the first row that goes there.
	Bases driver.DevicePtr
	// Rows and LocalExperts [P] i32 and RowScores [P] f32 are outputs.
	Rows, LocalExperts, RowScores driver.DevicePtr
	// Ranks is W. Count is P.
	Ranks, Count int
}

// Build emits the kernel.
func (e Entries) Build() (*jit.Kernel[EntriesArgs], error) {
	k := jit.NewBuilder[EntriesArgs]("moe_entries", entriesThreads, 1)
	k.CTAs(func(a *EntriesArgs) int { return (a.Count + entriesThreads - 1) / entriesThreads })
	pairs, ids, scores := k.Ptr(&k.Args.Pairs), k.Ptr(&k.Args.ExpertIDs), k.Ptr(&k.Args.Scores)
	pairRanks, places, bases := k.Ptr(&k.Args.PairRanks), k.Ptr(&k.Args.RowPlaces), k.Ptr(&k.Args.Bases)
	rows, experts, rowScores := k.Ptr(&k.Args.Rows), k.Ptr(&k.Args.LocalExperts), k.Ptr(&k.Args.RowScores)
	ranks, count := k.U32(&k.Args.Ranks), k.U32(&k.Args.Count)
	at := k.CtaidX().MulI(entriesThreads).Add(k.TidX())
	k.GridDepWait()
	k.GridDepLaunch()
	k.If(at.Lt(count), func() {
		pair := ptx.LdGlobal[ptx.U32](pairs.Index(at, 4))
		rank := ptx.LdGlobal[ptx.U32](pairRanks.Index(pair, 4)).Rem(ranks)
		place := ptx.NewVar(k.Kernel, ptx.Uint(order.NoRow))
		first := pair.Sub(pair.RemI(e.TopK))
		// The row's place is at the token's first pair of the same rank.
		k.For(first, pair.AddI(1), ptx.Uint(1), func(earlier ptx.U32) {
			same := ptx.LdGlobal[ptx.U32](pairRanks.Index(earlier, 4)).Rem(ranks).Eq(rank)
			of := ptx.LdGlobal[ptx.U32](places.Index(earlier, 4))
			place.Set(ptx.Select(same.And(of.NeI(order.NoRow)), of, place.Get()))
		})
		base := ptx.LdGlobal[ptx.U32](bases.Index(rank, 4))
		id := ptx.LdGlobal[ptx.U32](ids.Index(pair, 4))
		ptx.StGlobal(rows.Index(at, 4), place.Get().Add(base))
		ptx.StGlobal(experts.Index(at, 4), id.Sub(rank.MulI(e.NumExperts).Div(ranks)))
		ptx.StGlobal(rowScores.Index(at, 4), ptx.LdGlobal[ptx.F32](scores.Index(pair, 4)))
	})
	return k.Build()
}

// EntriesKernel writes the lists of all ranks.
var EntriesKernel = &registry.Kernel[EntriesArgs]{KernelName: "entries", Emit: func(l registry.Layer) (*jit.Kernel[EntriesArgs], error) {
	return Entries{NumExperts: l.NumExperts, TopK: l.TopK}.Build()
}}
