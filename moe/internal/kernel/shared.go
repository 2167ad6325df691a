package kernel

import (
	"sonicmoe/driver"
	"sonicmoe/jit"
	"sonicmoe/jit/schedule"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/activation"
	"sonicmoe/moe/internal/element"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/ptx"
)

// EveryToken is the plan of the shared experts: one expert to which every token goes, so
// that packed row t is token t. With Gate, a warp handles a token, and the score of a row
// is sigmoid(x·wg). Otherwise a thread handles a token, and the score is 1.
type EveryToken struct {
	Hidden int
	Gate   bool
	// Element is the type of tokens and the gate's weights.
	Element tile.Element
}

const everyTokenThreads = 256

// EveryTokenArgs are the arguments of [EveryToken].
type EveryTokenArgs struct {
	// With Gate, X [T, d] are the tokens and Gate [d] the gate's weights.
	X    driver.DevicePtr
	Gate driver.DevicePtr
	// Rows [T] u32 is an output: 0, 1, 2 and so on. It serves as the token of each row, the
	// row of each token, and the index of each row in Scores.
	Rows driver.DevicePtr
	// ExpertIDs [T] i32, all 0, and Scores [T] f32 are outputs.
	ExpertIDs driver.DevicePtr
	Scores    driver.DevicePtr
	// Offsets [2] u32, Table, RowPairs and Tickets are outputs, as in order.Plan.
	Offsets  driver.DevicePtr
	Table    driver.DevicePtr
	RowPairs driver.DevicePtr
	Tickets  driver.DevicePtr
	// Tokens is T, at least 1.
	Tokens int
}

// TableBytes returns the size of the table of row pairs.
func (e EveryToken) TableBytes(tokens int) int64 {
	return schedule.PairBytes * ((int64(tokens) + schedule.PairRows - 1) / schedule.PairRows)
}

// perCTA returns the number of tokens that a CTA handles.
func (e EveryToken) perCTA() int {
	if e.Gate {
		return everyTokenThreads / 32
	}
	return everyTokenThreads
}

// Build emits the kernel.
func (e EveryToken) Build() (*jit.Kernel[EveryTokenArgs], error) {
	k := jit.NewBuilder[EveryTokenArgs]("moe_every_token", everyTokenThreads, 1)
	k.CTAs(func(a *EveryTokenArgs) int { return (a.Tokens + e.perCTA() - 1) / e.perCTA() })
	rows, ids, scores := k.Ptr(&k.Args.Rows), k.Ptr(&k.Args.ExpertIDs), k.Ptr(&k.Args.Scores)
	offsets, table := k.Ptr(&k.Args.Offsets), k.Ptr(&k.Args.Table)
	pairs, tickets := k.Ptr(&k.Args.RowPairs), k.Ptr(&k.Args.Tickets)
	var x, gate ptx.Global
	if e.Gate {
		x, gate = k.Ptr(&k.Args.X), k.Ptr(&k.Args.Gate)
	}
	tokens, tid := k.U32(&k.Args.Tokens), k.TidX()
	token, writes := tid, ptx.True()
	if e.Gate {
		token, writes = k.Warp(), k.Lane().EqI(0)
	}
	token = k.CtaidX().MulI(e.perCTA()).Add(token)
	k.GridDepWait()
	k.GridDepLaunch()
	k.If(token.Lt(tokens), func() {
		score := ptx.Float(1)
		if e.Gate {
			score = activation.Sigmoid(e.dot(k.Kernel, x.Index(token, e.Hidden*tile.ElementBytes), gate, k.Lane()))
		}
		k.If(writes, func() {
			ptx.StGlobal(rows.Index(token, 4), token)
			ptx.StGlobal(ids.Index(token, 4), ptx.Uint(0))
			ptx.StGlobal(scores.Index(token, 4), score)
			k.If(token.RemI(schedule.PairRows).EqI(0), func() {
				entry := table.Index(token.DivI(schedule.PairRows), schedule.PairBytes)
				ptx.StGlobal(entry, ptx.Uint(0), token, tokens.Sub(token).Min(ptx.Uint(schedule.PairRows)), ptx.Uint(0))
			})
			k.If(token.EqI(0), func() {
				ptx.StGlobal(offsets, ptx.Uint(0), tokens)
				ptx.StGlobal(pairs, tokens.AddI(schedule.PairRows-1).DivI(schedule.PairRows))
				schedule.ClearTickets(tickets)
			})
		})
	})
	return k.Build()
}

// dot returns the product of a token with the gate's weights, in every lane of its warp.
// Each lane adds its columns in order; then the sums of the lanes are added.
func (e EveryToken) dot(k *ptx.Kernel, x, gate ptx.Global, lane ptx.U32) ptx.F32 {
	const columns = tile.CopyBytes / tile.ElementBytes
	sum := ptx.NewVar(k, ptx.Float(0))
	k.For(lane, ptx.Uint(e.Hidden/columns), ptx.Uint(32), func(chunk ptx.U32) {
		a, b := ptx.LdGlobalVec[ptx.U32](x.Index(chunk, tile.CopyBytes), 4), ptx.LdGlobalVec[ptx.U32](gate.Index(chunk, tile.CopyBytes), 4)
		for i := range a {
			a0, a1 := e.Element.Unpack(a[i])
			b0, b1 := e.Element.Unpack(b[i])
			sum.Set(a1.Fma(b1, a0.Fma(b0, sum.Get())))
		}
	})
	k.BarWarpSync(ptx.Uint(ptx.FullMask))
	all := sum.Get()
	for _, lanes := range []int{16, 8, 4, 2, 1} {
		all = all.Add(all.Bits().ShflXor(lanes).AsF32())
	}
	return all
}

// EveryTokenKernel is the plan of the layer of shared experts.
var EveryTokenKernel = &registry.Kernel[EveryTokenArgs]{KernelName: "every-token", Emit: func(l registry.Layer) (*jit.Kernel[EveryTokenArgs], error) {
	return EveryToken{Hidden: l.Hidden, Gate: l.SharedGate, Element: element.Of(l.Config)}.Build()
}}
