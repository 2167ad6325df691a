package kernel

import (
	"slices"

	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/element"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/route/order"
	"sonicmoe/ptx"
)

// Aggregate computes O[t] = Σ_k scores[t,k]·Y[inverse[t,k]], the sum over the K slots of token t.
// The sum is in FP32 in the order of the slots, and is rounded once. A slot without a row adds
// nothing. A thread computes 8 columns of a token, with the loads of up to 8 rows in flight.
type Aggregate struct {
	Hidden, TopK int
	// Element is the type of rows and sums.
	Element tile.Element
	// Unit makes every weight 1, as the sum of the rows of dX needs it. ScoreOnInput makes the
	// weights of the slots 1, because the up-projection has used the scores already; the shared
	// experts' row still has its score.
	Unit, ScoreOnInput bool
	// Shared adds row t of the shared experts after the slots. With SharedGate the row is
	// multiplied by its score, unless Unit is set.
	Shared, SharedGate bool
	// Extra adds row t of AddRows to each sum, as the last term.
	Extra bool
	// With List, a token has any number of rows, listed by order.ByToken, instead of TopK
	// slots. TopK is then the expected number of rows of a token.
	List bool
	// With Early, the kernel loads the row numbers and scores of the first slots before
	// griddepcontrol.wait, while the down-projection still runs. That is safe: this kernel
	// starts only after the down-projection's own wait, when everything that writes row
	// numbers and scores is done. Early helps only small batches. Large batches have enough
	// CTAs to hide these loads.
	Early bool
}

const (
	aggregateThreads = 256
	columnsOfThread  = 8
)

// AggregateArgs are the arguments of [Aggregate]. Tensors without a stated type have its
// Element type.
type AggregateArgs struct {
	// Y [R, d] are the packed rows.
	Y driver.DevicePtr
	// O [T, d] is an output: the sums.
	O driver.DevicePtr
	// Inverse [T, K] u32 is the packed row of each (token, slot), or order.NoRow. With List,
	// TokenRows [R] u32 takes its place: the packed rows of token 0, then those of token 1, and so on.
	Inverse, TokenRows driver.DevicePtr
	// Scores [T, K] f32 are the weights. With Unit or ScoreOnInput they are not read.
	Scores driver.DevicePtr
	// With List, Starts [T+1] u32 is the first index of each token in TokenRows and Scores, which
	// have R elements each.
	Starts driver.DevicePtr
	// SharedRows [T, d] are the rows of the shared experts. SharedScores [T] f32 are their
	// scores.
	SharedRows   driver.DevicePtr
	SharedScores driver.DevicePtr
	// With Extra, AddRows [T, d] has the rows that are added last.
	AddRows driver.DevicePtr
	// Tokens is T.
	Tokens int
}

// inFlight is the number of rows of a token that are loaded at once.
func (a Aggregate) inFlight() int {
	if a.List {
		return min(8, max(4, a.TopK))
	}
	return 8
}

// Build emits the kernel.
func (a Aggregate) Build() (*jit.Kernel[AggregateArgs], error) {
	k := jit.NewBuilder[AggregateArgs](a.name(), aggregateThreads, a.ctasPerSM())
	threadsOfToken := a.Hidden / columnsOfThread
	k.CTAs(func(g *AggregateArgs) int {
		return (g.Tokens*threadsOfToken + aggregateThreads - 1) / aggregateThreads
	})
	e := a.operands(k)
	tokens := k.U32(&k.Args.Tokens)

	token, slice := tile.ChunkOf(k.CtaidX(), k.TidX(), aggregateThreads, threadsOfToken)

	first := func() rowsOfToken { return e.slots(token, 0) }
	if a.Early {
		early := e.slots(token.Min(tokens.SubI(1)), 0)
		first = func() rowsOfToken { return early }
	}
	k.GridDepWait()
	k.GridDepLaunch()
	k.If(token.Lt(tokens), func() { e.slice(token, slice, first) })
	return k.Build()
}

// name returns the name of the kernel's entry, which errors show.
func (a Aggregate) name() string {
	name := "moe_aggregate"
	if a.Unit {
		name = "moe_sum"
	}
	if a.Extra {
		name += "_extra"
	}
	if a.List {
		name += "_list"
	}
	if a.Early {
		name += "_early"
	}
	return name
}

// ctasPerSM returns the number of CTAs that share an SM's registers. The fewer rows a
// thread has in flight, the more CTAs fit.
func (a Aggregate) ctasPerSM() int {
	if a.List && a.inFlight() == 4 {
		return 6
	}
	return 4
}

// aggregation is the state of an Aggregate while its code is emitted.
type aggregation struct {
	Aggregate
	k                    *ptx.Kernel
	y, o, scores         ptx.Global
	inverse              ptx.Global // without List
	starts, tokenRows    ptx.Global // with List
	extra                ptx.Global // with Extra
	shared, sharedScores ptx.Global // shared is declared with Shared, and sharedScores with SharedGate
}

