package kernel

import (
	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/schedule"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/element"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/weights"
	"sonicmoe/ptx"
)

// Adapt adds the products of LoRA adapters to the results of Up or Down, in a layer with a table of
// adapters. Each token names an adapter of the table. Adapt is a kernel of its own that runs after
// Up or Down, so the kernels of Up and Down need no variants for adapters. x is a row of the input,
// e is its expert, and i is the adapter that its token names. c_i is the adapter's scale. A and B
// are the adapter's factors, and B1 is the one for H:
//
//	u  = round(c_i·(x·A_ieᵀ))
//	H' = round(H + u·B1_ieᵀ), A' = round(act(H + u·B1_ieᵀ))   after Up
//	Y' = round(Y + u·B2_ieᵀ)                                  after Down
//
// The kernel does not touch the results of rows whose token names no adapter. A CTA takes up to 128
// rows of one expert. It computes up to 16 rows with the same adapter at a time. For u each warp sums
// over a part of the depth. For H' or Y' each warp takes some of the columns. Sums run in the same
// order for every number of tokens, so results do not depend on the batch.
//
// A CTA computes its first u while Up or Down still runs. This is safe: Up and Down launch this
// kernel only when the routing plan and their inputs are complete. Every thread waits for Up or Down
// before it ends, because the next kernel waits only for this one.
type Adapt struct {
	spec.Config
	// Down selects the kernel after Down. The other one runs after Up.
	Down bool
}

// AdaptArgs are the arguments of [Adapt]. Tensors without a stated type have the layer's element
// type.
type AdaptArgs struct {
	// X are the product's inputs: tokens [T, d] after Up, else A in the layout of [weights.A].
	X driver.DevicePtr
	// AdapterIDs [T] i32 has the place in the table of each token's adapter, or -1. Scales [N] f32
	// has the scale c of each place, which is 0 for a place without an adapter. Misses [1] u32 counts
	// the tokens that name a place without an adapter or outside the table. The kernel after Up adds
	// to it, unless its address is 0.
	AdapterIDs, Scales, Misses driver.DevicePtr
	// FactorA [N·E, r, in] and FactorB [N·E, out, r] are the factors of N places and E experts. With
	// GateUp "apart", FactorB is of gate, and Factor3 is of up.
	FactorA, FactorB, Factor3 driver.DevicePtr
	// Results is H [R, 2n] after Up, and Y [R, d] after Down. A is the activation, which the kernel
	// after Up changes.
	Results, A driver.DevicePtr
	// Gather [R] u32 is the token of each packed row. Table is the table of row pairs: an entry has
	// an expert and up to 128 of its packed rows. RowPairs has the number of entries.
	Gather, Table, RowPairs driver.DevicePtr
	// With ScoreOnInput, Scores [T, K] f32 are the scores, and Pairs [R] u32 is the index in Scores
	// of each packed row.
	Scores, Pairs driver.DevicePtr
	// Tokens is T, the number of tokens. Rows is R, the number of packed rows.
	Tokens, Rows int
	// Splits is the number of tasks of an entry of the table of row pairs. Task j takes every adapter
	// of the entry's rows whose index, modulo Splits, is j.
	Splits int
}

const (
	adaptThreads = schedule.PairRows
	adaptWarps   = adaptThreads / 32
	// adaptRows is the number of rows of one mma.sync.
	adaptRows = 16
	// firstLoads is the number of 16-byte loads that a thread has in flight in the product with
	// FactorA. secondLoads is the number of its 8-byte loads of FactorB. More would spill registers.
	firstLoads, secondLoads = 12, 8
	// adaptStep is the number of elements of a row that a warp multiplies at once. Each of 4 lanes
	// loads 8 of them.
	adaptStep = 32
	// noAdapter is the number of a row without an adapter, see adapting.number.
	noAdapter = 0
)

// ctasPerSM returns the number of CTAs that run on an SM at the same time. Large ranks need too many
// registers for two.
func (a Adapt) ctasPerSM() int {
	if a.LoRARank > 16 {
		return 1
	}
	return 2
}

// depth returns the length of the input's rows. parts returns the number of parts of the results:
// gate and up, or one. width returns the number of columns of a part.
func (a Adapt) depth() int {
	if a.Down {
		return a.Intermediate
	}
	return a.Hidden
}

func (a Adapt) width() int {
	if a.Down {
		return a.Hidden
	}
	return a.Intermediate
}

func (a Adapt) parts() int {
	if a.Down {
		return 1
	}
	return a.HParts()
}

