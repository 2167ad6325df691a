package rounding

import (
	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/pipeline"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/route/scores"
	"sonicmoe/ptx"
)

// Keys makes what experts choose their tokens by: for each expert and token a
// number that is larger the more the expert prefers the token, see
// [spec.Rounding]. It is the score's bits, and the highest bit where the token
// chose the expert; scores are not negative, so that order is theirs and NaN is
// the largest. Numbers lie by expert, for Cutoff and List to read.
type Keys struct {
	NumExperts, TopK int
	Logits           spec.Logits
	spec.Rounding
}

const (
	keysThreads = 256
	keysWarps   = keysThreads / 32
	// keysTokens are those of a CTA: a warp's width of each expert's row.
	keysTokens = 32
	// keysStride is an expert's row in shared memory, apart from the next one's
	// banks.
	keysStride = keysTokens + 1
	// keysLogits is how many logits a thread has in flight.
	keysLogits = 16
	// chosenBit says that the token chose the expert.
	chosenBit = 0x80000000
	scoreBits = 0x7fffffff
)

// KeysArgs are the arguments of [Keys].
type KeysArgs struct {
	// Logits [T, E], Scores and ExpertIDs [T, K] are Router's.
	Logits, Scores, ExpertIDs driver.DevicePtr
	// Keys [E, T] u32 and, with RawScores, Raw [E, T] f32 are written, rows of
	// KeyStride.
	Keys, Raw driver.DevicePtr
	// Tokens is T.
	Tokens int
}

// Build emits the kernel.
func (p Keys) Build() (*jit.Kernel[KeysArgs], error) {
	k := jit.NewBuilder[KeysArgs]("moe_prefer", keysThreads, 1)
	k.CTAs(func(a *KeysArgs) int { return (a.Tokens + keysTokens - 1) / keysTokens })
	logits, chosenScores, ids := k.Ptr(&k.Args.Logits), k.Ptr(&k.Args.Scores), k.Ptr(&k.Args.ExpertIDs)
	keys := k.Ptr(&k.Args.Keys)
	var raw ptx.Global
	if p.RawScores {
		raw = k.Ptr(&k.Args.Raw)
	}
	tokens := k.U32(&k.Args.Tokens)
	tid := k.TidX()
	warp, lane := tid.ShrI(5), tid.AndI(31)
	tile := pipeline.NewCTA(k.Kernel).Shared("tile", 4*keysStride*p.NumExperts, 16)
	at := func(expert, token ptx.U32) ptx.Shared {
		return tile.Plus(expert.MulI(4 * keysStride)).Plus(token.ShlI(2))
	}
	first := k.CtaidX().MulI(keysTokens)
	row := scores.Softmax{K: k.Kernel, Experts: p.NumExperts, Format: p.Logits, Lane: lane}
	k.GridDepWait()
	k.GridDepLaunch()
	write := func(to ptx.Global) {
		k.BarSync(ptx.Uint(0))
		k.For(warp, ptx.Uint(p.NumExperts), ptx.Uint(keysWarps), func(expert ptx.U32) {
			token := first.Add(lane)
			k.If(token.Lt(tokens), func() {
				ptx.StGlobal(rowOf(to, expert, tokens).Index(token, 4), ptx.LdShared[ptx.U32](at(expert, lane)))
			})
		})
	}
	// Some tokens at a time, so that loads of one don't wait for another's sums.
	atOnce := min(max(keysLogits/row.PerLane(), 1), keysTokens/keysWarps)
	k.For(warp, ptx.Uint(keysTokens), ptx.Uint(atOnce*keysWarps), func(in ptx.U32) {
		var values [keysTokens / keysWarps][]ptx.F32
		for i := range atOnce {
			token := first.Add(in.AddI(i * keysWarps)).Min(tokens.SubI(1))
			values[i] = row.Load(logits, token)
		}
		for i := range atOnce {
			for j, share := range row.OfLogits(values[i]) {
				expert := lane.AddI(32 * j)
				k.If(expert.LtI(p.NumExperts), func() {
					ptx.StShared(at(expert, in.AddI(i*keysWarps)), share.Bits().AndI(scoreBits))
				})
			}
		}
	})
	if p.RawScores {
		write(raw)
	}
	if p.Rule != spec.ExpertChoice {
		k.BarSync(ptx.Uint(0))
		k.For(tid, tokens.Sub(first).MinI(keysTokens).MulI(p.TopK), ptx.Uint(keysThreads), func(i ptx.U32) {
			slot := first.MulI(p.TopK).Add(i)
			score := ptx.LdGlobal[ptx.U32](chosenScores.Index(slot, 4)).AndI(scoreBits)
			ptx.StShared(at(ptx.LdGlobal[ptx.U32](ids.Index(slot, 4)), i.DivI(p.TopK)), score.OrI(chosenBit))
		})
	}
	write(keys)
	return k.Build()
}

// KeysKernel is Keys's.
var KeysKernel = &registry.Kernel[KeysArgs]{KernelName: "prefer", Only: spec.Config.Rounds, Emit: func(l registry.Layer) (*jit.Kernel[KeysArgs], error) {
	return Keys{NumExperts: l.NumExperts, TopK: l.TopK, Logits: l.Logits, Rounding: l.Rounding}.Build()
}}
