package exchange

import (
	"sonicmoe/driver"
	"sonicmoe/jit"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/route/order"
	"sonicmoe/ptx"
)

// Entries writes the lists for all ranks, an entry for each pair in the order of [Split].Pairs. An
// entry has the row of the token in the window, which is the owner's buffer for received tokens,
// the number of the expert among the owner's experts, and the score. A thread handles one entry.
type Entries struct{ NumExperts, TopK int }

// EntryBytes is the size of an entry: row, expert and score, 4 bytes each.
const EntryBytes = 12

const entriesThreads = 256

// EntriesArgs are the arguments of [Entries].
type EntriesArgs struct {
	// Pairs, ExpertIDs, Scores and RowPlaces are tensors of [Split].
	Pairs, ExpertIDs, Scores, RowPlaces driver.DevicePtr
	// Bases [W] u32 has what to add to a RowPlaces value to get the row in a rank's window: the
	// first window row for tokens of this rank, less the RowPlaces value of the first token that
	// goes to that rank.
	Bases driver.DevicePtr
	// Rows and LocalExperts [P] i32 and RowScores [P] f32 are outputs: the three parts of the
	// entries.
	Rows, LocalExperts, RowScores driver.DevicePtr
	// Ranks is W. Count is P. See the package comment.
	Ranks, Count int
}

// Build emits the kernel.
func (e Entries) Build() (*jit.Kernel[EntriesArgs], error) {
	k := jit.NewBuilder[EntriesArgs]("moe_entries", entriesThreads, 1)
	k.CTAs(func(a *EntriesArgs) int { return (a.Count + entriesThreads - 1) / entriesThreads })
	pairs, ids, scores := k.Ptr(&k.Args.Pairs), k.Ptr(&k.Args.ExpertIDs), k.Ptr(&k.Args.Scores)
	places, bases := k.Ptr(&k.Args.RowPlaces), k.Ptr(&k.Args.Bases)
	rows, experts, rowScores := k.Ptr(&k.Args.Rows), k.Ptr(&k.Args.LocalExperts), k.Ptr(&k.Args.RowScores)
	ranks, count := k.U32(&k.Args.Ranks), k.U32(&k.Args.Count)
	at := k.CtaidX().MulI(entriesThreads).Add(k.TidX())
	k.GridDepWait()
	k.GridDepLaunch()
	k.If(at.Lt(count), func() {
		pair := ptx.LdGlobal[ptx.U32](pairs.Index(at, 4))
		rank := rankOf(ids, pair, e.NumExperts, ranks)
		place := ptx.NewVar(k.Kernel, ptx.Uint(order.NoRow))
		first := pair.Sub(pair.RemI(e.TopK))
		// The token goes to this rank once. Only the token's first pair of the rank has the row's
		// index in RowPlaces.
		k.For(first, pair.AddI(1), ptx.Uint(1), func(earlier ptx.U32) {
			same := rankOf(ids, earlier, e.NumExperts, ranks).Eq(rank)
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

// EntriesKernel is the kernel [Entries].
var EntriesKernel = &registry.Kernel[EntriesArgs]{KernelName: "entries", Emit: func(l registry.Layer) (*jit.Kernel[EntriesArgs], error) {
	return Entries{NumExperts: l.NumExperts, TopK: l.TopK}.Build()
}}
