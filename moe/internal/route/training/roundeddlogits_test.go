package training

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/internal/num"
	"sonicmoe/internal/spec"
	kt "sonicmoe/moe/internal/kernel/kerneltest"
)

// roundedList is a list of tokens by expert after rounding, with the gradients of its scores.
type roundedList struct {
	tokens, experts []int32 // token and expert of each entry of the list
	ds              []float32
}

// newRoundedList lists some of the chosen experts of each token, and some experts that the token
// did not choose. One token has no entry.
func newRoundedList(r *rand.Rand, tokens, experts int, ids []int32) (l roundedList) {
	for token := range tokens - 1 {
		of := ids[token*len(ids)/tokens:][:len(ids)/tokens]
		for e := range experts {
			if slices.Contains(of, int32(e)) && r.IntN(4) == 0 || !slices.Contains(of, int32(e)) && r.IntN(8) > 0 {
				continue
			}
			l.tokens, l.experts, l.ds = append(l.tokens, int32(token)), append(l.experts, int32(e)), append(l.ds, float32(r.NormFloat64()))
		}
	}
	r.Shuffle(len(l.ds), func(i, j int) {
		l.tokens[i], l.tokens[j] = l.tokens[j], l.tokens[i]
		l.experts[i], l.experts[j] = l.experts[j], l.experts[i]
		l.ds[i], l.ds[j] = l.ds[j], l.ds[i]
	})
	return l
}

// upload sets the list's tensors in args. Entry i of n entries is row n-1-i.
func (l roundedList) upload(b *kt.Bed, args *RoundedDLogitsArgs) {
	n := len(l.ds)
	var starts, rows []uint32
	pairs := make([]uint32, n)
	for token := range args.Tokens {
		starts = append(starts, uint32(len(rows)))
		for i, of := range l.tokens {
			if pairs[n-1-i] = uint32(i); of == int32(token) {
				rows = append(rows, uint32(n-1-i))
			}
		}
	}
	args.Starts, args.TokenRows, args.Pairs = kt.Upload(b, append(starts, uint32(len(rows)))), kt.Upload(b, rows), kt.Upload(b, pairs)
	args.ListIDs, args.DScores = kt.Upload(b, l.experts), kt.Upload(b, l.ds)
}

// loss returns the sum of a token's scores times their gradients.
func (l roundedList) loss(token int, logits []float64, ids []int32, raw bool) (sum float64) {
	var chosen, all float64
	for e, x := range logits {
		if all += math.Exp(x); slices.Contains(ids, int32(e)) {
			chosen += math.Exp(x)
		}
	}
	for i, of := range l.tokens {
		if int(of) != token {
			continue
		}
		norm := all
		if !raw && slices.Contains(ids, l.experts[i]) {
			norm = chosen
		}
		sum += float64(l.ds[i]) * math.Exp(logits[l.experts[i]]) / norm
	}
	return sum
}

// TestRoundedDLogits compares the gradients of the logits with central differences of the
// scores in float64.
func TestRoundedDLogits(t *testing.T) {
	const tokens = 11
	for _, k := range []RoundedDLogits{
		{NumExperts: 7, TopK: 2, Logits: spec.F32},
		{NumExperts: 40, TopK: 5, Logits: spec.F32, Raw: true},
		{NumExperts: 33, TopK: 8, Logits: spec.BF16},
		{NumExperts: 130, TopK: 32, Logits: spec.F32},
	} {
		for _, added := range []bool{false, true} {
			t.Run(fmt.Sprintf("%+v added=%v", k, added), func(t *testing.T) {
				b, r := kt.New(t, kt.Early), rand.New(rand.NewPCG(uint64(k.NumExperts), uint64(k.TopK)))
				logits, bits, single, add := make([]float64, tokens*k.NumExperts), make([]uint16, tokens*k.NumExperts), make([]float32, tokens*k.NumExperts), make([]float32, tokens*k.NumExperts)
				for i := range logits {
					bits[i] = num.Float64ToBF16(r.NormFloat64())
					logits[i], single[i], add[i] = num.BF16ToFloat64(bits[i]), num.BF16ToFloat32(bits[i]), float32(r.NormFloat64())
				}
				var ids []int32
				var scores []float32
				for token := range tokens {
					var sum float64
					for _, e := range r.Perm(k.NumExperts)[:k.TopK] {
						ids = append(ids, int32(e))
						sum += math.Exp(logits[token*k.NumExperts+e])
					}
					for _, e := range ids[token*k.TopK:] {
						scores = append(scores, float32(math.Exp(logits[token*k.NumExperts+int(e)])/sum))
					}
				}
				list := newRoundedList(r, tokens, k.NumExperts, ids)
				args := RoundedDLogitsArgs{Scores: kt.Upload(b, scores), ExpertIDs: kt.Upload(b, ids), Dense: b.Room(4 * len(logits)), Tokens: tokens}
				if args.Logits = kt.Upload(b, single); k.Logits == spec.BF16 {
					args.Logits = kt.Upload(b, bits)
				}
				if added {
					args.AddDense = kt.Upload(b, add)
				}
				list.upload(b, &args)
				kt.Run(b, k, 0, args)
				for i, got := range kt.Download[float32](b, args.Dense, len(logits)) {
					token := i / k.NumExperts
					loss := func(l float64) float64 {
						row := slices.Clone(logits[token*k.NumExperts:][:k.NumExperts])
						row[i%k.NumExperts] = l
						return list.loss(token, row, ids[token*k.TopK:][:k.TopK], k.Raw)
					}
					const step = 1e-5
					want := (loss(logits[i]+step) - loss(logits[i]-step)) / (2 * step)
					if added {
						want += float64(add[i])
					}
					require.InDelta(t, want, float64(got), 1e-5, "logit %d of token %d", i%k.NumExperts, token)
				}
			})
		}
	}
}
