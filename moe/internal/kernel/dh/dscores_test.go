package dh

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	kt "sonicmoe/moe/internal/kernel/kerneltest"
	"sonicmoe/moe/internal/route/order"
)

// dscoresCase is the size of a test. Some slots have no row, and their score may be NaN.
type dscoresCase struct {
	intermediate, topK, tokens int
	scores, router             bool
}

func (c dscoresCase) run(b *kt.Bed) {
	r := rand.New(rand.NewPCG(uint64(c.intermediate), uint64(c.tokens*100+c.topK)))
	rows, q := c.tokens*c.topK, c.intermediate/64
	inverse, scores, partial := make([]uint32, rows), make([]float32, rows), make([]float32, rows*q)
	for i, row := range r.Perm(rows) {
		inverse[i], scores[i] = uint32(row), r.Float32()
		if r.IntN(5) == 0 {
			inverse[i] = order.NoRow
		}
	}
	for i := range partial {
		partial[i] = float32(r.NormFloat64())
	}
	kernel := DScores{Intermediate: c.intermediate, TopK: c.topK, Scores: c.scores, Router: c.router}
	dscores, dlogits, dlrow := b.Room(4*rows), b.Room(4*rows), b.Room(4*rows)
	kt.Run(b, kernel, 0, ScoresArgs{
		DScorePartials: kt.Upload(b, partial), Inverse: kt.Upload(b, inverse), DScores: dscores,
		Scores: kt.Upload(b, scores), DLogits: dlogits, DLogitByRow: dlrow, Tokens: c.tokens,
	})

	// The expected sums are FP32, in the order that DScores documents. The outputs of pairs without
	// a row stay poison.
	wantScores, wantLogits, wantRows := kt.Poisoned[uint32](rows), kt.Poisoned[uint32](rows), kt.Poisoned[uint32](rows)
	for t := range c.tokens {
		grads, dot := make([]float32, c.topK), float32(0)
		for k := range grads {
			if row := inverse[t*c.topK+k]; row != order.NoRow {
				for _, v := range partial[int(row)*q:][:q] {
					grads[k] += v
				}
				dot += float32(scores[t*c.topK+k] * grads[k])
			}
		}
		for k, g := range grads {
			f := t*c.topK + k
			if c.scores {
				wantScores[f] = math.Float32bits(g)
			}
			if c.router {
				wantLogits[f] = math.Float32bits(scores[f] * (g - dot))
				if row := inverse[f]; row != order.NoRow {
					wantRows[row] = wantLogits[f]
				}
			}
		}
	}
	require.Equal(b.T, wantScores, kt.Download[uint32](b, dscores, rows), "dS")
	require.Equal(b.T, wantLogits, kt.Download[uint32](b, dlogits, rows), "dlogits")
	require.Equal(b.T, wantRows, kt.Download[uint32](b, dlrow, rows), "dlrow")
}

// TestDScores checks that DScores computes the bits of FP32 sums in its order.
func TestDScores(t *testing.T) {
	for i, size := range [][3]int{{64, 1, 1}, {128, 2, 63}, {192, 3, 300}, {256, 8, 65}, {2112, 16, 33}, {4096, 8, 5}, {4288, 5, 52}, {640, 7, 37}} {
		c := dscoresCase{intermediate: size[0], topK: size[1], tokens: size[2], scores: i%3 != 1, router: i%3 != 0}
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) { c.run(kt.New(t, kt.Early)) })
	}
}

func TestDScoresOfNothing(t *testing.T) {
	_, err := DScores{Intermediate: 64, TopK: 1}.Build()
	require.ErrorContains(t, err, "neither Scores nor Router")
}
