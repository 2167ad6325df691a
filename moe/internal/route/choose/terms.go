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

// Terms splits FP32 router weights into sums of three 16-bit terms, which the tensor cores can
// multiply. Three bf16 terms have 8 bits each, together the 24 bits of a weight, so the sum is
// exact. fp16 terms have more bits, but their range is small: the sum is the weight rounded to a
// multiple of 2^-24, and weights beyond 65504 overflow. The smallest term comes first, because sums
// that start with it lose the fewest of its bits.
type Terms struct {
	Hidden, NumExperts int
	Element            tile.Element
}

// TermsArgs are the arguments of [Terms].
type TermsArgs struct {
	// Weights [E, d] f32 are the router's weights.
	Weights driver.DevicePtr
	// Terms [3, Lines, d] is the output, with zeros past the last expert.
	Terms driver.DevicePtr
}

// Count is the number of terms of a weight.
func (t Terms) Count() int { return 3 }

// Lines returns the number of lines of a term: one for each expert, rounded up to whole k-tiles,
// because the backward pass multiplies the terms along the experts.
func (t Terms) Lines() int { return (t.NumExperts + tile.K - 1) / tile.K * tile.K }

// Bytes returns the size of all terms.
func (t Terms) Bytes() int64 {
	return int64(t.Count()) * int64(t.Lines()) * int64(t.Hidden) * tile.ElementBytes
}

const (
	termsThreads = 256
	// weightsOfThread is the number of neighbouring weights that a thread splits. It stores 16
	// bytes of each term.
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

// TermsOf returns the terms of a layer's router.
func TermsOf(c spec.Config) Terms {
	return Terms{Hidden: c.Hidden, NumExperts: c.NumExperts, Element: element.Of(c)}
}

// TermsKernel is for routers with FP32 weights.
var TermsKernel = &registry.Kernel[TermsArgs]{KernelName: "router-terms", Only: func(c spec.Config) bool { return c.RouterF32 }, Emit: func(l registry.Layer) (*jit.Kernel[TermsArgs], error) {
	return TermsOf(l.Config).Build()
}}

// terms returns the number of terms of the weights, and the number of lines of each term.
func (r Router) terms() (count, lines int) {
	if !r.F32 {
		return 1, r.NumExperts
	}
	of := Terms{Hidden: r.Hidden, NumExperts: r.NumExperts}
	return of.Count(), of.Lines()
}

// lines returns the number of rows of the router's weights, each term's rows counted.
func (r Router) lines() int {
	count, each := r.terms()
	return count * each
}

// kTiles returns the number of k-tiles of the product, over all terms.
func (r Router) kTiles() int {
	count, _ := r.terms()
	return count * tile.Tiles(r.Hidden)
}
