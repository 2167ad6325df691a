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

// Adapt adds the products of a table's adapters to the results of a product of the layer. It runs
// after the product, so that every kernel of the product, for all batches and all formats of
// weights, serves layers with a table. For a row x with expert e, whose token names adapter i:
//
//	u  = round(c_i·(x·A_ieᵀ))
//	H' = round(H + u·B1_ieᵀ), A' = round(act(H + u·B1_ieᵀ))   after Up
//	Y' = round(Y + u·B2_ieᵀ)                                  after Down
//
// The kernel neither reads nor writes the results of other rows. A CTA takes rows of one expert, and
// from these up to 16 rows of one adapter at once. Its warps share the sum of u, then the columns.
// Sums run in the same order for every number of tokens, so results do not depend on the batch.
//
// The kernel computes the first u while the product still runs. That is safe: the product launches
// this kernel after its own wait, when the plan and the product's inputs are complete. Every thread
// waits for the product before it ends, because the next kernel waits only for this one.
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
	// AdapterIDs [T] i32 has the place of each token's adapter. Scales [N] f32 has the factor c of
	// each place, 0 for a place without an adapter. The kernel after Up adds the number of tokens
	// that name no adapter, but not -1, to Misses [1] u32, unless its address is 0.
	AdapterIDs, Scales, Misses driver.DevicePtr
	// FactorA [N·E, r, in] and FactorB [N·E, out, r] are the factors. With GateUp "apart", Factor3
	// is FactorB of up.
	FactorA, FactorB, Factor3 driver.DevicePtr
	// Results [R, 2n] are H, or Y [R, d]. A is the activation, which the kernel after Up changes.
	Results, A driver.DevicePtr
	// Gather [R] u32 is the token of each packed row. Table is the table of row pairs, and RowPairs
	// has its length.
	Gather, Table, RowPairs driver.DevicePtr
	// With ScoreOnInput, Scores [T, K] f32 are the scores, and Pairs [R] u32 is the index in Scores
	// of each packed row.
	Scores, Pairs driver.DevicePtr
	// Tokens is T. Rows is R.
	Tokens, Rows int
	// Splits is the number of CTAs that share the adapters of an entry of the table.
	Splits int
}

const (
	adaptThreads = schedule.PairRows
	adaptWarps   = adaptThreads / 32
	// adaptRows is the number of rows of one mma.sync.
	adaptRows = 16
	// firstLoads is the number of 16-byte loads that a thread has in flight in the first product.
	// secondLoads is the number of 8-byte loads of the second factor. More would spill registers.
	firstLoads, secondLoads = 12, 8
	// adaptStep is the number of elements of a row that a warp multiplies at once: 8 in each thread.
	adaptStep = 32
	// noAdapter stands for a row without an adapter.
	noAdapter = 0
)

// ctasPerSM returns the number of CTAs that share the registers of an SM.
func (a Adapt) ctasPerSM() int {
	if a.LoRARank > 16 {
		return 1
	}
	return 2
}

// depth returns the length of the input's rows, width the number of columns of a part of the
// results, and parts the number of parts.
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

// inputBytes returns the distance of two rows of the input.
func (a Adapt) inputBytes() int {
	if a.Down {
		return weights.A(a.Config).Elements() * tile.ElementBytes
	}
	return a.Hidden * tile.ElementBytes
}

// paddedRank returns the rank in whole steps of mma.sync.
func (a Adapt) paddedRank() int { return (a.LoRARank + tile.KStep - 1) / tile.KStep * tile.KStep }

// sumColumns returns the number of columns of the warps' parts of u: the rank in whole products of
// mma.sync.
func (a Adapt) sumColumns() int { return (a.LoRARank + 7) / 8 * 8 }

// name returns the end of the name of the kernel.
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
	// group is the index of the thread's group of 4 lanes in its warp. quad is its index there.
	group, quad ptx.U32

	x, ids, scales, misses     ptx.Global
	factorA, results, a        ptx.Global
	factorB                    []ptx.Global // one, or those of gate and up
	gather, table, rowPairs    ptx.Global
	scores, pairs              ptx.Global // with ScoreOnInput
	sums, u                    ptx.Shared // the warps' parts of u in FP32, and u
	largest, counts, list, ofT ptx.Shared // see entries
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
	tasks := ptx.LdGlobalAcquire(e.rowPairs).Mul(splits) // after an acquiring load, later loads do not read stale cache lines
	if !a.Down {
		e.countMisses(tokens)
	}
	k.For(k.CtaidX(), tasks, k.NctaidX(), func(task ptx.U32) {
		entry := task.Div(splits)
		e.entries(entry, task.Sub(entry.Mul(splits)), splits)
	})
	k.GridDepWait()
	return k.Build()
}

// adaptEntries returns the largest number of entries of the table of row pairs.
func adaptEntries(rows, experts int) int { return min(rows, experts) + rows/schedule.PairRows }

// AdaptSplits returns Splits for a number of rows. In a small batch each CTA then has one task.
func AdaptSplits(c spec.Config, rows, sms int) int {
	entries := max(1, adaptEntries(rows, c.NumExperts))
	return max(1, min(c.LoRAAdapters, Adapt{Config: c}.ctasPerSM()*sms/entries))
}

