package order

import (
	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/pipeline"
	"sonicmoe/moe/internal/lanes"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/ptx"
)

// ByToken lists the rows of each token in ascending order, with their weights. The sums over a
// token's experts need these lists if a token may have any number of experts. Each CTA has a range
// of tokens. It reads the tokens of all rows and lists the rows of its own tokens, so there is no
// sort and no grid barrier.
type ByToken struct {
	NumExperts int
}

const (
	byTokenThreads = 512
	// maxByToken is the largest number of tokens that a CTA handles.
	maxByToken = 1024
	// byTokenLoads is the number of loads that a thread has in flight.
	byTokenLoads = 4
)

// ByTokenRanges splits the tokens among the SMs for ByToken.
func ByTokenRanges(tokens, sms int) TokenRanges {
	r := RangesOf(tokens, sms)
	r.PerCTA = min(r.PerCTA, maxByToken)
	return r
}

// ByTokenArgs are the arguments of [ByToken].
type ByTokenArgs struct {
	// Offsets [E+1], Gather [R] and Pairs [R] u32 come from [Plan].
	Offsets, Gather, Pairs driver.DevicePtr
	Regrouped
	TokenRanges
}

// byToken is the state of a ByToken while its code is emitted.
type byToken struct {
	k             *ptx.Kernel
	tid           ptx.U32
	from, to      ptx.U32 // the CTA's tokens
	rows          ptx.U32 // number of rows of all tokens
	gather        ptx.Global
	before        ptx.Shared // number of rows of the tokens that come before the CTA's tokens
	start, cursor ptx.Shared // for each token, the index in TokenRows where its rows start, and the next free index
	regrouped
}

// Regrouped are the tensors that [ByToken] and [PlanSorted] write: the rows grouped by token.
// Structs of arguments embed it.
type Regrouped struct {
	// Scores [L] f32 are the weights of the L entries of the list.
	Scores driver.DevicePtr
	// These are outputs: Starts [T+1] u32, TokenRows [R] u32 and Weights [R] f32. The rows of
	// token t are TokenRows[Starts[t]:Starts[t+1]], and Weights has their weights. Unordered [R] u32
	// is scratch memory of ByToken.
	Starts, TokenRows, Weights driver.DevicePtr
	Unordered                  driver.DevicePtr
}

// regrouped has the kernel's operands for Regrouped.
type regrouped struct {
	scores, starts, tokenRows, weights, unordered ptx.Global
}

func newRegrouped(params jit.Params, r *Regrouped) regrouped {
	return regrouped{params.Ptr(&r.Scores), params.Ptr(&r.Starts), params.Ptr(&r.TokenRows), params.Ptr(&r.Weights), params.Ptr(&r.Unordered)}
}

// Build emits the kernel.
func (b ByToken) Build() (*jit.Kernel[ByTokenArgs], error) {
	k := jit.NewBuilder[ByTokenArgs]("moe_by_token", byTokenThreads, 1)
	k.CTAs(func(a *ByTokenArgs) int { return a.Count() })
	offsets, pairs := k.Ptr(&k.Args.Offsets), k.Ptr(&k.Args.Pairs)
	e := byToken{k: k.Kernel, tid: k.TidX(), gather: k.Ptr(&k.Args.Gather), regrouped: newRegrouped(k, &k.Args.Regrouped)}
	tokens, perCTA := k.U32(&k.Args.Tokens), k.U32(&k.Args.PerCTA)
	e.from = k.CtaidX().Mul(perCTA)
	e.to = e.from.Add(perCTA).Min(tokens)
	e.reserve(pipeline.NewCTA(k.Kernel))
	k.BarSync(ptx.Uint(0))
	k.GridDepWait()
	k.GridDepLaunch()
	e.rows = ptx.LdGlobal[ptx.U32](offsets.At(4 * b.NumExperts))
	e.count()
	e.regroup(tokens, func(row ptx.U32) ptx.U32 { return ptx.LdGlobal[ptx.U32](pairs.Index(row, 4)) })
	return k.Build()
}

// reserve reserves the arrays in shared memory and clears the counters.
func (e *byToken) reserve(cta *pipeline.CTA) {
	e.before = cta.Shared("before", 4, 4)
	e.start, e.cursor = cta.Shared("start", 4*maxByToken, 4), cta.Shared("cursor", 4*maxByToken, 4)
	ClearWords(e.k, e.before, 1, e.tid, byTokenThreads)
	ClearWords(e.k, e.cursor, maxByToken, e.tid, byTokenThreads)
}

// regroup lists the rows of the CTA's tokens. It runs after count. entry returns the list entry of
// a row.
func (e *byToken) regroup(tokens ptx.U32, entry func(row ptx.U32) ptx.U32) {
	k := e.k
	k.BarSync(ptx.Uint(0))
	k.If(e.tid.LtI(lanes.Count), e.scan)
	k.If(e.tid.EqI(0).And(e.to.Eq(tokens)), func() { ptx.StGlobal(e.starts.Index(tokens, 4), e.rows) })
	k.BarSync(ptx.Uint(0))
	e.eachRow(func(row, token ptx.U32) {
		k.If(e.mine(token), func() {
			ptx.StGlobal(e.unordered.Index(k.AtomSharedAdd(e.word(e.cursor, token), ptx.Uint(1)), 4), row)
		})
	})
	k.BarSync(ptx.Uint(0))
	e.order(func(row, place ptx.U32) {
		ptx.StGlobal(e.tokenRows.Index(place, 4), row)
		ptx.StGlobal(e.weights.Index(place, 4), ptx.LdGlobal[ptx.F32](e.scores.Index(entry(row), 4)))
	})
}

