package kernel

import "sonicmoe/ptx"

// SplitRows is the rows of an expert that one tile of a weight gradient sums
// at a time; a heavier expert is split, and the parts are added in order.
const SplitRows = 8192

// SplitBytes is the size of an entry of the split table: expert, its first
// packed row, its rows, the number of its first split; how many splits it
// has, how many experts are listed before it, 0, 0.
const SplitBytes = 32

// DWPlan lists the work of the weight gradients: the splits of each expert,
// heavy experts first, so that the last tiles of a launch are the cheap ones.
// An expert without rows has one split, after all others.
type DWPlan struct {
	Experts int
	// SplitRows is the rows of a split, a multiple of 64; 0 means [SplitRows].
	SplitRows int
}

const dwPlanThreads = 256

// CTAs is the grid: a warp for each expert.
func (p DWPlan) CTAs() int { return (p.Experts + dwPlanThreads/32 - 1) / (dwPlanThreads / 32) }

// Splits is how many entries the table has at most for so many packed rows.
func (p DWPlan) Splits(rows int) int { return p.Experts + rows/splitRows(p.SplitRows) }

// Slots is how many slots for partial sums a launch on a chip of so many SMs
// wants; fewer, from 1 on, make CTAs wait for each other. None when no expert
// can be split, as no launch of up to SplitRows rows has one.
func (p DWPlan) Slots(rows, sms int) int {
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

// Build emits the kernel. It reads offsets [E+1] and writes splits (the
// table), counts (two words: all splits, those with rows), tickets (two
// words) and so many words of state, which become 0.
func (p DWPlan) Build() (Kernel, error) {
	const name = "moe_dwplan"
	k := ptx.NewKernel(name)
	k.SetLaunchBounds(dwPlanThreads, 1)
	offsets, splits := k.ParamPtr("offsets"), k.ParamPtr("splits")
	counts, tickets := k.ParamPtr("counts"), k.ParamPtr("tickets")
	state, words := k.ParamPtr("state"), k.ParamU32("words")
	tid := k.Special("%tid.x")
	lane, cta := tid.AndI(31), k.Special("%ctaid.x")
	k.GridDepWait()
	k.GridDepLaunch()
	expert := cta.MulI(dwPlanThreads / 32).Add(tid.ShrI(5))
	k.If(expert.LtI(p.Experts), func() { p.list(k, expert, lane, offsets, splits, counts) })
	first := cta.MulI(dwPlanThreads).Add(tid)
	k.For(first, words, k.Special("%nctaid.x").MulI(dwPlanThreads), func(i ptx.U32) {
		ptx.StGlobal(state.Index(i, 4), ptx.Uint(0))
	})
	k.If(first.EqI(0), func() { ptx.StGlobal(tickets, ptx.Uint(0), ptx.Uint(0)) })
	return build(k, name, dwPlanThreads, 0)
}

// list writes the expert's entries, a warp's work: the place of the first is
// the splits of all experts with more rows, or with as many and a lower id.
func (p DWPlan) list(k *ptx.Kernel, expert, lane ptx.U32, offsets, splits, counts ptx.Global) {
	each := splitRows(p.SplitRows)
	extent := func(e ptx.U32) (first, rows, n ptx.U32) {
		at := offsets.Index(e, 4)
		first = ptx.LdGlobal[ptx.U32](at)
		rows = ptx.LdGlobal[ptx.U32](at.At(4)).Sub(first)
		return first, rows, rows.AddI(each - 1).DivI(each).Max(ptx.Uint(1))
	}
	first, rows, own := extent(expert)
	var sums [4]*ptx.Var[ptx.U32] // splits and experts before; all splits, all with rows
	for i := range sums {
		sums[i] = ptx.NewVar(k, ptx.Uint(0))
	}
	k.For(lane, ptx.Uint(p.Experts), ptx.Uint(32), func(e ptx.U32) {
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
