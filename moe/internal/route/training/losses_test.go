package training

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/internal/num"
	"sonicmoe/internal/spec"
	kt "sonicmoe/moe/internal/kernel/kerneltest"
	"sonicmoe/moe/internal/route/order"
)

// lossCase is the size of one launch of Losses and one of LossSum.
type lossCase struct {
	experts, topK, tokens, perCTA int
	logits                        spec.Type
	balance, zLoss                float32
	add, write                    bool
	length                        int     // number of tokens of a sequence; 0 means all tokens
	shift                         float64 // added to each logit
}

func (c lossCase) String() string {
	return fmt.Sprintf("E=%d K=%d T=%d perCTA=%d %v balance=%g z=%g add=%v write=%v length=%d shift=%g",
		c.experts, c.topK, c.tokens, c.perCTA, c.logits, c.balance, c.zLoss, c.add, c.write, c.length, c.shift)
}

// sequence returns the number of tokens in a sequence.
func (c lossCase) sequence() int {
	if c.length > 0 {
		return c.length
	}
	return c.tokens
}

// wanted computes the losses and gradients in float64, by their definition.
func (c lossCase) wanted(logits []float64, ids []uint32, add []float32) (gradients []float64, balance, zLoss float64) {
	length := c.sequence()
	t, scale := float64(c.tokens), float64(c.experts)/float64(c.topK*length)
	counts := make([]int, c.experts)
	for token := range c.tokens {
		if token%length == 0 {
			clear(counts)
			for _, id := range ids[token*c.topK:][:length*c.topK] {
				if id < uint32(c.experts) {
					counts[id]++
				}
			}
		}
		row := logits[token*c.experts:][:c.experts]
		var sum, dot float64
		for e, l := range row {
			sum += math.Exp(l)
			dot += math.Exp(l) * float64(counts[e])
		}
		dot /= sum
		lse := math.Log(sum)
		balance += scale * dot / t
		zLoss += lse * lse / t
		for e, l := range row {
			p := math.Exp(l) / sum
			d := p * (float64(c.balance)*scale/t*(float64(counts[e])-dot) + float64(c.zLoss)*2/t*lse)
			if c.add {
				d += float64(add[token*c.experts+e])
			}
			gradients = append(gradients, d)
		}
	}
	return gradients, balance, zLoss
}

func (c lossCase) run(b *kt.Bed) {
	r := rand.New(rand.NewPCG(uint64(c.experts), uint64(c.tokens)))
	n := c.tokens * c.experts
	logits, bits, single, add := make([]float64, n), make([]uint16, n), make([]float32, n), make([]float32, n)
	for i := range logits {
		bits[i] = num.Float64ToBF16(c.shift + 3*r.NormFloat64())
		logits[i], single[i] = num.BF16ToFloat64(bits[i]), num.BF16ToFloat32(bits[i])
		add[i] = float32(r.NormFloat64()) / float32(n)
	}
	ids, offsets := make([]uint32, c.tokens*c.topK), make([]uint32, c.experts+1)
	for i := range ids {
		ids[i] = uint32(min(r.IntN(c.experts), r.IntN(c.experts)))
		offsets[ids[i]+1]++
	}
	for e := range c.experts {
		offsets[e+1] += offsets[e]
	}
	t := float32(c.tokens)
	scale := float32(c.experts) / (float32(c.topK) * float32(c.sequence()) * t)
	args := LossesArgs{
		Logits: kt.Upload(b, bits), Offsets: kt.Upload(b, offsets), Balance: c.balance * scale, ZLoss: c.zLoss * 2 / t,
		Sequences: Sequences{c.sequence(), order.TokenRanges{Tokens: c.tokens, PerCTA: c.perCTA}},
	}
	if c.length > 0 { // with sequences, ids outside [0, E) are not counted
		ids[len(ids)-1] = uint32(c.experts)
		args.Offsets, args.ExpertIDs = 0, kt.Upload(b, ids)
	}
	ctas := args.CTAs(b.Device.Target().SMs)
	args.Partials = b.Room(8 * ctas)
	if c.logits == spec.F32 {
		args.Logits = kt.Upload(b, single)
	}
	if c.add {
		args.AddDLogits = kt.Upload(b, add)
	}
	gradients := b.Room(4 * n)
	if c.write {
		args.DLogits = gradients
	}
	kt.Run(b, Losses{NumExperts: c.experts, TopK: c.topK, Logits: c.logits}, 0, args)
	losses := b.Room(8)
	kt.Run(b, LossSum{}, 0, LossSumArgs{Partials: args.Partials, Losses: losses, Ranges: ctas, Balance: scale, ZLoss: 1 / t})

	want, balance, zLoss := c.wanted(logits, ids, add)
	got := kt.Download[float32](b, losses, 2)
	require.InEpsilon(b.T, balance, float64(got[0]), 2e-6, "balance, %v", c)
	require.InEpsilon(b.T, zLoss, float64(got[1]), 2e-6, "z-loss, %v", c)
	if !c.write {
		require.Equal(b.T, kt.Poisoned[uint32](n), kt.Download[uint32](b, gradients, n), "%v", c)
		return
	}
	var most float64
	for _, w := range want {
		most = max(most, math.Abs(w))
	}
	for i, g := range kt.Download[float32](b, gradients, n) {
		require.InDelta(b.T, want[i], float64(g), 2e-6*most, "gradient %d, %v", i, c)
	}
}

