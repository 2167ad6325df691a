package training

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/internal/spec"
	kt "sonicmoe/moe/internal/kernel/kerneltest"
	"sonicmoe/moe/internal/route/order"
)

// scoresOf returns the scores of the chosen experts of a token by their definition. An id outside
// [0, E) has score 0.
func scoresOf(c spec.Config, logits []float64, ids []int32, expertScale []float32) []float64 {
	raw := make([]float64, len(ids))
	var chosen, all, sum float64
	for _, l := range logits {
		all += math.Exp(l)
	}
	valid := func(id int32) bool { return 0 <= id && int(id) < c.NumExperts }
	for _, id := range ids {
		if valid(id) {
			chosen += math.Exp(logits[id])
		}
	}
	for i, id := range ids {
		if !valid(id) {
			continue
		}
		l := logits[id]
		switch c.Score {
		case spec.SoftmaxTopK:
			raw[i] = math.Exp(l) / chosen
		case spec.SoftmaxAll:
			raw[i] = math.Exp(l) / all
		case spec.Sigmoid:
			raw[i] = 1 / (1 + math.Exp(-l))
		case spec.SqrtSoftplus:
			raw[i] = math.Sqrt(math.Log1p(math.Exp(l)))
		}
		sum += raw[i]
	}
	norm := 1.
	switch c.Renormalize {
	case spec.RenormSum:
		norm = sum + c.NormEpsilon
	case spec.RenormClamp:
		norm = max(sum, c.NormEpsilon)
	}
	for i, id := range ids {
		if raw[i] *= c.Scale() / norm; c.ExpertScale && valid(id) {
			raw[i] *= float64(expertScale[id])
		}
	}
	return raw
}

// TestDLogits compares the gradients of the logits with central differences of the scores in
// float64. Some ids are out of range.
func TestDLogits(t *testing.T) {
	const tokens = 9
	for _, c := range []spec.Config{
		{NumExperts: 9, TopK: 2, Score: spec.SoftmaxTopK, ScoreScale: 2.5},
		{NumExperts: 40, TopK: 5, Score: spec.SoftmaxTopK, ExpertScale: true, ScoreScale: 2.5},
		{NumExperts: 40, TopK: 6, Score: spec.SoftmaxAll},
		{NumExperts: 40, TopK: 6, Score: spec.SoftmaxAll, ScoreScale: 16},
		{NumExperts: 33, TopK: 5, Score: spec.SoftmaxAll, Renormalize: spec.RenormSum, ScoreScale: 2.5, ExpertScale: true},
		{NumExperts: 33, TopK: 5, Score: spec.Sigmoid, Renormalize: spec.RenormSum, NormEpsilon: .25, ScoreScale: 2.5},
		{NumExperts: 33, TopK: 5, Score: spec.Sigmoid, Renormalize: spec.RenormClamp, NormEpsilon: 2.5}, // NormEpsilon is above the sum of some tokens
		{NumExperts: 33, TopK: 5, Score: spec.SqrtSoftplus, ScoreScale: .5},
	} {
		c.Logits = spec.F32
		t.Run(fmt.Sprintf("E=%d K=%d %v renorm=%v scale=%g expert scale=%v", c.NumExperts, c.TopK, c.Score, c.Renormalize, c.ScoreScale, c.ExpertScale), func(t *testing.T) {
			b, r := kt.New(t, kt.Early), rand.New(rand.NewPCG(uint64(c.NumExperts), uint64(c.TopK)))
			normal := func(n int) []float32 {
				list := make([]float32, n)
				for i := range list {
					list[i] = float32(r.NormFloat64())
				}
				return list
			}
			logits, ds, scale := normal(tokens*c.NumExperts), normal(tokens*c.TopK), normal(c.NumExperts)
			wide := make([]float64, len(logits))
			for i, l := range logits {
				wide[i] = float64(l)
			}
			var ids []int32
			var rows []uint32
			scores := make([]float32, 0, len(ds))
			for token := range tokens {
				for slot, id := range r.Perm(c.NumExperts)[:c.TopK] {
					row := uint32(len(rows))
					if token%4 == 3 && slot == 1 {
						id, row = c.NumExperts, order.NoRow
					}
					ids, rows = append(ids, int32(id)), append(rows, row)
				}
				for _, s := range scoresOf(c, wide[token*c.NumExperts:][:c.NumExperts], ids[token*c.TopK:], scale) {
					scores = append(scores, float32(s))
				}
			}
			args := DLogitsArgs{ExpertIDs: kt.Upload(b, ids), Inverse: kt.Upload(b, rows), DScores: kt.Upload(b, ds), Tokens: tokens}
			if c.SavesLogits() {
				args.Logits = kt.Upload(b, logits)
			} else {
				args.Scores = kt.Upload(b, scores)
			}
			if c.ExpertScale {
				args.ExpertScale, args.ScaleByRow = kt.Upload(b, scale), b.Room(4*len(ids))
			}
			if Dense(c) {
				args.Dense = b.Room(4 * len(logits))
			} else {
				args.DLogits, args.DLogitByRow = b.Room(4*len(ids)), b.Room(4*len(ids))
			}
			kt.Run(b, DLogits{c}, 0, args)

			want := make([]float64, len(logits))
			for i := range want {
				token := i / c.NumExperts
				loss := func(l float64) (sum float64) {
					row := append([]float64(nil), wide[token*c.NumExperts:][:c.NumExperts]...)
					row[i%c.NumExperts] = l
					for slot, s := range scoresOf(c, row, ids[token*c.TopK:][:c.TopK], scale) {
						sum += s * float64(ds[token*c.TopK+slot])
					}
					return sum
				}
				const step = 1e-5
				want[i] = (loss(wide[i]+step) - loss(wide[i]-step)) / (2 * step)
			}
			near := func(want float64, got float32, what string, at int) {
				require.InDelta(t, want, float64(got), 1e-5*max(1, c.Scale()), "%s %d", what, at)
			}
			if Dense(c) {
				for i, got := range kt.Download[float32](b, args.Dense, len(logits)) {
					near(want[i], got, "logit", i)
				}
			} else {
				bySlot, byRow := kt.Download[float32](b, args.DLogits, len(ids)), kt.Download[float32](b, args.DLogitByRow, len(ids))
				for i, id := range ids {
					if rows[i] == order.NoRow {
						require.Zero(t, bySlot[i])
						continue
					}
					near(want[i/c.TopK*c.NumExperts+int(id)], bySlot[i], "slot", i)
					require.Equal(t, bySlot[i], byRow[rows[i]])
				}
			}
			if c.ExpertScale {
				for i, got := range kt.Download[float32](b, args.ScaleByRow, len(ids)) {
					if rows[i] != order.NoRow {
						near(float64(scores[i])/float64(scale[ids[i]])*float64(ds[i]), got, "scale of row", i)
					}
				}
			}
		})
	}
}