// inputBytes returns the number of bytes between the starts of two rows of the input.
func (a Adapt) inputBytes() int {
	if a.Down {
		return weights.A(a.Config).Elements() * tile.ElementBytes
	}
	return a.Hidden * tile.ElementBytes
}

// paddedRank returns the rank, rounded up to whole steps of mma.sync.
func (a Adapt) paddedRank() int { return weights.SingleU(a.Config).Elements() }

// sumColumns returns the number of columns of each warp's part of u. It is the rank, rounded up to
// the 8 columns of an mma.sync.
func (a Adapt) sumColumns() int { return (a.LoRARank + 7) / 8 * 8 }

// name returns the last word of the kernel's name.
func (a Adapt) name() string {
	if a.Down {
		return "down"
	}
	return "up"
}

// adapting is the state of an Adapt while its code is emitted.
type adapting struct {
	Adapt
	k       *ptx.Kernel
	element tile.Element
	// group is the index in the warp of the thread's group of 4 lanes. quad is the index of the
	// thread in the group.
	group, quad ptx.U32

	x, ids, scales, misses     ptx.Global
	factorA, results, a        ptx.Global
	factorB                    []ptx.Global // FactorB, and with GateUp "apart" also Factor3
	gather, table, rowPairs    ptx.Global
	scores, pairs              ptx.Global // with ScoreOnInput
	sums, u                    ptx.Shared // each warp's part of u in FP32, and the rounded u
	loads                      int        // number of 8-byte loads of FactorB that a thread has in flight
	largest, counts, list, ofT ptx.Shared // arrays of the method entries
}

// Build emits the kernel.
func (a Adapt) Build() (*jit.Kernel[AdaptArgs], error) {
	k := jit.NewBuilder[AdaptArgs]("moe_adapt_"+a.name(), adaptThreads, a.ctasPerSM())
	k.SetGrid(func(g *AdaptArgs, sms int) gpu.Dim3 {
		return gpu.Dim3{X: min(adaptEntries(g.Rows, a.NumExperts)*g.Splits, a.ctasPerSM()*sms)}
	})
	e := a.operands(k)
	tokens := k.U32(&k.Args.Tokens)
	splits := k.U32(&k.Args.Splits)
	k.GridDepLaunch()
	entries := ptx.LdGlobalAcquire(e.rowPairs) // after an acquiring load, later loads do not read stale cache lines
	if !a.Down {
		e.countMisses(tokens)
	}
	k.For(k.CtaidX(), entries.Mul(splits), k.NctaidX(), func(task ptx.U32) {
		first := task.Div(entries)
		e.entries(task.Sub(first.Mul(entries)), first, splits)
	})
	k.GridDepWait()
	return k.Build()
}

// adaptEntries returns the largest number of entries of the table of row pairs.
func adaptEntries(rows, experts int) int { return min(rows, experts) + rows/schedule.PairRows }

// AdaptSplits returns [AdaptArgs].Splits for numbers of tokens and of rows. In a small batch the
// entries are split, so that there are about two tasks for each CTA of the grid. The numbers of
// adapters in the entries differ, and a CTA with two tasks of different entries has more nearly the
// mean. The rows of an entry have at most as many adapters as there are tokens.
func AdaptSplits(c spec.Config, tokens, rows, sms int) int {
	entries := max(1, adaptEntries(rows, c.NumExperts))
	return max(1, min(c.LoRAAdapters, tokens, 2*Adapt{Config: c}.ctasPerSM()*sms/entries))
}

// operands declares the parameters and the shared memory.
func (a Adapt) operands(k *jit.Builder[AdaptArgs]) *adapting {
	e := newAdapting(a, k.Kernel)
	e.x, e.ids, e.scales = k.Ptr(&k.Args.X), k.Ptr(&k.Args.AdapterIDs), k.Ptr(&k.Args.Scales)
	e.factorA, e.factorB, e.results = k.Ptr(&k.Args.FactorA), []ptx.Global{k.Ptr(&k.Args.FactorB)}, k.Ptr(&k.Args.Results)
	if !a.Down {
		e.misses, e.a = k.Ptr(&k.Args.Misses), k.Ptr(&k.Args.A)
		if a.GateUp == spec.Apart {
			e.factorB = append(e.factorB, k.Ptr(&k.Args.Factor3))
		}
		if a.ScoreOnInput {
			e.scores = k.Ptr(&k.Args.Scores)
		}
	}
	e.gather, e.table, e.rowPairs = k.Ptr(&k.Args.Gather), k.Ptr(&k.Args.Table), k.Ptr(&k.Args.RowPairs)
	if !a.Down && a.ScoreOnInput {
		e.pairs = k.Ptr(&k.Args.Pairs)
	}
	cta := pipeline.NewCTA(k.Kernel)
	e.largest, e.counts = cta.Shared("largest", 4*adaptWarps, 16), cta.Shared("counts", 4*adaptWarps, 16)
	e.list, e.ofT = cta.Shared("list", 4*adaptThreads, 16), cta.Shared("tokens", 4*adaptThreads, 16)
	e.reserve(cta)
	return e
}