// TestLosses compares losses and gradients with the definition, for any ranges.
func TestLosses(t *testing.T) {
	for _, c := range []lossCase{
		{1, 1, 1, 64, spec.BF16, 1, 0, false, true, 0, 0},
		{7, 2, 65, 64, spec.F32, .01, .001, true, true, 0, 0},
		{32, 4, 130, 64, spec.BF16, 0, 1, false, true, 0, 0},
		{33, 4, 64, 64, spec.BF16, 1, 1, true, true, 0, 0},
		{128, 8, 300, 128, spec.BF16, .01, .001, false, true, 0, 0},
		{128, 8, 70, 64, spec.BF16, 1, 1, false, false, 0, 0},
		{1000, 16, 40, 64, spec.F32, .1, .1, true, true, 0, 0},
		{1024, 10, 9, 64, spec.BF16, .1, .1, false, true, 0, 0},
		// The cases have one sequence, several ranges for each sequence, one range each, and
		// more sequences than SMs.
		{33, 4, 64, 64, spec.BF16, 1, .1, true, true, 64, 0},
		{128, 8, 240, 24, spec.BF16, 1, 1, false, true, 80, 0},
		{7, 2, 90, 30, spec.F32, 1, 0, true, true, 30, 0},
		{16, 2, 600, 3, spec.BF16, 1, 0, false, true, 3, 0},
		{40, 3, 12, 1, spec.BF16, 1, .5, false, false, 1, 0},
		// All logits are far below 0, and so is the logarithm of the sum of their exponentials.
		{33, 4, 64, 64, spec.BF16, 0, 1, false, true, 0, -40},
		{7, 2, 65, 64, spec.F32, .01, 1, true, true, 0, -300},
	} {
		t.Run(c.String(), func(t *testing.T) {
			for _, when := range kt.Timings() {
				if c.run(kt.New(t, when)); c.length == 0 {
					break // with one range for each CTA, the timing makes no difference
				}
			}
		})
	}
}

// TestLossesOfNaN checks that a NaN logit only changes the gradients of its token, and the losses.
func TestLossesOfNaN(t *testing.T) {
	b := kt.New(t, kt.Early)
	const experts, tokens = 33, 3
	logits := make([]float32, experts*tokens)
	logits[experts+5] = float32(math.NaN())
	offsets := make([]uint32, experts+1)
	gradients, partials := b.Room(4*len(logits)), b.Room(8)
	kt.Run(b, Losses{NumExperts: experts, TopK: 1, Logits: spec.F32}, 0, LossesArgs{
		Logits: kt.Upload(b, logits), Offsets: kt.Upload(b, offsets), Partials: partials, DLogits: gradients, Balance: 1, ZLoss: 1,
		Sequences: Sequences{tokens, order.TokenRanges{Tokens: tokens, PerCTA: 64}},
	})
	for i, g := range kt.Download[float32](b, gradients, len(logits)) {
		require.Equal(t, i/experts == 1, g != g, "gradient %d is %g", i, g)
	}
	for _, p := range kt.Download[float32](b, partials, 2) {
		require.True(t, p != p)
	}
}
