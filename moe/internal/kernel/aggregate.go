package kernel

import (
	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/element"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/route/order"
	"sonicmoe/ptx"
)

// Aggregate is O[t] = Σ_k scores[t,k]·Y[inverse[t,k]], summed in FP32 in slot
// order and rounded once. Slots without a row add nothing. A thread owns 8
// columns of a token and has all its rows in flight at once.
type Aggregate struct {
	Hidden, TopK int
	// Element is that of rows and sums.
	Element tile.Element
	// Unit leaves the scores out: every weight is 1, as dX needs it. ScoreOnInput
	// leaves those of the slots out.
	Unit, ScoreOnInput bool
	// Shared adds row t of the shared experts behind the slots, with SharedGate
	// times its score unless Unit.
	Shared, SharedGate bool
	// Extra adds row t of one more [T, d] tensor to each sum, last.
	Extra bool
	// List: tokens have any number of rows, as order.ByToken lists them, about
	// TopK, instead of TopK slots.
	List bool
	// Early loads rows and scores of the first slots while the down-projection is under
	// way. That let this kernel start behind its own wait for the up-projection, and so
	// for all that makes them. It saves few tokens the time; many have CTAs enough that
	// wait for other things meanwhile.
	Early bool
}

const (
	aggregateThreads = 256
	columnsOfThread  = 8
)

// AggregateArgs are the arguments of [Aggregate]. Tensors without another type
// are of its Element.
type AggregateArgs struct {
	// Y [R, d] are the packed rows.
	Y driver.DevicePtr
	// O [T, d] is written.
	O driver.DevicePtr
	// Inverse [T, K] u32 is the packed row of each (token, slot), or order.NoRow.
	Inverse driver.DevicePtr
	// Scores [T, K] f32 are the weights, unless these are 1.
	Scores driver.DevicePtr
	// With List, Starts [T+1] u32 says where a token's rows begin in Inverse and
	// Scores, which are [R].
	Starts driver.DevicePtr
	// SharedRows [T, d] bf16 and SharedScores [T] f32 are the shared experts'.
	SharedRows   driver.DevicePtr
	SharedScores driver.DevicePtr
	// AddRows [T, d] are added last, with Extra.
	AddRows driver.DevicePtr
	// Tokens is T.
	Tokens int
}

// inFlight is how many rows of a token are loaded at once.
func (a Aggregate) inFlight() int {
	if a.List {
		return min(8, max(4, a.TopK))
	}
	return 8
}

// Build emits the kernel.
func (a Aggregate) Build() (*jit.Kernel[AggregateArgs], error) {
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
	ctas := 4
	if a.List && a.inFlight() == 4 {
		ctas = 6 // they have the registers then, and take 16 % less time
	}
	k := jit.NewBuilder[AggregateArgs](name, aggregateThreads, ctas)
	k.CTAs(func(g *AggregateArgs) int {
		return (g.Tokens*(a.Hidden/columnsOfThread) + aggregateThreads - 1) / aggregateThreads
	})
	e := &aggregation{Aggregate: a, k: k.Kernel, y: k.Ptr(&k.Args.Y), o: k.Ptr(&k.Args.O), inverse: k.Ptr(&k.Args.Inverse)}
	if a.weighted() {
		e.scores = k.Ptr(&k.Args.Scores)
	}
	if a.Shared {
		e.shared = k.Ptr(&k.Args.SharedRows)
	}
	if e.sharedWeighted() {
		e.sharedScores = k.Ptr(&k.Args.SharedScores)
	}
	if a.Extra {
		e.extra = k.Ptr(&k.Args.AddRows)
	}
	if a.List {
		e.starts = k.Ptr(&k.Args.Starts)
	}
	tokens := k.U32(&k.Args.Tokens)
	slices := a.Hidden / columnsOfThread
	// 64-bit: T·d/8 may pass 2^32.
	thread := k.CtaidX().MulWide(ptx.Uint(aggregateThreads)).Add(k.TidX().U64())
	token := thread.DivI(slices).U32()
	slice := thread.Sub(token.MulWide(ptx.Uint(slices))).U32()
	if a.Early {
		e.row, e.score = a.slots(e.inverse, e.scores, token.Min(tokens.SubI(1)), 0, min(e.inFlight(), e.TopK))
	}
	k.GridDepWait()
	k.GridDepLaunch()
	k.If(token.Lt(tokens), func() { e.slice(token, slice) })
	return k.Build()
}

// aggregation is the emission of an Aggregate.
type aggregation struct {
	Aggregate
	k                     *ptx.Kernel
	y, o, inverse, scores ptx.Global
	extra                 ptx.Global // with Extra
	shared, sharedScores  ptx.Global // with Shared, and its gate
	starts                ptx.Global // with List
	// row and score are those of the first slots, with Early.
	row   []ptx.U32
	score []ptx.F32
}

// weighted: the slots' rows have scores.
func (a Aggregate) weighted() bool { return !a.Unit && !a.ScoreOnInput }

// sharedWeighted: the shared experts' rows have scores.
func (a Aggregate) sharedWeighted() bool { return a.SharedGate && !a.Unit }

