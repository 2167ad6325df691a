package dw

import (
	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/schedule"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/ptx"
)

// SplitRows is the largest number of rows over which one tile of a weight gradient sums.
// An expert with more rows has several splits, whose sums are added in order.
const SplitRows = 8192

// SplitBytes is the size of an entry of the split table. An entry has eight words: expert, first
// packed row, number of rows, number of the expert's first split, number of the expert's splits,
// number of experts listed before it, 0, 0.
const SplitBytes = 32

// SlotStateBytes is the size of the state of a slot. A slot holds a partial sum.
const SlotStateBytes = 8

// Plan lists the work of the weight gradients: the splits of each expert, heavy experts
// first, so that the last tiles of a launch are short. An expert without rows has one
// split, after all splits with rows.
type Plan struct {
	NumExperts int
	// SplitRows is the number of rows of a split, a multiple of 64; 0 means [SplitRows].
	SplitRows int
}

const planThreads = 256

// Splits returns the largest number of entries that the table can have for a number of
// packed rows.
func (p Plan) Splits(rows int) int { return p.NumExperts + rows/splitRows(p.SplitRows) }

// TableBytes returns the size of the table for a number of packed rows.
func (p Plan) TableBytes(rows int) int64 { return SplitBytes * int64(p.Splits(rows)) }

// Slots returns the number of slots for partial sums with which a launch runs at full speed. With
// fewer slots, but at least 1, CTAs wait for each other. It is 0 if there are at most SplitRows
// rows, because then no expert can be split.
func (p Plan) Slots(rows, sms int) int {
	if rows <= splitRows(p.SplitRows) {
		return 0
	}
	return sms
}

func splitRows(n int) int {
	if n == 0 {
		return SplitRows
	}
	return n
}

// PlanArgs are the arguments of [Plan].
type PlanArgs struct {
	// Offsets [E+1] u32 is the first packed row of each expert.
	Offsets driver.DevicePtr
	// Splits is an output: the table, with [Plan.Splits] entries of SplitBytes.
	Splits driver.DevicePtr
	// Counts [2] u32 is an output: the number of splits, and the number of splits with
	// rows.
	Counts driver.DevicePtr
	// The kernel sets Tickets [2] and State [StateWords] u32 to 0.
	Tickets    driver.DevicePtr
	State      driver.DevicePtr
	StateWords int
}

// Build emits the kernel.
func (p Plan) Build() (*jit.Kernel[PlanArgs], error) {
	k := jit.NewBuilder[PlanArgs]("moe_dwplan", planThreads, 1)
	k.CTAs(func(*PlanArgs) int { return (p.NumExperts + planThreads/32 - 1) / (planThreads / 32) }) // one warp for each expert
	offsets, splits := k.Ptr(&k.Args.Offsets), k.Ptr(&k.Args.Splits)
	counts, tickets := k.Ptr(&k.Args.Counts), k.Ptr(&k.Args.Tickets)
	state, words := k.Ptr(&k.Args.State), k.U32(&k.Args.StateWords)
	tid := k.TidX()
	lane, cta := k.Lane(), k.CtaidX()
	k.GridDepWait()
	k.GridDepLaunch()
	expert := cta.MulI(planThreads / 32).Add(k.Warp())
	k.If(expert.LtI(p.NumExperts), func() { p.list(k.Kernel, expert, lane, offsets, splits, counts) })
	first := cta.MulI(planThreads).Add(tid)
	k.For(first, words, k.NctaidX().MulI(planThreads), func(i ptx.U32) {
		ptx.StGlobal(state.Index(i, 4), ptx.Uint(0))
	})
	k.If(first.EqI(0), func() { schedule.ClearTickets(tickets) })
	return k.Build()
}

// list writes the entries of one expert, with one warp. They follow the entries of all
// experts with more rows, and of experts with the same number of rows and a lower id.
func (p Plan) list(k *ptx.Kernel, expert, lane ptx.U32, offsets, splits, counts ptx.Global) {
	each := splitRows(p.SplitRows)
	extent := func(e ptx.U32) (first, rows, n ptx.U32) {
		at := offsets.Index(e, 4)
		first = ptx.LdGlobal[ptx.U32](at)
		rows = ptx.LdGlobal[ptx.U32](at.At(4)).Sub(first)
		return first, rows, rows.AddI(each - 1).DivI(each).Max(ptx.Uint(1))
	}
	first, rows, own := extent(expert)
	var sums [4]*ptx.Var[ptx.U32] // splits before this expert's, experts before this one, all splits, all splits with rows
	for i := range sums {
		sums[i] = ptx.NewVar(k, ptx.Uint(0))
	}
	k.For(lane, ptx.Uint(p.NumExperts), ptx.Uint(32), func(e ptx.U32) {
		_, r, n := extent(e)
		before := r.Gt(rows).Or(r.Eq(rows).And(e.Lt(expert)))
		for i, add := range []ptx.U32{
			ptx.Select(before, n, ptx.Uint(0)), ptx.Select(before, ptx.Uint(1), ptx.Uint(0)),
			n, ptx.Select(r.NeI(0), n, ptx.Uint(0)),
		} {
			sums[i].Set(sums[i].Get().Add(add))
		}
	})
	k.BarWarpSync(ptx.Uint(ptx.FullMask))
	var total [4]ptx.U32
	for i := range sums {
		total[i] = sums[i].Get().ReduxAdd()
	}
	base, rank := total[0], total[1]
	k.For(lane, own, ptx.Uint(32), func(i ptx.U32) {
		at := splits.Index(base.Add(i), SplitBytes)
		ptx.StGlobal(at, expert, first, rows, base)
		ptx.StGlobal(at.At(16), own, rank, ptx.Uint(0), ptx.Uint(0))
	})
	k.If(expert.EqI(0).And(lane.EqI(0)), func() { ptx.StGlobal(counts, total[2], total[3]) })
}

// PlanKernel lists the work of the gradients of both weights.
var PlanKernel = &registry.Kernel[PlanArgs]{KernelName: "plan-splits", Backward: true, Only: func(c spec.Config) bool { return spec.IsPlain(c) || spec.HasLoRA(c) }, Emit: func(l registry.Layer) (*jit.Kernel[PlanArgs], error) {
	return Plan{NumExperts: l.NumExperts}.Build()
}}
