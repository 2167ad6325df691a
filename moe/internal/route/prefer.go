package route

import (
	"math"

	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/pipeline"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/ptx"
)

// Prefer makes what experts choose their tokens by: for each expert and token a
// number that is larger the more the expert prefers the token, see
// [spec.Rounding]. It is the score's bits, and the highest bit where the token
// chose the expert; scores are not negative, so that order is theirs and NaN is
// the largest. Numbers lie by expert, for Allot and Take to read.
type Prefer struct {
	NumExperts, TopK int
	Logits           spec.Logits
	spec.Rounding
}

const (
	preferThreads = 256
	preferWarps   = preferThreads / 32
	// preferTokens are those of a CTA: a warp's width of each expert's row.
	preferTokens = 32
	// preferStride is an expert's row in shared memory, apart from the next one's
	// banks.
	preferStride = preferTokens + 1
	// preferLogits is how many logits a thread has in flight.
	preferLogits = 16
	// chosenBit says that the token chose the expert.
	chosenBit = 0x80000000
	scoreBits = 0x7fffffff
)

// PreferArgs are the arguments of [Prefer].
type PreferArgs struct {
	// Logits [T, E], Scores and ExpertIDs [T, K] are Router's.
	Logits, Scores, ExpertIDs driver.DevicePtr
	// Keys [E, T] u32 and, with RawScores, Raw [E, T] f32 are written, rows of
	// KeyStride.
	Keys, Raw driver.DevicePtr
	// Tokens is T.
	Tokens int
}

// Build emits the kernel.
func (p Prefer) Build() (*jit.Kernel[PreferArgs], error) {
	k := jit.NewBuilder[PreferArgs]("moe_prefer", preferThreads, 1)
	k.CTAs(func(a *PreferArgs) int { return (a.Tokens + preferTokens - 1) / preferTokens })
	logits, scores, ids := k.Ptr(&k.Args.Logits), k.Ptr(&k.Args.Scores), k.Ptr(&k.Args.ExpertIDs)
	keys := k.Ptr(&k.Args.Keys)
	var raw ptx.Global
	if p.RawScores {
		raw = k.Ptr(&k.Args.Raw)
	}
	tokens := k.U32(&k.Args.Tokens)
	tid := k.TidX()
	warp, lane := tid.ShrI(5), tid.AndI(31)
	tile := pipeline.NewCTA(k.Kernel).Shared("tile", 4*preferStride*p.NumExperts, 16)
	at := func(expert, token ptx.U32) ptx.Shared {
		return tile.Plus(expert.MulI(4 * preferStride)).Plus(token.ShlI(2))
	}
	first := k.CtaidX().MulI(preferTokens)
	row := tokenSoftmax{k.Kernel, p.NumExperts, p.Logits, lane}
	k.GridDepWait()
	k.GridDepLaunch()
	write := func(to ptx.Global) {
		k.BarSync(ptx.Uint(0))
		k.For(warp, ptx.Uint(p.NumExperts), ptx.Uint(preferWarps), func(expert ptx.U32) {
			token := first.Add(lane)
			k.If(token.Lt(tokens), func() {
				ptx.StGlobal(rowOf(to, expert, tokens).Index(token, 4), ptx.LdShared[ptx.U32](at(expert, lane)))
			})
		})
	}
	// Some tokens at a time, so that loads of one don't wait for another's sums.
	atOnce := min(max(preferLogits/row.each(), 1), preferTokens/preferWarps)
	k.For(warp, ptx.Uint(preferTokens), ptx.Uint(atOnce*preferWarps), func(in ptx.U32) {
		var values [preferTokens / preferWarps][]ptx.F32
		for i := range atOnce {
			token := first.Add(in.AddI(i * preferWarps)).Min(tokens.SubI(1))
			values[i] = row.load(logits, token)
		}
		for i := range atOnce {
			for j, share := range row.softmax(values[i]) {
				expert := lane.AddI(32 * j)
				k.If(expert.LtI(p.NumExperts), func() {
					ptx.StShared(at(expert, in.AddI(i*preferWarps)), share.Bits().AndI(scoreBits))
				})
			}
		}
	})
	if p.RawScores {
		write(raw)
	}
	if p.Rule != spec.ExpertChoice {
		k.BarSync(ptx.Uint(0))
		k.For(tid, tokens.Sub(first).MinI(preferTokens).MulI(p.TopK), ptx.Uint(preferThreads), func(i ptx.U32) {
			slot := first.MulI(p.TopK).Add(i)
			score := ptx.LdGlobal[ptx.U32](scores.Index(slot, 4)).AndI(scoreBits)
			ptx.StShared(at(ptx.LdGlobal[ptx.U32](ids.Index(slot, 4)), i.DivI(p.TopK)), score.OrI(chosenBit))
		})
	}
	write(keys)
	return k.Build()
}

// tokenSoftmax is the softmax over all logits of a token, by one warp.
type tokenSoftmax struct {
	k       *ptx.Kernel
	experts int
	format  spec.Logits
	lane    ptx.U32
}

// each is how many experts a lane has: every 32nd, from its own on.
func (s tokenSoftmax) each() int { return (s.experts + 31) / 32 }

// shares are those of the lane's experts; 0 past the last one.
func (s tokenSoftmax) shares(logits ptx.Global, token ptx.U32) []ptx.F32 {
	return s.softmax(s.load(logits, token))
}

// load gives the logits of the lane's experts.
func (s tokenSoftmax) load(logits ptx.Global, token ptx.U32) (values []ptx.F32) {
	k := s.k
	row := logits.Index(token, int(s.format.Type().Bytes())*s.experts)
	for i := range s.each() {
		expert, v := s.lane.AddI(32*i), ptx.NewVar(k, ptx.Float(math.Inf(-1)))
		k.If(expert.LtI(s.experts), func() { v.Set(loadLogit(s.format, row, expert)) })
		values = append(values, v.Get())
	}
	return values
}

// softmax turns logits into shares.
func (s tokenSoftmax) softmax(values []ptx.F32) []ptx.F32 {
	largest := ptx.Float(math.Inf(-1))
	for _, v := range values {
		largest = largest.Max(v, ".NaN")
	}
	largest = acrossWarp(largest, func(a, b ptx.F32) ptx.F32 { return a.Max(b, ".NaN") })
	sum := ptx.Float(0)
	for i, v := range values {
		values[i] = exp(v.Sub(largest))
		sum = sum.Add(values[i])
	}
	inverse := acrossWarp(sum, plus).RcpApprox(".ftz")
	for i, v := range values {
		values[i] = v.Mul(inverse)
	}
	return values
}

// PreferKernel is Prefer's.
var PreferKernel = &registry.Kernel[PreferArgs]{KernelName: "prefer", Only: spec.Config.Rounds, Emit: func(l registry.Layer) (*jit.Kernel[PreferArgs], error) {
	return Prefer{NumExperts: l.NumExperts, TopK: l.TopK, Logits: l.Logits, Rounding: l.Rounding}.Build()
}}