// newAdapting returns the state without operands.
func newAdapting(a Adapt, k *ptx.Kernel) *adapting {
	return &adapting{Adapt: a, k: k, element: element.Of(a.Config), group: k.Lane().ShrI(2), quad: k.Lane().AndI(3), loads: secondLoads}
}

// reserve reserves the shared memory of u.
func (e *adapting) reserve(cta *pipeline.CTA) {
	e.sums = cta.Shared("sums", adaptWarps*adaptRows*e.sumColumns()*4, 16)
	e.u = cta.Shared("u", adaptRows*e.uBytes(), 16)
}

// uBytes returns the number of bytes between two rows of u in shared memory. The 16 bytes of padding
// put the rows that a warp loads at once into different banks.
func (a Adapt) uBytes() int { return a.paddedRank()*tile.ElementBytes + 16 }

// countMisses adds to Misses the number of tokens whose id is not -1 and names no adapter.
func (e *adapting) countMisses(tokens ptx.U32) {
	k := e.k
	k.If(e.misses.Given(), func() {
		k.For(k.CtaidX().MulI(adaptThreads).Add(k.TidX()), tokens, k.NctaidX().MulI(adaptThreads), func(token ptx.U32) {
			id := ptx.LdGlobal[ptx.U32](e.ids.Index(token, 4))
			k.If(id.Not().NeI(0).And(e.number(id).EqI(noAdapter)), func() { k.RedGlobalAdd(e.misses, ptx.Uint(1)) })
		})
	})
}

// number returns 1 plus the place that id names, or noAdapter if this place has no adapter or is
// outside the table.
func (e *adapting) number(id ptx.U32) ptx.U32 {
	return ptx.Select(weights.HasAdapter(e.Config, e.scales, id), id.AddI(1), ptx.Uint(noAdapter))
}

// adapted is up to 16 rows of one expert and one adapter.
type adapted struct {
	// matrix is the index of the adapter's and expert's matrix in FactorA and FactorB. scale is the
	// adapter's scale c.
	matrix ptx.U32
	scale  ptx.F32
	// live is the number of rows. The functions take i from 0 to 15, and rows from live to 15 repeat
	// row live-1. input, row and ofA return the index of row i in the input, in the results and in
	// A. score returns the score of row i, and is used only with ScoreOnInput.
	live            ptx.U32
	input, row, ofA func(i ptx.U32) ptx.U32
	score           func(i ptx.U32) ptx.F32
}

// entries adapts rows of an entry of the table of row pairs. Each thread holds the adapter's number of
// one row. In a loop the CTA finds the largest number that is left. It skips as many numbers as
// skipped says, lists the rows with the next number, and adapts them. Then it skips the numbers of the
// entry's other tasks, of which there are splits - 1.
func (e *adapting) entries(entry, skipped, splits ptx.U32) {
	k, thread := e.k, e.k.TidX()
	words := ptx.LdGlobalVec[ptx.U32](e.table.Index(entry, schedule.PairBytes), 4)
	expert, first, rows := words[0], words[1], words[2]
	own := ptx.NewVar(k, ptx.Uint(noAdapter))
	// A task of more numbers to skip than rows has nothing to do.
	k.If(thread.Lt(rows).And(skipped.Lt(rows)), func() {
		token := ptx.LdGlobal[ptx.U32](e.gather.Index(first.Add(thread), 4))
		ptx.StShared(e.ofT.Plus(thread.ShlI(2)), token)
		own.Set(e.number(ptx.LdGlobal[ptx.U32](e.ids.Index(token, 4))))
	})
	skip := ptx.NewVar(k, skipped)
	k.Loop(func() {
		number := e.largestOf(own.Get())
		k.BreakIf(number.EqI(noAdapter))
		is := own.Get().Eq(number)
		k.IfElse(skip.Get().NeI(0), func() {
			skip.Set(skip.Get().SubI(1))
			k.BarSync(ptx.Uint(0)) // the next number overwrites the shared array
		}, func() {
			skip.Set(splits.SubI(1))
			e.adapter(number, e.listed(is), expert, first)
		})
		k.If(is, func() { own.Set(ptx.Uint(noAdapter)) })
	})
	k.BarSync(ptx.Uint(0)) // the next entry writes the shared arrays again
}