// operands declares the parameters and the shared memory.
func (a Adapt) operands(k *jit.Builder[AdaptArgs]) *adapting {
	e := &adapting{Adapt: a, k: k.Kernel, element: element.Of(a.Config), group: k.Lane().ShrI(2), quad: k.Lane().AndI(3)}
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
	e.sums = cta.Shared("sums", adaptWarps*adaptRows*a.sumColumns()*4, 16)
	e.u = cta.Shared("u", adaptRows*a.uBytes(), 16)
	return e
}

// uBytes returns the distance of two rows of u in shared memory. It keeps the rows of a warp's loads
// in different banks.
func (a Adapt) uBytes() int { return a.paddedRank()*tile.ElementBytes + 16 }

// countMisses adds the number of tokens that name a place without an adapter to Misses.
func (e *adapting) countMisses(tokens ptx.U32) {
	k := e.k
	k.If(e.misses.Given(), func() {
		k.For(k.CtaidX().MulI(adaptThreads).Add(k.TidX()), tokens, k.NctaidX().MulI(adaptThreads), func(token ptx.U32) {
			id := ptx.LdGlobal[ptx.U32](e.ids.Index(token, 4))
			k.If(id.Not().NeI(0).And(e.number(id).EqI(noAdapter)), func() { k.RedGlobalAdd(e.misses, ptx.Uint(1)) })
		})
	})
}

// number returns the number of an adapter, which is its place plus 1, or noAdapter if the place has
// no adapter or is outside the table.
func (e *adapting) number(id ptx.U32) ptx.U32 {
	scale := ptx.LdGlobal[ptx.F32](e.scales.Index(id.MinI(e.LoRAAdapters-1), 4))
	has := id.LtI(e.LoRAAdapters).And(scale.Gt(ptx.Float(0)).Or(scale.Lt(ptx.Float(0))))
	return ptx.Select(has, id.AddI(1), ptx.Uint(noAdapter))
}

// adapted is up to 16 rows of one expert and one adapter.
type adapted struct {
	// matrix is the index of the expert's matrix in a factor, and scale is the adapter's factor c.
	matrix ptx.U32
	scale  ptx.F32
	// live is the number of rows. For row i of the 16, input returns the row of the input, row the
	// packed row, and score the score (only with ScoreOnInput). From i = live on they return what they
	// return for i = live-1.
	live       ptx.U32
	input, row func(i ptx.U32) ptx.U32
	score      func(i ptx.U32) ptx.F32
}

// entries adapts the rows of an entry of the table. It takes the adapters whose number has the given
// remainder by splits, the largest number first. Each thread knows the adapter of one row.
func (e *adapting) entries(entry, remainder, splits ptx.U32) {
	k, thread, lane, warp := e.k, e.k.TidX(), e.k.Lane(), e.k.Warp()
	words := ptx.LdGlobalVec[ptx.U32](e.table.Index(entry, schedule.PairBytes), 4)
	expert, first, rows := words[0], words[1], words[2]
	own := ptx.NewVar(k, ptx.Uint(noAdapter))
	k.If(thread.Lt(rows), func() {
		token := ptx.LdGlobal[ptx.U32](e.gather.Index(first.Add(thread), 4))
		ptx.StShared(e.ofT.Plus(thread.ShlI(2)), token)
		number := e.number(ptx.LdGlobal[ptx.U32](e.ids.Index(token, 4)))
		own.Set(ptx.Select(number.Rem(splits).Eq(remainder), number, ptx.Uint(noAdapter)))
	})
	k.Loop(func() {
		largest := own.Get().ReduxMax()
		k.If(lane.EqI(0), func() { ptx.StShared(e.largest.Plus(warp.ShlI(2)), largest) })
		k.BarSync(ptx.Uint(0))
		number := ptx.LdShared[ptx.U32](e.largest.Plus(lane.AndI(adaptWarps - 1).ShlI(2))).ReduxMax()
		k.BreakIf(number.EqI(noAdapter))
		is := own.Get().Eq(number)
		votes := k.VoteBallot(is, ptx.Uint(ptx.FullMask))
		k.If(lane.EqI(0), func() { ptx.StShared(e.counts.Plus(warp.ShlI(2)), votes.Popc()) })
		k.BarSync(ptx.Uint(0))
		count := ptx.LdShared[ptx.U32](e.counts.Plus(lane.AndI(adaptWarps - 1).ShlI(2)))
		total := ptx.Select(lane.LtI(adaptWarps), count, ptx.Uint(0)).ReduxAdd()
		before := ptx.Select(lane.Lt(warp), count, ptx.Uint(0)).ReduxAdd()
		k.If(is, func() {
			ptx.StShared(e.list.Plus(before.Add(votes.And(k.LanemaskLt()).Popc()).ShlI(2)), thread)
			own.Set(ptx.Uint(noAdapter))
		})
		k.BarSync(ptx.Uint(0))
		place := number.SubI(1)
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
			e.rows(adapted{matrix: place.MulI(e.NumExperts).Add(expert), scale: scale, live: live, input: input, row: row,
				score: func(i ptx.U32) ptx.F32 {
					return ptx.LdGlobal[ptx.F32](e.scores.Index(ptx.LdGlobal[ptx.U32](e.pairs.Index(row(i), 4)), 4))
				}})
		})
	})
	k.BarSync(ptx.Uint(0)) // the next entry writes the shared arrays again
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
