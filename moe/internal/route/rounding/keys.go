package rounding

import (
	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/pipeline"
	"sonicmoe/moe/internal/lanes"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/route/scores"
	"sonicmoe/ptx"
)

// Keys computes a key for each expert and token. The larger the key, the more the expert
// prefers the token, see [spec.Rounding]. A key is the bits of the score, with the highest bit
// set if the token chose the expert. Scores are not negative, so keys compare as scores do,
// and NaN is the largest.
type Keys struct {
	NumExperts, TopK int
	Logits           spec.Type
	spec.Rounding
}

const (
	keysThreads = 256
	keysWarps   = keysThreads / lanes.Count
	// keysTokens is the number of tokens that a CTA handles. With one token for each lane, a warp
	// stores the keys of one expert at once.
	keysTokens = lanes.Count
	// keysStride is the length of an expert's row in shared memory, in words. It is odd, so that
	// lanes that access a column use different banks.
	keysStride = keysTokens + 1
	// keysLogits is the number of logits that a thread has in flight.
	keysLogits = 16
	// chosenBit is the bit of a key that is set if the token chose the expert.
	chosenBit = 0x80000000
	scoreBits = 0x7fffffff
)

// KeysArgs are the arguments of [Keys].
type KeysArgs struct {
	// Logits [T, E], Scores and ExpertIDs [T, K] come from the router.
	Logits, Scores, ExpertIDs driver.DevicePtr
	// Keys [E, T] u32 is an output. With RawScores, Raw [E, T] f32 is an output, too. The rows of
	// both have KeyStride words.
	Keys, Raw driver.DevicePtr
	// Tokens is T.
	Tokens int
}

// Build emits the kernel.
func (p Keys) Build() (*jit.Kernel[KeysArgs], error) {
	k := jit.NewBuilder[KeysArgs]("moe_rounding_keys", keysThreads, 1)
	k.CTAs(func(a *KeysArgs) int { return (a.Tokens + keysTokens - 1) / keysTokens })
	logits, chosenScores, ids := k.Ptr(&k.Args.Logits), k.Ptr(&k.Args.Scores), k.Ptr(&k.Args.ExpertIDs)
	keys := k.Ptr(&k.Args.Keys)
	var raw ptx.Global
	if p.RawScores {
		raw = k.Ptr(&k.Args.Raw)
	}
	tokens := k.U32(&k.Args.Tokens)
	tid := k.TidX()
	warp, lane := k.Warp(), k.Lane()
	t := keysTile{p, k.Kernel, pipeline.NewCTA(k.Kernel).Shared("tile", 4*keysStride*p.NumExperts, 16), warp, lane, k.CtaidX().MulI(keysTokens), tokens}
	k.GridDepWait()
	k.GridDepLaunch()
	t.scores(logits)
	if p.RawScores {
		t.write(raw)
	}
	if p.Rule != spec.ExpertChoice {
		k.BarSync(ptx.Uint(0))
		k.For(tid, tokens.Sub(t.first).MinI(keysTokens).MulI(p.TopK), ptx.Uint(keysThreads), func(i ptx.U32) {
			slot := t.first.MulI(p.TopK).Add(i)
			score := ptx.LdGlobal[ptx.U32](chosenScores.Index(slot, 4)).AndI(scoreBits)
			ptx.StShared(t.at(ptx.LdGlobal[ptx.U32](ids.Index(slot, 4)), i.DivI(p.TopK)), score.OrI(chosenBit))
		})
	}
	t.write(keys)
	return k.Build()
}

// keysTile has the keys of a CTA's tokens in shared memory: a row for each expert.
type keysTile struct {
	Keys
	k          *ptx.Kernel
	rows       ptx.Shared
	warp, lane ptx.U32
	// first is the CTA's first token, and tokens is T.
	first, tokens ptx.U32
}

// at returns the place of a key. token is the number of the token in the tile.
func (t *keysTile) at(expert, token ptx.U32) ptx.Shared {
	return t.rows.Plus(expert.MulI(4 * keysStride)).Plus(token.ShlI(2))
}

// scores fills the tile with the scores of all experts. A warp computes several tokens at a time, so
// that the loads of one overlap the sums of another.
func (t *keysTile) scores(logits ptx.Global) {
	k := t.k
	row := scores.Softmax{K: k, Experts: t.NumExperts, Format: t.Logits, Lane: t.lane}
	atOnce := min(max(keysLogits/row.PerLane(), 1), keysTokens/keysWarps)
	k.For(t.warp, ptx.Uint(keysTokens), ptx.Uint(atOnce*keysWarps), func(in ptx.U32) {
		var values [keysTokens / keysWarps][]ptx.F32
		for i := range atOnce {
			token := t.first.Add(in.AddI(i * keysWarps)).Min(t.tokens.SubI(1))
			values[i] = row.Load(logits, token)
		}
		for i := range atOnce {
			for j, share := range row.OfLogits(values[i]) {
				expert := t.lane.AddI(lanes.Count * j)
				k.If(expert.LtI(t.NumExperts), func() {
					ptx.StShared(t.at(expert, in.AddI(i*keysWarps)), share.Bits().AndI(scoreBits))
				})
			}
		}
	})
}

// write stores the tile in a tensor.
func (t *keysTile) write(to ptx.Global) {
	k := t.k
	k.BarSync(ptx.Uint(0))
	k.For(t.warp, ptx.Uint(t.NumExperts), ptx.Uint(keysWarps), func(expert ptx.U32) {
		token := t.first.Add(t.lane)
		k.If(token.Lt(t.tokens), func() {
			ptx.StGlobal(rowOf(to, expert, t.tokens).Index(token, 4), ptx.LdShared[ptx.U32](t.at(expert, t.lane)))
		})
	})
}

// KeysKernel computes the keys of layers that round.
var KeysKernel = &registry.Kernel[KeysArgs]{KernelName: "rounding-keys", Only: spec.Config.Rounds, Emit: func(l registry.Layer) (*jit.Kernel[KeysArgs], error) {
	return Keys{NumExperts: l.NumExperts, TopK: l.TopK, Logits: l.Logits, Rounding: l.Rounding}.Build()
}}