// operands declares the tensors that the options need.
func (a Aggregate) operands(k *jit.Builder[AggregateArgs]) *aggregation {
	e := &aggregation{Aggregate: a, k: k.Kernel, y: k.Ptr(&k.Args.Y), o: k.Ptr(&k.Args.O)}
	if a.List {
		e.tokenRows = k.Ptr(&k.Args.TokenRows)
	} else {
		e.inverse = k.Ptr(&k.Args.Inverse)
	}
	if a.weighted() {
		e.scores = k.Ptr(&k.Args.Scores)
	}
	if a.Shared {
		e.shared = k.Ptr(&k.Args.SharedRows)
	}
	if a.sharedWeighted() {
		e.sharedScores = k.Ptr(&k.Args.SharedScores)
	}
	if a.Extra {
		e.extra = k.Ptr(&k.Args.AddRows)
	}
	if a.List {
		e.starts = k.Ptr(&k.Args.Starts)
	}
	return e
}

// weighted reports whether the rows of the slots have scores.
func (a Aggregate) weighted() bool { return !a.Unit && !a.ScoreOnInput }

// sharedWeighted reports whether the rows of the shared experts have scores.
func (a Aggregate) sharedWeighted() bool { return a.SharedGate && !a.Unit }

// rowsOfToken has the numbers and weights of some packed rows of one token. The number is NoRow for
// a slot without a row.
type rowsOfToken struct {
	number []ptx.U32
	weight []ptx.F32
}

// slice computes a thread's columns of one token. The function first loads the row numbers and
// weights of the token's first slots.
func (e *aggregation) slice(token, slice ptx.U32, first func() rowsOfToken) {
	k := e.k
	column := slice.MulI(columnsOfThread * tile.ElementBytes).U64()
	row := func(of ptx.Global) []ptx.U32 {
		return ptx.LdGlobalVec[ptx.U32](of.Index(token, e.Hidden*tile.ElementBytes).Plus(column), 4, ".L1::no_allocate")
	}
	var last, ofShared []ptx.U32
	if e.Extra {
		last = row(e.extra)
	}
	sharedScore := ptx.Float(1)
	if e.Shared {
		ofShared = row(e.shared)
	}
	if e.sharedWeighted() {
		sharedScore = ptx.LdGlobal[ptx.F32](e.sharedScores.Index(token, 4))
	}
	sum := make([]*ptx.Var[ptx.F32], columnsOfThread)
	for i := range sum {
		sum[i] = ptx.NewVar(k, ptx.Float(0))
	}
	inFlight := e.inFlight()
	if e.List {
		from, to := ptx.LdGlobal[ptx.U32](e.starts.Index(token, 4)), ptx.LdGlobal[ptx.U32](e.starts.Index(token, 4).At(4))
		k.For(from, to, ptx.Uint(inFlight), func(at ptx.U32) {
			rows := e.listed(at, to, inFlight)
			e.add(e.y.Plus(column), rows, sum)
		})
	} else {
		for slot := 0; slot < e.TopK; slot += inFlight {
			at, load := e.y.Plus(column), first
			if slot > 0 {
				load = func() rowsOfToken { return e.slots(token, slot) }
			}
			e.add(at, load(), sum)
		}
	}
	for i, v := range ofShared {
		lo, hi := e.Element.Unpack(v)
		sum[2*i].Set(lo.Fma(sharedScore, sum[2*i].Get()))
		sum[2*i+1].Set(hi.Fma(sharedScore, sum[2*i+1].Get()))
	}
	for i, v := range last {
		lo, hi := e.Element.Unpack(v)
		sum[2*i].Set(sum[2*i].Get().Add(lo))
		sum[2*i+1].Set(sum[2*i+1].Get().Add(hi))
	}
	out := make([]ptx.U32, columnsOfThread/2)
	for i := range out {
		out[i] = e.Element.Pack(k, sum[2*i].Get(), sum[2*i+1].Get())
	}
	ptx.StGlobal(e.o.Index(token, e.Hidden*tile.ElementBytes).Plus(column), out...)
}

// slots loads the row numbers and weights of the slots from first on, at most inFlight of
// them.
func (e *aggregation) slots(token ptx.U32, first int) (rows rowsOfToken) {
	n := min(e.inFlight(), e.TopK-first)
	at := e.inverse.Index(token, 4*e.TopK).At(4 * first)
	for i := range n {
		if i == 0 && first == 0 && e.Early {
			rows.number = append(rows.number, ptx.LdGlobalAcquire(at)) // after an acquiring load, later loads do not read stale cache lines
		} else {
			rows.number = append(rows.number, ptx.LdGlobal[ptx.U32](at.At(4*i)))
		}
		rows.weight = append(rows.weight, ptx.Float(1))
	}
	if e.weighted() {
		scoreAt := e.scores.Index(token, 4*e.TopK).At(4 * first)
		for i := range n {
			rows.weight[i] = ptx.LdGlobal[ptx.F32](scoreAt.At(4 * i))
		}
	}
	return rows
}

