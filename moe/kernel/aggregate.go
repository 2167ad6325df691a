package kernel

import "sonicmoe/ptx"

// Aggregate is O[t] = Σ_k scores[t,k]·Y[inverse[t,k]], summed in FP32 in slot
// order and rounded once. Slots without a row add nothing. A thread owns 8
// columns of a token and has all its rows in flight at once.
type Aggregate struct {
	Hidden, TopK int
	// Unit leaves the scores out: every weight is 1, as dX needs it.
	Unit bool
	// Extra adds row t of one more [T, d] tensor to each sum, last.
	Extra bool
}

const (
	aggregateThreads = 256
	columnsOfThread  = 8
)

// CTAs is the grid for so many tokens.
func (a Aggregate) CTAs(tokens int) int {
	return (tokens*(a.Hidden/columnsOfThread) + aggregateThreads - 1) / aggregateThreads
}

// Build emits the kernel.
func (a Aggregate) Build() (Kernel, error) {
	const name = "moe_aggregate"
	k := ptx.NewKernel(name)
	k.SetLaunchBounds(aggregateThreads, 4)
	y, o := k.ParamPtr("y"), k.ParamPtr("o")
	inverse := k.ParamPtr("inverse")
	var scores, extra ptx.Global
	if !a.Unit {
		scores = k.ParamPtr("scores")
	}
	if a.Extra {
		extra = k.ParamPtr("extra")
	}
	tokens := k.ParamU32("tokens")
	slices := a.Hidden / columnsOfThread
	// 64-bit: T·d/8 may pass 2^32.
	thread := k.Special("%ctaid.x").MulWide(ptx.Uint(aggregateThreads)).Add(k.Special("%tid.x").U64())
	token := thread.DivI(slices).U32()
	slice := thread.Sub(token.MulWide(ptx.Uint(slices))).U32()
	k.GridDepWait()
	k.GridDepLaunch()
	k.If(token.Lt(tokens), func() {
		column := slice.MulI(columnsOfThread * bf16).U64()
		var last []ptx.U32
		if a.Extra {
			last = ptx.LdGlobalVec[ptx.U32](extra.Index(token, a.Hidden*bf16).Plus(column), 4, ".L1::no_allocate")
		}
		sum := make([]*ptx.Var[ptx.F32], columnsOfThread)
		for i := range sum {
			sum[i] = ptx.NewVar(k, ptx.Float(0))
		}
		const inFlight = 8
		for first := 0; first < a.TopK; first += inFlight {
			n := min(inFlight, a.TopK-first)
			a.add(k, y.Plus(column), inverse, scores, token, first, n, sum)
		}
		for i, v := range last {
			lo, hi := v.AsBF16x2().Unpack()
			sum[2*i].Set(sum[2*i].Get().Add(lo))
			sum[2*i+1].Set(sum[2*i+1].Get().Add(hi))
		}
		out := make([]ptx.U32, columnsOfThread/2)
		for i := range out {
			out[i] = k.PackBF16(sum[2*i].Get(), sum[2*i+1].Get()).Bits()
		}
		ptx.StGlobal(o.Index(token, a.Hidden*bf16).Plus(column), out...)
	})
	return build(k, name, aggregateThreads, 0)
}

// add loads n rows of Y from slot first on, then adds them in order.
func (a Aggregate) add(k *ptx.Kernel, y, inverse, scores ptx.Global, token ptx.U32, first, n int, sum []*ptx.Var[ptx.F32]) {
	row := make([]ptx.U32, n)
	score := make([]ptx.F32, n)
	values := make([][]*ptx.Var[ptx.U32], n)
	at := inverse.Index(token, 4*a.TopK).At(4 * first)
	for i := range n {
		row[i], score[i] = ptx.LdGlobal[ptx.U32](at.At(4*i)), ptx.Float(1)
	}
	if !a.Unit {
		scoreAt := scores.Index(token, 4*a.TopK).At(4 * first)
		for i := range n {
			score[i] = ptx.LdGlobal[ptx.F32](scoreAt.At(4 * i))
		}
	}
	for i := range n {
		has := row[i].Ne(ptx.Uint(NoRow))
		for range columnsOfThread / 2 {
			values[i] = append(values[i], ptx.NewVar(k, ptx.Uint(0)))
		}
		k.If(has, func() {
			for j, v := range ptx.LdGlobalVec[ptx.U32](y.Index(row[i], a.Hidden*bf16), 4, ".L1::no_allocate") {
				values[i][j].Set(v)
			}
		})
		if !a.Unit {
			// A slot without a row adds nothing, whatever its score.
			score[i] = ptx.Select(has, score[i], ptx.Float(0))
		}
	}
	for i := range n {
		for j, v := range values[i] {
			lo, hi := v.Get().AsBF16x2().Unpack()
			sum[2*j].Set(lo.Fma(score[i], sum[2*j].Get()))
			sum[2*j+1].Set(hi.Fma(score[i], sum[2*j+1].Get()))
		}
	}
}
