package choose

import (
	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/element"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/ptx"
)

// Terms writes FP32 router weights as sums of three of the tokens' elements, which
// the tensor cores multiply. Of bf16 they have 8 bits of fraction each, together a
// weight's 24, exactly; of fp16 they have more, but end at 2^-24, to which a
// weight is rounded, and hold none beyond 65504. The least comes first, so that
// sums that begin with it lose least of it.
type Terms struct {
	Hidden, NumExperts int
	Element            tile.Element
}

// TermsArgs are the arguments of [Terms].
type TermsArgs struct {
	// Weights [E, d] f32 are the router's.
	Weights driver.DevicePtr
	// Terms [3, Lines, d] is written, 0 in lines past the last expert.
	Terms driver.DevicePtr
}

// Count is how many terms a weight has.
func (t Terms) Count() int { return 3 }

// Lines is a term's number of lines: one for each expert, in whole k-tiles of a
// product that sums over experts.
func (t Terms) Lines() int { return (t.NumExperts + tile.K - 1) / tile.K * tile.K }

// Bytes is the size of all terms.
func (t Terms) Bytes() int64 {
	return int64(t.Count()) * int64(t.Lines()) * int64(t.Hidden) * tile.ElementBytes
}

const (
	termsThreads = 256
	// weightsOfThread are neighbours: a store of 16 bytes for each term.
	weightsOfThread = tile.CopyBytes / tile.ElementBytes
)

// Build emits the kernel.
func (t Terms) Build() (*jit.Kernel[TermsArgs], error) {
	k := jit.NewBuilder[TermsArgs]("moe_router_terms", termsThreads, 1)
	pieces := t.Lines() * t.Hidden / weightsOfThread
	k.CTAs(func(*TermsArgs) int { return (pieces + termsThreads - 1) / termsThreads })
	from, to := k.Ptr(&k.Args.Weights), k.Ptr(&k.Args.Terms)
	piece := k.CtaidX().MulI(termsThreads).Add(k.TidX())
	k.GridDepWait()
	k.GridDepLaunch()
	k.If(piece.LtI(pieces), func() {
		rest := ptx.NewVars(k.Kernel, weightsOfThread, ptx.Float(0))
		k.If(piece.LtI(t.NumExperts*t.Hidden/weightsOfThread), func() {
			at := from.Index(piece, 4*weightsOfThread)
			ptx.SetAll(rest[:4], ptx.LdGlobalVec[ptx.F32](at, 4))
			ptx.SetAll(rest[4:], ptx.LdGlobalVec[ptx.F32](at.At(4*4), 4))
		})
		for term := t.Count() - 1; term >= 0; term-- {
			var words []ptx.U32
			for i := 0; i < weightsOfThread; i += 2 {
				word := t.Element.Pack(k.Kernel, rest[i].Get(), rest[i+1].Get())
				lo, hi := t.Element.Unpack(word)
				rest[i].Set(rest[i].Get().Sub(lo))
				rest[i+1].Set(rest[i+1].Get().Sub(hi))
				words = append(words, word)
			}
			ptx.StGlobal(to.At(term*t.Lines()*t.Hidden*tile.ElementBytes).Index(piece, tile.CopyBytes), words...)
		}
	})
	return k.Build()
}

// TermsOf are those of a layer's router.
func TermsOf(c spec.Config) Terms {
	return Terms{Hidden: c.Hidden, NumExperts: c.NumExperts, Element: element.Of(c)}
}

// TermsKernel is for routers of FP32 weights.
var TermsKernel = &registry.Kernel[TermsArgs]{KernelName: "router-terms", Only: func(c spec.Config) bool { return c.RouterF32 }, Emit: func(l registry.Layer) (*jit.Kernel[TermsArgs], error) {
	return TermsOf(l.Config).Build()
}}

// terms is how many the weights have, of so many lines.
func (r Router) terms() (count, lines int) {
	if !r.F32 {
		return 1, r.NumExperts
	}
	of := Terms{Hidden: r.Hidden, NumExperts: r.NumExperts}
	return of.Count(), of.Lines()
}

// lines is how many all terms have.
func (r Router) lines() int {
	count, each := r.terms()
	return count * each
}

// kTiles is the depth of the product.
func (r Router) kTiles() int {
	count, _ := r.terms()
	return count * tile.Tiles(r.Hidden)
}