// listed loads n row numbers and weights from index first of TokenRows and Scores on. From index
// end on, the row number is NoRow.
func (e *aggregation) listed(first, end ptx.U32, n int) (rows rowsOfToken) {
	for i := range n {
		place, r, s := first.AddI(i), ptx.NewVar(e.k, ptx.Uint(order.NoRow)), ptx.NewVar(e.k, ptx.Float(1))
		e.k.If(place.Lt(end), func() {
			r.Set(ptx.LdGlobal[ptx.U32](e.tokenRows.Index(place, 4)))
			if e.weighted() {
				s.Set(ptx.LdGlobal[ptx.F32](e.scores.Index(place, 4)))
			}
		})
		rows.number, rows.weight = append(rows.number, r.Get()), append(rows.weight, s.Get())
	}
	return rows
}

// add loads the given rows of Y, all at once, then adds them in order.
func (e *aggregation) add(y ptx.Global, rows rowsOfToken, sum []*ptx.Var[ptx.F32]) {
	k, row, n := e.k, rows.number, len(rows.number)
	score := slices.Clone(rows.weight)
	values := make([][]*ptx.Var[ptx.U32], n)
	for i := range n {
		has := row[i].Ne(ptx.Uint(order.NoRow))
		for range columnsOfThread / 2 {
			values[i] = append(values[i], ptx.NewVar(k, ptx.Uint(0)))
		}
		k.If(has, func() {
			for j, v := range ptx.LdGlobalVec[ptx.U32](y.Index(row[i], e.Hidden*tile.ElementBytes), 4, ".L1::no_allocate") {
				values[i][j].Set(v)
			}
		})
		if e.weighted() {
			// A slot without a row must add nothing, even if its score is NaN.
			score[i] = ptx.Select(has, score[i], ptx.Float(0))
		}
	}
	for i := range n {
		for j, v := range values[i] {
			lo, hi := e.Element.Unpack(v.Get())
			sum[2*j].Set(lo.Fma(score[i], sum[2*j].Get()))
			sum[2*j+1].Set(hi.Fma(score[i], sum[2*j+1].Get()))
		}
	}
}

// AggregateKernel computes O for large batches, EarlyAggregateKernel for small ones.
// SumKernel and SumExtraKernel compute dX. The kernels with List in their name do the same
// for a list.
var (
	AggregateKernel = &registry.Kernel[AggregateArgs]{KernelName: "aggregate", Roofline: registry.Works{spec.AggregateWork}, Emit: func(l registry.Layer) (*jit.Kernel[AggregateArgs], error) {
		return aggregateOf(l, Aggregate{TopK: l.TopK})
	}}
	EarlyAggregateKernel = &registry.Kernel[AggregateArgs]{KernelName: "aggregate-early", Emit: func(l registry.Layer) (*jit.Kernel[AggregateArgs], error) {
		return aggregateOf(l, Aggregate{TopK: l.TopK, Early: true})
	}}
	SumKernel = &registry.Kernel[AggregateArgs]{KernelName: "sum", Backward: true, Roofline: registry.Works{spec.AggregateWork}, Emit: func(l registry.Layer) (*jit.Kernel[AggregateArgs], error) {
		return aggregateOf(l, Aggregate{TopK: l.TopK, Unit: true})
	}}
	SumExtraKernel = &registry.Kernel[AggregateArgs]{KernelName: "sum-extra", Backward: true, Roofline: registry.Works{spec.AggregateWork}, Emit: func(l registry.Layer) (*jit.Kernel[AggregateArgs], error) {
		return aggregateOf(l, Aggregate{TopK: l.TopK, Unit: true, Extra: true})
	}}
	AggregateListKernel = &registry.Kernel[AggregateArgs]{KernelName: "aggregate-list", Only: spec.Config.HasLists, Emit: func(l registry.Layer) (*jit.Kernel[AggregateArgs], error) {
		return aggregateOf(l, Aggregate{TopK: l.TopK, List: true})
	}}
	SumListKernel = &registry.Kernel[AggregateArgs]{KernelName: "sum-list", Backward: true, Only: spec.Config.HasLists, Emit: func(l registry.Layer) (*jit.Kernel[AggregateArgs], error) {
		return aggregateOf(l, Aggregate{TopK: l.TopK, Unit: true, List: true})
	}}
	SumExtraListKernel = &registry.Kernel[AggregateArgs]{KernelName: "sum-extra-list", Backward: true, Only: spec.Config.Rounds, Emit: func(l registry.Layer) (*jit.Kernel[AggregateArgs], error) {
		return aggregateOf(l, Aggregate{TopK: l.TopK, Unit: true, Extra: true, List: true})
	}}
)

// aggregateOf returns an Aggregate with the layer's sizes, scores and shared experts.
func aggregateOf(l registry.Layer, a Aggregate) (*jit.Kernel[AggregateArgs], error) {
	a.Hidden, a.Element = l.Hidden, element.Of(l.Config)
	a.ScoreOnInput, a.Shared, a.SharedGate = l.ScoreOnInput, l.SharedExperts > 0, l.SharedGate
	return a.Build()
}