// word returns the address of a token's word in an array. The token is one of the CTA's.
func (e *byToken) word(array ptx.Shared, token ptx.U32) ptx.Shared {
	return array.Plus(token.Sub(e.from).ShlI(2))
}

// mine reports whether the token belongs to the CTA.
func (e *byToken) mine(token ptx.U32) ptx.Pred { return token.Sub(e.from).Lt(e.to.Sub(e.from)) }

// eachRow runs body for the thread's part of all rows, with the row's token. Past the last row
// the token is NoRow, which no CTA has.
func (e *byToken) eachRow(body func(row, token ptx.U32)) {
	k := e.k
	k.For(e.tid, e.rows, ptx.Uint(byTokenLoads*byTokenThreads), func(first ptx.U32) {
		var tokens [byTokenLoads]*ptx.Var[ptx.U32]
		for i := range tokens {
			row := first.AddI(i * byTokenThreads)
			tokens[i] = ptx.NewVar(k, ptx.Uint(NoRow))
			k.If(row.Lt(e.rows), func() { tokens[i].Set(ptx.LdGlobal[ptx.U32](e.gather.Index(row, 4))) })
		}
		for i, token := range tokens {
			body(first.AddI(i*byTokenThreads), token.Get())
		}
	})
}

// count counts the rows of each of the CTA's tokens, and of all tokens before them.
func (e *byToken) count() {
	k := e.k
	before := ptx.NewVar(k, ptx.Uint(0))
	e.eachRow(func(_, token ptx.U32) {
		before.Set(before.Get().Add(ptx.Select(token.Lt(e.from), ptx.Uint(1), ptx.Uint(0))))
		k.If(e.mine(token), func() { k.RedSharedAdd(e.word(e.cursor, token), ptx.Uint(1)) })
	})
	k.RedSharedAdd(e.before, before.Get())
}

// scan computes, from the counts, the index in TokenRows where each token's rows start. One warp runs
// it.
func (e *byToken) scan() {
	k := e.k
	at := ptx.NewVar(k, ptx.LdShared[ptx.U32](e.before))
	k.For(e.from, e.to, ptx.Uint(lanes.Count), func(first ptx.U32) {
		token := first.Add(e.tid)
		n := ptx.NewVar(k, ptx.Uint(0))
		k.If(token.Lt(e.to), func() { n.Set(ptx.LdShared[ptx.U32](e.word(e.cursor, token))) })
		up := lanes.PrefixSum(n.Get(), e.tid)
		k.If(token.Lt(e.to), func() {
			start := at.Get().Add(up).Sub(n.Get())
			ptx.StShared(e.word(e.start, token), start)
			ptx.StShared(e.word(e.cursor, token), start)
			ptx.StGlobal(e.starts.Index(token, 4), start)
		})
		at.Set(at.Get().Add(up.ShflIdx(ptx.Uint(lanes.Count - 1))))
	})
}

// order calls the function place with each row of the CTA's tokens and the row's index in TokenRows. The
// index is the start of the token's rows plus the number of the token's lower rows.
func (e *byToken) order(place func(row, place ptx.U32)) {
	k := e.k
	k.If(e.from.Lt(e.to), func() {
		first := ptx.LdShared[ptx.U32](e.start)
		last := ptx.LdShared[ptx.U32](e.word(e.cursor, e.to.Sub(ptx.Uint(1))))
		k.For(first.Add(e.tid), last, ptx.Uint(byTokenThreads), func(i ptx.U32) {
			row := ptx.LdGlobal[ptx.U32](e.unordered.Index(i, 4))
			token := ptx.LdGlobal[ptx.U32](e.gather.Index(row, 4))
			start := ptx.LdShared[ptx.U32](e.word(e.start, token))
			at := ptx.NewVar(k, start)
			k.For(start, ptx.LdShared[ptx.U32](e.word(e.cursor, token)), ptx.Uint(1), func(j ptx.U32) {
				other := ptx.LdGlobal[ptx.U32](e.unordered.Index(j, 4))
				at.Set(at.Get().Add(ptx.Select(other.Lt(row), ptx.Uint(1), ptx.Uint(0))))
			})
			place(row, at.Get())
		})
	})
}

// ByTokenKernel lists the rows of each token of a list.
var ByTokenKernel = &registry.Kernel[ByTokenArgs]{KernelName: "by-token", Only: spec.Config.HasLists, Emit: func(l registry.Layer) (*jit.Kernel[ByTokenArgs], error) {
	return ByToken{NumExperts: l.NumExperts}.Build()
}}
