package exchange

import (
	"sonicmoe/driver"
	"sonicmoe/jit"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/ptx"
)

// Arrange finds the packed row of each entry that comes from one rank. The host knows the counts of
// all ranks, and so the first row of each expert and rank. A thread handles one entry.
type Arrange struct{}

const arrangeThreads = 256

// ArrangeArgs are the arguments of [Arrange]. N is the number of entries of the rank.
type ArrangeArgs struct {
	// Tokens and Experts [N] i32 are the entries of the rank, sorted by expert. First is the index
	// of the first one in the list of the entries of all ranks.
	Tokens, Experts driver.DevicePtr
	First, Count    int
	// Shifts [E] u32 has what to add to the index of an entry in the list to get its row, modulo
	// 2^32, for each expert.
	Shifts driver.DevicePtr
	// Gather and Pairs [L] u32 are outputs: the token and the entry of each row. Inverse [L] u32 is
	// the inverse of Pairs.
	Gather, Pairs, Inverse driver.DevicePtr
}

// Build emits the kernel.
func (Arrange) Build() (*jit.Kernel[ArrangeArgs], error) {
	k := jit.NewBuilder[ArrangeArgs]("moe_arrange", arrangeThreads, 1)
	k.CTAs(func(a *ArrangeArgs) int { return (a.Count + arrangeThreads - 1) / arrangeThreads })
	tokens, experts, shifts := k.Ptr(&k.Args.Tokens), k.Ptr(&k.Args.Experts), k.Ptr(&k.Args.Shifts)
	gather, pairs, inverse := k.Ptr(&k.Args.Gather), k.Ptr(&k.Args.Pairs), k.Ptr(&k.Args.Inverse)
	first, count := k.U32(&k.Args.First), k.U32(&k.Args.Count)
	at := k.CtaidX().MulI(arrangeThreads).Add(k.TidX())
	k.GridDepWait()
	k.GridDepLaunch()
	k.If(at.Lt(count), func() {
		expert := ptx.LdGlobal[ptx.U32](experts.Index(at, 4))
		entry := first.Add(at)
		row := entry.Add(ptx.LdGlobal[ptx.U32](shifts.Index(expert, 4)))
		ptx.StGlobal(gather.Index(row, 4), ptx.LdGlobal[ptx.U32](tokens.Index(at, 4)))
		ptx.StGlobal(pairs.Index(row, 4), entry)
		ptx.StGlobal(inverse.Index(entry, 4), row)
	})
	return k.Build()
}

// ArrangeKernel is the kernel [Arrange].
var ArrangeKernel = &registry.Kernel[ArrangeArgs]{KernelName: "arrange", Emit: func(registry.Layer) (*jit.Kernel[ArrangeArgs], error) {
	return Arrange{}.Build()
}}

// Work is a part of the work of a rank's experts in a pass, which the host has chosen.
type Work struct {
	// Table and RowPairs are the part's table of row pairs and the number of its entries, see
	// schedule.Tiles. Tickets are the part's two counters, which are 0.
	Table, RowPairs, Tickets driver.DevicePtr
	// Later reports whether another part of the pass has run, which has unpacked the weights and
	// padded an adapter's factors.
	Later bool
	// A forward pass also has these. Y is the address of the rows of Y of all parts. Gather and Pairs are
	// tensors of [Arrange]. Offsets [E+1] u32 has the first row of each expert in the pass, followed by the
	// number of rows.
	Y, Gather, Pairs, Offsets driver.DevicePtr
}