// slice makes a thread's columns of a token.
func (e *aggregation) slice(token, slice ptx.U32) {
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
		k.For(from, to, ptx.Uint(inFlight), func(first ptx.U32) {
			row, score := e.listed(k, e.inverse, e.scores, first, to, inFlight)
			e.add(k, e.y.Plus(column), row, score, sum)
		})
	} else {
		for first := 0; first < e.TopK; first += inFlight {
			at := e.y.Plus(column)
			row, score := e.row, e.score
			if first > 0 || !e.Early {
				row, score = e.slots(e.inverse, e.scores, token, first, min(inFlight, e.TopK-first))
			}
			e.add(k, at, row, score, sum)
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

// slots are the rows and weights of n slots from the first on.
func (a Aggregate) slots(inverse, scores ptx.Global, token ptx.U32, first, n int) (row []ptx.U32, score []ptx.F32) {
	row, score = make([]ptx.U32, n), make([]ptx.F32, n)
	at := inverse.Index(token, 4*a.TopK).At(4 * first)
	for i := range n {
		if i == 0 && first == 0 && a.Early {
			row[i] = ptx.LdGlobalAcquire(at) // behind which nothing is from a stale cache
		} else {
			row[i] = ptx.LdGlobal[ptx.U32](at.At(4 * i))
		}
		score[i] = ptx.Float(1)
	}
	if a.weighted() {
		scoreAt := scores.Index(token, 4*a.TopK).At(4 * first)
		for i := range n {
			score[i] = ptx.LdGlobal[ptx.F32](scoreAt.At(4 * i))
		}
	}
	return row, score
}

// listed are the rows and weights of n places from the first on, none past the
// end.
func (a Aggregate) listed(k *ptx.Kernel, inverse, scores ptx.Global, first, end ptx.U32, n int) (row []ptx.U32, score []ptx.F32) {
	for i := range n {
		place, r, s := first.AddI(i), ptx.NewVar(k, ptx.Uint(order.NoRow)), ptx.NewVar(k, ptx.Float(1))
		k.If(place.Lt(end), func() {
			r.Set(ptx.LdGlobal[ptx.U32](inverse.Index(place, 4)))
			if a.weighted() {
				s.Set(ptx.LdGlobal[ptx.F32](scores.Index(place, 4)))
			}
		})
		row, score = append(row, r.Get()), append(score, s.Get())
	}
	return row, score
}

// add loads rows of Y, all at once, then adds them in order.
func (a Aggregate) add(k *ptx.Kernel, y ptx.Global, row []ptx.U32, score []ptx.F32, sum []*ptx.Var[ptx.F32]) {
	n := len(row)
	values := make([][]*ptx.Var[ptx.U32], n)
	for i := range n {
		has := row[i].Ne(ptx.Uint(order.NoRow))
		for range columnsOfThread / 2 {
			values[i] = append(values[i], ptx.NewVar(k, ptx.Uint(0)))
		}
		k.If(has, func() {
			for j, v := range ptx.LdGlobalVec[ptx.U32](y.Index(row[i], a.Hidden*tile.ElementBytes), 4, ".L1::no_allocate") {
				values[i][j].Set(v)
			}
		})
		if a.weighted() {
			// A slot without a row adds nothing, whatever its score.
			score[i] = ptx.Select(has, score[i], ptx.Float(0))
		}
	}
	for i := range n {
		for j, v := range values[i] {
			lo, hi := a.Element.Unpack(v.Get())
			sum[2*j].Set(lo.Fma(score[i], sum[2*j].Get()))
			sum[2*j+1].Set(hi.Fma(score[i], sum[2*j+1].Get()))
		}
	}
}

// AggregateKernel makes O, EarlyAggregateKernel that of few tokens; SumKernel and
// SumExtraKernel make dX. Of each there is one for lists.
var (
	AggregateKernel = &registry.Kernel[AggregateArgs]{KernelName: "aggregate", Roofline: aggregateWork, Emit: func(l registry.Layer) (*jit.Kernel[AggregateArgs], error) {
		return aggregateOf(l, Aggregate{TopK: l.TopK})
	}}
	EarlyAggregateKernel = &registry.Kernel[AggregateArgs]{KernelName: "aggregate-early", Emit: func(l registry.Layer) (*jit.Kernel[AggregateArgs], error) {
		return aggregateOf(l, Aggregate{TopK: l.TopK, Early: true})
	}}
	SumKernel = &registry.Kernel[AggregateArgs]{KernelName: "sum", Backward: true, Roofline: aggregateWork, Emit: func(l registry.Layer) (*jit.Kernel[AggregateArgs], error) {
		return aggregateOf(l, Aggregate{TopK: l.TopK, Unit: true})
	}}
	SumExtraKernel = &registry.Kernel[AggregateArgs]{KernelName: "sum-extra", Backward: true, Roofline: aggregateWork, Emit: func(l registry.Layer) (*jit.Kernel[AggregateArgs], error) {
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

// aggregateOf is a sum of a layer's, with its shared experts.
func aggregateOf(l registry.Layer, a Aggregate) (*jit.Kernel[AggregateArgs], error) {
	a.Hidden, a.Element = l.Hidden, element.Of(l.Config)
	a.ScoreOnInput, a.Shared, a.SharedGate = l.ScoreOnInput, l.SharedExperts > 0, l.SharedGate
	return a.Build()
}

func aggregateWork(c spec.Config, tokens int) []spec.Work {
	return []spec.Work{c.AggregateWork(tokens)}
}
