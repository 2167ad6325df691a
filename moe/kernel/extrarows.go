package kernel

import (
	"sonicmoe/driver"
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

// ExtraRows is what dense gradients of the logits [T, E] add to the tokens'
// gradient: rows [T, d] = extra · W_r, one bf16 row a token, rounded once.
type ExtraRows struct {
	Hidden, Experts int
}

// CTAs is the grid for so many tokens.
func (x ExtraRows) CTAs(tokens int) int {
	return (tokens + BlockRows - 1) / BlockRows * x.tiles()
}

func (x ExtraRows) tiles() int { return (x.Hidden + twoTermWidth - 1) / twoTermWidth }

// WMap is the load map of the router's weights [E, d].
func (x ExtraRows) WMap(p driver.DevicePtr) driver.TensorMap {
	return linesMap(p, x.Hidden, x.Experts, twoTermWidth)
}

// Build emits the kernel.
func (x ExtraRows) Build() (Kernel, error) {
	const name = "moe_extrarows"
	k := ptx.NewKernel(name)
	extra, w, out := k.ParamPtr("extra"), k.ParamTensorMap("w"), k.ParamPtr("rows")
	tokens := k.ParamU32("tokens")
	p := newTwoTerm(k, k.Special("%tid.x"))
	p.b = w
	cta := k.Special("%ctaid.x")
	token := cta.DivI(x.tiles()).MulI(BlockRows)
	p.n = cta.RemI(x.tiles()).MulI(twoTermWidth)
	steps := (x.Experts + tile.K - 1) / tile.K
	p.run(ptx.Uint(0), ptx.Uint(steps), func(wg ptx.U32) ptx.Pred { return token.Add(wg.MulI(warpgroupRows)).Lt(tokens) },
		func() fill {
			chunk, line := p.thread().AndI(lanesOfOneRow-1), p.thread().DivI(lanesOfOneRow)
			const passRows = 128 / lanesOfOneRow
			return func(kt ptx.U32, stage func() ptx.Shared) {
				var values [BlockRows / passRows][]ptx.F32
				for i := range values {
					t := token.Add(line).AddI(i * passRows)
					values[i] = p.loadEight(extra, t, kt.MulI(tile.K).Add(chunk.MulI(8)), x.Experts, t.Lt(tokens))
				}
				a := stage()
				for i, v := range values {
					p.storeEight(a.Plus(tile.Swizzled(line.AddI(i*passRows), chunk)), v)
				}
			}
		},
		func(wg ptx.U32, acc []ptx.F32) {
			f := tile.NewFragment(p.thread())
			for h := range 2 {
				t := token.Add(wg.MulI(warpgroupRows)).Add(f.Row).AddI(8 * h)
				row := out.Index(t, bf16*x.Hidden).Index(p.n.Add(f.Column), bf16)
				for i := range twoTermWidth / tile.Block {
					k.If(t.Lt(tokens).And(p.n.AddI(i*tile.Block).LtI(x.Hidden)), func() {
						for j := range 8 {
							v := acc[32*i+4*j+2*h:]
							ptx.StGlobal(row.At(bf16*(i*tile.Block+8*j)), k.PackBF16(v[0], v[1]).Bits())
						}
					})
				}
			}
		})
	return build(k, name, productThreads, twoTermShared)
}
