package bias

import (
	"sonicmoe/driver"
	"sonicmoe/jit"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/element"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/ptx"
)

// Dot is dO[t]·b2[e] of each (token, slot), 0 where the expert's id is outside
// [0, E). A warp owns a token. With List it is that of each entry of a list, a
// token with one slot.
type Dot struct {
	Hidden, NumExperts, TopK int
	// Element is that of dO and b2.
	Element tile.Element
	List    bool
}

const (
	dotThreads = 256
	dotWarps   = dotThreads / 32
	// dotSlots are the slots that a pass over the token's row takes together.
	dotSlots = 8
	// copied is the elements of a load.
	copied = 16 / tile.ElementBytes
)

// DotArgs are the arguments of [Dot].
type DotArgs struct {
	// DO [T, d] is the gradient of O, B2 [E, d] the bias, ExpertIDs
	// [T, K] i32 the experts.
	DO        driver.DevicePtr
	B2        driver.DevicePtr
	ExpertIDs driver.DevicePtr
	// Dots [T, K] f32 is written.
	Dots driver.DevicePtr
	// Tokens is T, or the number of entries.
	Tokens int
	// With List: TokenOf [entries] i32 are their tokens, of NumTokens; the dot of
	// another token means nothing.
	TokenOf   driver.DevicePtr
	NumTokens int
}

// Build emits the kernel.
func (d Dot) Build() (*jit.Kernel[DotArgs], error) {
	name := "moe_bias_dot"
	if d.List {
		name = "moe_bias_dot_list"
	}
	k := jit.NewBuilder[DotArgs](name, dotThreads, 1)
	k.CTAs(func(a *DotArgs) int { return (a.Tokens + dotWarps - 1) / dotWarps })
	do, b2 := k.Ptr(&k.Args.DO), k.Ptr(&k.Args.B2)
	ids, dots := k.Ptr(&k.Args.ExpertIDs), k.Ptr(&k.Args.Dots)
	tokens := k.U32(&k.Args.Tokens)
	var tokenOf ptx.Global
	var numTokens ptx.U32
	if d.List {
		tokenOf, numTokens = k.Ptr(&k.Args.TokenOf), k.U32(&k.Args.NumTokens)
	}
	tid := k.TidX()
	lane := tid.AndI(31)
	token := k.CtaidX().MulI(dotWarps).Add(tid.ShrI(5))
	k.GridDepWait()
	k.GridDepLaunch()
	k.If(token.Lt(tokens), func() {
		of := token
		if d.List {
			of = ptx.LdGlobal[ptx.U32](tokenOf.Index(token, 4))
			of = ptx.Select(of.Lt(numTokens), of, ptx.Uint(0))
		}
		row := do.Index(of, d.Hidden*tile.ElementBytes)
		for first := 0; first < d.TopK; first += dotSlots {
			d.slots(k.Kernel, row, b2, ids.Index(token, 4*d.TopK), dots.Index(token, 4*d.TopK), lane, first, min(dotSlots, d.TopK-first))
		}
	})
	return k.Build()
}

// slots makes n dots from slot first on.
func (d Dot) slots(k *ptx.Kernel, row, b2, ids, dots ptx.Global, lane ptx.U32, first, n int) {
	var of []ptx.Global
	var there []ptx.Pred
	for i := range n {
		id := ptx.LdGlobal[ptx.U32](ids.At(4 * (first + i)))
		there = append(there, id.LtI(d.NumExperts))
		of = append(of, b2.Index(ptx.Select(there[i], id, ptx.Uint(0)), d.Hidden*tile.ElementBytes))
	}
	sums := ptx.NewVars(k, n, ptx.Float(0))
	k.For(lane, ptx.Uint(d.Hidden/copied), ptx.Uint(32), func(chunk ptx.U32) {
		load := func(from ptx.Global) []ptx.U32 { return ptx.LdGlobalVec[ptx.U32](from.Index(chunk, 16), 4, ".nc") }
		grad := load(row)
		biases := make([][]ptx.U32, n)
		for i := range biases {
			biases[i] = load(of[i])
		}
		for j, g := range grad {
			g0, g1 := d.Element.Unpack(g)
			for i, b := range biases {
				b0, b1 := d.Element.Unpack(b[j])
				sums[i].Set(g1.Fma(b1, g0.Fma(b0, sums[i].Get())))
			}
		}
	})
	for i, sum := range sums {
		total := sum.Get()
		for lanes := 1; lanes < 32; lanes *= 2 {
			total = total.Add(total.Bits().ShflXor(lanes).AsF32())
		}
		k.If(lane.EqI(0), func() { ptx.StGlobal(dots.At(4*(first+i)), ptx.Select(there[i], total, ptx.Float(0))) })
	}
}

// DotKernel is b2's part of the scores' gradients, DotListKernel that of a list's.
var (
	DotKernel = &registry.Kernel[DotArgs]{KernelName: "bias-dot", Backward: true, Only: Has, Emit: func(l registry.Layer) (*jit.Kernel[DotArgs], error) {
		return Dot{Hidden: l.Hidden, NumExperts: l.NumExperts, TopK: l.TopK, Element: element.Of(l.Config)}.Build()
	}}
	DotListKernel = &registry.Kernel[DotArgs]{KernelName: "bias-dot-list", Backward: true, Only: hasLists, Emit: func(l registry.Layer) (*jit.Kernel[DotArgs], error) {
		return Dot{Hidden: l.Hidden, NumExperts: l.NumExperts, TopK: 1, Element: element.Of(l.Config), List: true}.Build()
	}}
)
