package bias

import (
	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/moe/internal/element"
	"sonicmoe/moe/internal/kernel/drouter"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/route/order"
	"sonicmoe/moe/internal/route/training"
	"sonicmoe/ptx"
)

// Scores writes the scores of each token by expert, [T, E]. If a token has an expert more
// than once, the scores are added in the order of the slots. Expert ids outside [0, E) are
// skipped. A warp handles a token, and lane l handles experts l, l+32 and so on.
type Scores struct {
	NumExperts, TopK int
	// With List, the routing is a list, in which a token has any number of rows.
	List bool
}

const (
	scoresThreads = 256
	scoresWarps   = scoresThreads / 32
)

// ScoresArgs are the arguments of [Scores].
type ScoresArgs struct {
	// Scores f32 and ExpertIDs i32 are [T, K]. With List they have an element for each
	// entry of the list.
	Scores, ExpertIDs driver.DevicePtr
	// With List, Starts [T+1] u32 is the index in TokenRows of each token's first entry,
	// TokenRows [R] u32 has the tokens' packed rows, and Pairs [R] u32 has the list entry
	// of each packed row.
	Starts, TokenRows, Pairs driver.DevicePtr
	// ByExpert [T, E] f32 is the output.
	ByExpert driver.DevicePtr
	// Tokens is T.
	Tokens int
}

// Build emits the kernel.
func (s Scores) Build() (*jit.Kernel[ScoresArgs], error) {
	name := "moe_bias_scores"
	if s.List {
		name = "moe_bias_scores_list"
	}
	k := jit.NewBuilder[ScoresArgs](name, scoresThreads, 1)
	k.CTAs(func(a *ScoresArgs) int { return (a.Tokens + scoresWarps - 1) / scoresWarps })
	scores, ids, out := k.Ptr(&k.Args.Scores), k.Ptr(&k.Args.ExpertIDs), k.Ptr(&k.Args.ByExpert)
	var starts, rows, pairs ptx.Global
	if s.List {
		starts, rows, pairs = k.Ptr(&k.Args.Starts), k.Ptr(&k.Args.TokenRows), k.Ptr(&k.Args.Pairs)
	}
	tokens := k.U32(&k.Args.Tokens)
	lane := ptx.LaneOf(k.TidX())
	token := k.CtaidX().MulI(scoresWarps).Add(ptx.WarpOf(k.TidX()))
	k.GridDepWait()
	k.GridDepLaunch()
	k.If(token.Lt(tokens), func() {
		from, to := token.MulI(s.TopK), token.AddI(1).MulI(s.TopK)
		if s.List {
			at := starts.Index(token, 4)
			from, to = ptx.LdGlobal[ptx.U32](at), ptx.LdGlobal[ptx.U32](at.At(4))
		}
		sums := ptx.NewVars(k.Kernel, (s.NumExperts+31)/32, ptx.Float(0))
		k.For(from, to, ptx.Uint(32), func(first ptx.U32) {
			id, score, slot := ptx.NewVar(k.Kernel, ptx.Uint(order.NoRow)), ptx.NewVar(k.Kernel, ptx.Float(0)), first.Add(lane)
			k.If(slot.Lt(to), func() {
				if s.List {
					slot = ptx.LdGlobal[ptx.U32](pairs.Index(ptx.LdGlobal[ptx.U32](rows.Index(slot, 4)), 4))
				}
				id.Set(ptx.LdGlobal[ptx.U32](ids.Index(slot, 4)))
				score.Set(ptx.LdGlobal[ptx.F32](scores.Index(slot, 4)))
			})
			k.For(ptx.Uint(0), to.Sub(first).MinI(32), ptx.Uint(1), func(i ptx.U32) {
				in, add := id.Get().ShflIdx(i).Sub(lane), score.Get().Bits().ShflIdx(i).AsF32()
				for j, sum := range sums {
					sum.Set(ptx.Select(in.EqI(32*j), sum.Get().Add(add), sum.Get()))
				}
			})
		})
		row := out.Index(token, 4*s.NumExperts).Index(lane, 4)
		for j, sum := range sums {
			k.If(lane.AddI(32*j).LtI(s.NumExperts), func() { ptx.StGlobal(row.At(4*32*j), sum.Get()) })
		}
	})
	return k.Build()
}

// ScoresKernel is the kernel for K scores a token, and ScoresListKernel is the kernel for a list.
// B2Kernel computes the partial sums of db2 from the result of one of these two. B2RoutedKernel
// computes them from the router's choice, in which the experts of a token differ.
// [drouter.SumKernels] add the partial sums.
var (
	ScoresKernel = &registry.Kernel[ScoresArgs]{KernelName: "bias-scores", Backward: true, Only: Has, Emit: func(l registry.Layer) (*jit.Kernel[ScoresArgs], error) {
		return Scores{NumExperts: l.NumExperts, TopK: l.TopK}.Build()
	}}
	ScoresListKernel = &registry.Kernel[ScoresArgs]{KernelName: "bias-scores-list", Backward: true, Only: hasLists, Emit: func(l registry.Layer) (*jit.Kernel[ScoresArgs], error) {
		return Scores{NumExperts: l.NumExperts, List: true}.Build()
	}}
	B2Kernel = &registry.Kernel[drouter.Args]{KernelName: "db2", Backward: true, Only: Has, Emit: func(l registry.Layer) (*jit.Kernel[drouter.Args], error) {
		return buildB2(B2(l), "moe_db2")
	}}
	B2RoutedKernel = &registry.Kernel[drouter.Args]{KernelName: "db2-routed", Backward: true, Only: hasRouted, Emit: func(l registry.Layer) (*jit.Kernel[drouter.Args], error) {
		p := B2(l)
		p.TopK, p.Extra = l.TopK, false
		return buildB2(p, "moe_db2_routed")
	}}
)

func hasRouted(c spec.Config) bool { return c.Bias && training.Sparse(c) }

// B2 is the product Sᵀ·dO. The scores are rounded to the layer's element type, because the
// gradient of W2 also rounds its factor A' (activation times score).
func B2(l registry.Layer) drouter.DRouter {
	return drouter.DRouter{Hidden: l.Hidden, NumExperts: l.NumExperts, Element: element.Of(l.Config), Extra: true, Rounded: true}
}

func buildB2(p drouter.DRouter, name string) (*jit.Kernel[drouter.Args], error) {
	k, err := p.Build()
	if err == nil {
		k.Rename(name)
	}
	return k, err
}
