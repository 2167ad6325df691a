package drouter

import (
	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/jit"
	"sonicmoe/jit/gemm"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/element"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/route/choose"
	"sonicmoe/ptx"
)

// ExtraRows is the part of the tokens' gradient that comes from dense gradients of the
// logits: rows [T, d] = extra [T, E] · W_r. Each element is rounded once.
type ExtraRows struct {
	Hidden, NumExperts int
	// Element is the type of weights and rows.
	Element tile.Element
	// With F32 the router's weights are FP32, and are given as [choose.Terms].
	F32 bool
}

// ExtraRowsArgs are the arguments of [ExtraRows].
type ExtraRowsArgs struct {
	// DLogits [T, E] f32 are dense gradients of the logits.
	DLogits driver.DevicePtr
	// RouterWeights is [E, d], or with F32 the terms of the weights.
	RouterWeights driver.DevicePtr
	// Rows [T, d] is the output.
	Rows driver.DevicePtr
	// Tokens is T.
	Tokens int
}

func (x ExtraRows) tiles() int { return (x.Hidden + gemm.TwoTermN - 1) / gemm.TwoTermN }

// steps returns three numbers: the k-tiles of the sum over the experts for one term of the weights,
// the terms, and the rows of the weight matrix.
func (x ExtraRows) steps() (each, terms, lines int) {
	each = (x.NumExperts + tile.K - 1) / tile.K
	if !x.F32 {
		return each, 1, x.NumExperts
	}
	of := choose.Terms{Hidden: x.Hidden, NumExperts: x.NumExperts}
	return each, of.Count(), of.Count() * of.Lines()
}

// Build emits the kernel.
func (x ExtraRows) Build() (*jit.Kernel[ExtraRowsArgs], error) {
	steps, terms, lines := x.steps()
	k := jit.NewBuilder[ExtraRowsArgs]("moe_extrarows", gemm.Threads, 1)
	k.CTAs(func(a *ExtraRowsArgs) int { return (a.Tokens + gemm.TileM - 1) / gemm.TileM * x.tiles() })

	// Operands.
	extra := k.Ptr(&k.Args.DLogits)
	atoms := tile.Atoms{Width: x.Hidden, Columns: gemm.TwoTermN}
	w := k.Map(&k.Args.RouterWeights, func(a *ExtraRowsArgs) gpu.TensorMap {
		return atoms.Map(a.RouterWeights, lines)
	})
	out, tokens := k.Ptr(&k.Args.Rows), k.U32(&k.Args.Tokens)

	// Ring "ab" holds stages of the router's weights and of the FP32 gradients, which are split into
	// two 16-bit terms.
	p := gemm.TwoTerm{K: k.Kernel, Element: x.Element, Thread: k.TidX(), B: w, Atoms: atoms}.Start()

	// The tile of this CTA has these tokens and columns.
	cta := k.CtaidX()
	token, column := cta.DivI(x.tiles()).MulI(gemm.TileM), cta.RemI(x.tiles()).MulI(gemm.TwoTermN)
	e := &extraRows{of: x, p: p, from: extra, to: out, tokens: tokens, token: token, column: column}

	// Roles.
	p.Run(gemm.TwoTermTile{
		Column: column, First: ptx.Uint(0), Steps: ptx.Uint(terms * steps),
		HasLines: func(wg ptx.U32) ptx.Pred { return token.Add(wg.MulI(gemm.WarpgroupM)).Lt(tokens) },
	}, e.newFiller, // the load role writes the terms of the gradients
		e.store) // math
	return k.Build()
}

// extraRows is the state of an ExtraRows while its code is emitted.
type extraRows struct {
	of       ExtraRows
	p        *gemm.TwoTerm
	from, to ptx.Global
	tokens   ptx.U32
	// token and column are the first token and the first column of the tile.
	token, column ptx.U32
}

// passLines is the number of lines that the load role writes at a time.
const passLines = pipeline.WarpgroupThreads / tile.LanesOfRow

// extraFiller is a thread of the load role. In each pass it writes the gradients of 8 experts of
// one line.
type extraFiller struct {
	*extraRows
	chunk, line ptx.U32
}

func (e *extraRows) newFiller() gemm.Filler {
	return extraFiller{e, e.p.InRole().AndI(tile.LanesOfRow - 1), e.p.InRole().DivI(tile.LanesOfRow)}
}

// Fill writes the gradients of 64 experts.
func (e extraFiller) Fill(kt ptx.U32, stage func() ptx.Shared) {
	if e.of.F32 {
		steps, _, _ := e.of.steps()
		kt = kt.RemI(steps) // each term of the weights has the same gradients
	}
	var values [gemm.TileM / passLines][]ptx.F32
	for i := range values {
		t := e.token.Add(e.line).AddI(i * passLines)
		values[i] = e.p.LoadEight(e.from, t, kt.MulI(tile.K).Add(e.chunk.MulI(8)), e.of.NumExperts, t.Lt(e.tokens))
	}
	a := stage()
	for i, v := range values {
		e.p.StoreEight(a.Plus(tile.Swizzled(e.line.AddI(i*passLines), e.chunk)), v)
	}
}

// store writes a warpgroup's rows, rounded.
func (e *extraRows) store(wg ptx.U32, acc []ptx.F32) {
	k, column := e.p.K, e.column
	f := tile.NewFragment(e.p.InRole())
	for h := range 2 {
		t := e.token.Add(wg.MulI(gemm.WarpgroupM)).Add(f.Row).AddI(8 * h)
		row := e.to.Index(t, tile.ElementBytes*e.of.Hidden).Index(column.Add(f.Column), tile.ElementBytes)
		for i := range gemm.TwoTermN / tile.Block {
			e.p.EachEight(column, i, e.of.Hidden, t.Lt(e.tokens), func(j int) {
				v := gemm.OfSubTile(acc, i)[4*j+2*h:]
				ptx.StGlobal(row.At(tile.ElementBytes*(i*tile.Block+8*j)), e.of.Element.Pack(k, v[0], v[1]))
			})
		}
	}
}

// ExtraRowsKernel is the kernel of ExtraRows.
var ExtraRowsKernel = &registry.Kernel[ExtraRowsArgs]{KernelName: "extra-rows", Backward: true, Emit: func(l registry.Layer) (*jit.Kernel[ExtraRowsArgs], error) {
	return ExtraRows{Hidden: l.Hidden, NumExperts: l.NumExperts, Element: element.Of(l.Config), F32: l.RouterF32}.Build()
}}