// largestOf returns the largest of the threads' numbers.
func (e *adapting) largestOf(own ptx.U32) ptx.U32 {
	k := e.k
	largest := own.ReduxMax()
	k.If(k.Lane().EqI(0), func() { ptx.StShared(e.largest.Plus(k.Warp().ShlI(2)), largest) })
	k.BarSync(ptx.Uint(0))
	return ptx.LdShared[ptx.U32](e.largest.Plus(k.Lane().AndI(adaptWarps - 1).ShlI(2))).ReduxMax()
}

// listed lists the threads for which `is` is true. It returns their number.
func (e *adapting) listed(is ptx.Pred) (total ptx.U32) {
	k, lane, warp := e.k, e.k.Lane(), e.k.Warp()
	votes := k.VoteBallot(is, ptx.Uint(ptx.FullMask))
	k.If(lane.EqI(0), func() { ptx.StShared(e.counts.Plus(warp.ShlI(2)), votes.Popc()) })
	k.BarSync(ptx.Uint(0))
	count := ptx.LdShared[ptx.U32](e.counts.Plus(lane.AndI(adaptWarps - 1).ShlI(2)))
	total = ptx.Select(lane.LtI(adaptWarps), count, ptx.Uint(0)).ReduxAdd()
	before := ptx.Select(lane.Lt(warp), count, ptx.Uint(0)).ReduxAdd()
	k.If(is, func() {
		ptx.StShared(e.list.Plus(before.Add(votes.And(k.LanemaskLt()).Popc()).ShlI(2)), k.TidX())
	})
	k.BarSync(ptx.Uint(0))
	return total
}

// adapter adapts the listed rows, which have the adapter with the given number. first is the first
// packed row of the entry.
func (e *adapting) adapter(number, total, expert, first ptx.U32) {
	k, place := e.k, number.SubI(1)
	matrix := place.MulI(e.NumExperts).Add(expert)
	k.If(k.TidX().EqI(0), func() { e.prefetchB(matrix) })
	scale := ptx.LdGlobal[ptx.F32](e.scales.Index(place, 4))
	k.For(ptx.Uint(0), total, ptx.Uint(adaptRows), func(from ptx.U32) {
		live := total.Sub(from).MinI(adaptRows)
		at := func(i ptx.U32) ptx.U32 {
			return ptx.LdShared[ptx.U32](e.list.Plus(from.Add(i.Min(live.SubI(1))).ShlI(2)))
		}
		row := func(i ptx.U32) ptx.U32 { return first.Add(at(i)) }
		input := row
		if !e.Down {
			input = func(i ptx.U32) ptx.U32 { return ptx.LdShared[ptx.U32](e.ofT.Plus(at(i).ShlI(2))) }
		}
		e.rows(adapted{matrix: matrix, scale: scale, live: live, input: input, row: row, ofA: row,
			score: func(i ptx.U32) ptx.F32 {
				return ptx.LdGlobal[ptx.F32](e.scores.Index(ptx.LdGlobal[ptx.U32](e.pairs.Index(row(i), 4)), 4))
			}})
	})
}

// prefetch starts the load of a matrix of a factor into the L2 cache. It leaves out the end of a
// matrix that is larger than an instruction may load.
func (e *adapting) prefetch(of ptx.Global, matrix ptx.U32, elements int) {
	const most = 1<<20 - 16
	bytes := elements * tile.ElementBytes
	e.k.BulkPrefetch(of.Index(matrix, bytes), ptx.Uint(min(bytes, most)))
}

// prefetchB starts the load of FactorB into the L2 cache.
func (e *adapting) prefetchB(matrix ptx.U32) {
	for _, b := range e.factorB {
		e.prefetch(b, matrix, e.LoRARank*e.width()*e.parts()/len(e.factorB))
	}
}

// The kernels of a layer with a table of adapters.
var (
	AdaptUpKernel   = adaptKernel(Adapt{})
	AdaptDownKernel = adaptKernel(Adapt{Down: true})
)

func adaptKernel(of Adapt) *registry.Kernel[AdaptArgs] {
	return &registry.Kernel[AdaptArgs]{KernelName: "adapt-" + of.name(), Only: spec.HasAdapters, From: func(c spec.Config) spec.Config {
		from := registry.OfExperts(c)
		from.TopK, from.LoRARank, from.LoRAAdapters = c.TopK, c.LoRARank, c.LoRAAdapters
		return from
	}, Emit: func(l registry.Layer) (*jit.Kernel[AdaptArgs], error) {
		a := of
		a.Config = l.Config
		return a.Build()
	}}
}
