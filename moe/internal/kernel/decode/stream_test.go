package decode_test

import (
	"context"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/internal/num"
	"sonicmoe/internal/reference"
	"sonicmoe/internal/spec"
	"sonicmoe/moe/internal/fragments"
	"sonicmoe/moe/internal/kernel/decode"
	kt "sonicmoe/moe/internal/kernel/kerneltest"
	"sonicmoe/moe/internal/route/choose"
	"sonicmoe/moe/internal/weights"
)

// passOfOne is the input of both products for a single token.
type passOfOne struct {
	up
	sums, bias []float32
	w2, b2     []uint16
}

func newPassOfOne(c spec.Config) passOfOne {
	p := passOfOne{up: newUp(c, &kt.Packed{Rows: make([]int, c.NumExperts), Expert: make([]int, c.TopK), Tokens: 1})}
	for _, v := range reference.NewNormal(8, 1).Values(int64(choose.ChainBytes(c) / 4)) {
		p.sums = append(p.sums, num.BF16ToFloat32(v))
	}
	for i := range c.NumExperts {
		p.bias = append(p.bias, float32(i%3)/4)
	}
	s := c.Shapes(1)
	p.w2 = reference.NewNormal(6, 1/math.Sqrt(float64(c.Intermediate))).Values(s.W2.Elements())
	p.b2 = reference.NewNormal(7, 1).Values(s.B2.Elements())
	return p
}

// outcome has the outputs of a pass: H, the scores, the experts, and for each slot in order the row
// of Y times its score.
type outcome struct {
	h      []uint16
	scores []float32
	o      []uint16
	ids    []int32
}

// single runs the kernels of a single token with the given numbers of CTAs. With apart, the second
// kernel starts after the first has ended.
func (p passOfOne) single(b *kt.Bed, ups, downs int, apart bool) outcome {
	c := p.c
	scores, ids, h, o := b.Room(4*c.TopK), b.Room(4*c.TopK), b.Room(2*p.hValues), b.Room(2*c.Hidden)
	a, chosen := b.Room(2*c.TopK*weights.A(c).Elements()), kt.Upload(b, make([]uint32, c.TopK+1))
	first := decode.SingleUpArgs{Sums: kt.Upload(b, p.sums), RouterBias: kt.Upload(b, p.bias), Chosen: chosen, Scores: scores, ExpertIDs: ids,
		X: kt.Upload(b, p.x), W1: kt.Upload(b, p.w1), W3: kt.Upload(b, p.w3), B1: kt.Upload(b, p.b1), B3: kt.Upload(b, p.b3), A: a, H: h}
	second := decode.SingleDownArgs{Chosen: chosen, Scores: scores, A: a, W2: kt.Upload(b, p.w2), B2: kt.Upload(b, p.b2), O: o}
	kt.Queue(b, decode.SingleUp{Config: c}, ups, first)
	if apart {
		require.NoError(b.T, b.Stream.Synchronize(context.Background()))
	}
	kt.Run(b, decode.SingleDown{Config: c}, downs, second)
	return outcome{kt.Download[uint16](b, h, p.hValues), kt.Download[float32](b, scores, c.TopK), kt.Download[uint16](b, o, c.Hidden), kt.Download[int32](b, ids, c.TopK)}
}

// tiny runs the kernels of a few tokens. With apart, the second kernel starts after the first has
// ended.
func (p passOfOne) tiny(b *kt.Bed, ups, downs int, apart bool) outcome {
	c, at := p.c, newRouted(b, p.c, 1)
	h, y, a := b.Room(2*p.hValues), b.Room(2*c.TopK*c.Hidden), b.Room(2*c.TopK*weights.A(c).Elements())
	first := decode.UpArgs{X: kt.Upload(b, p.x), W1: kt.Upload(b, p.w1), W3: kt.Upload(b, p.w3), B1: kt.Upload(b, p.b1), B3: kt.Upload(b, p.b3), A: a, H: h, Rows: c.TopK, TileArgs: at.tiles(b),
		ChoiceArgs: decode.ChoiceArgs{Sums: kt.Upload(b, p.sums), RouterBias: kt.Upload(b, p.bias), ChosenScores: at.scores, ExpertIDs: at.ExpertIDs, Inverse: at.Inverse, Tokens: 1}}
	second := decode.DownArgs{A: a, W2: kt.Upload(b, p.w2), B2: kt.Upload(b, p.b2), Y: y, Rows: c.TopK, TileArgs: at.tiles(b)}
	kt.Queue(b, decode.Up{Config: c, Tiny: true}, ups, first)
	if apart {
		require.NoError(b.T, b.Stream.Synchronize(context.Background()))
	}
	kt.Run(b, decode.Down{Config: c, Tiny: true}, downs, second)
	got := outcome{h: kt.Download[uint16](b, h, p.hValues), scores: kt.Download[float32](b, at.scores, c.TopK), ids: kt.Download[int32](b, at.ExpertIDs, c.TopK)}
	rows, inverse := kt.Download[uint16](b, y, c.TopK*c.Hidden), kt.Download[uint32](b, at.Inverse, c.TopK)
	for i := range c.Hidden {
		var sum float64
		for slot, row := range inverse {
			sum = float64(float32(num.BF16ToFloat64(rows[int(row)*c.Hidden+i])*float64(got.scores[slot]) + sum))
		}
		got.o = append(got.o, num.Float64ToBF16(sum))
	}
	return got
}

// TestSingleToken compares the kernels of a single token with the kernels of a few tokens, for even
// and uneven shares of the CTAs. The down-projection starts during the up-projection. With the late
// timing the test also detects races between them.
func TestSingleToken(t *testing.T) {
	for _, c := range []spec.Config{
		{Hidden: 128, Intermediate: 64, NumExperts: 12, TopK: 3},
		{Hidden: 192, Intermediate: 128, NumExperts: 37, TopK: 2, GateUp: spec.Apart, Bias: true, RouterBias: true},
		{Hidden: 320, Intermediate: 64, NumExperts: 70, TopK: 8, GateUp: spec.Interleaved, Score: spec.SoftmaxAll},
		{Hidden: 64, Intermediate: 192, NumExperts: 16, TopK: 5, Activation: spec.ReLU2, Bias: true},
		// The CTAs handle several items at once. The last time, a CTA can have fewer items left.
		{Hidden: 1088, Intermediate: 256, NumExperts: 9, TopK: 5},
	} {
		p := newPassOfOne(c)
		want := p.tiny(kt.New(t, kt.Early), 1, 1, true)
		ups, downs := c.TopK*c.Intermediate/8, c.Hidden/8
		for i, when := range kt.Timings() {
			for _, ctas := range [][2]int{{ups, downs}, {ups - 1, downs - 1}, {5, 3}, {3, 5}} {
				if testing.Short() && i > 0 && ctas[0] != 3+2*(i%2) {
					continue // one small grid for each later timing
				}
				if testing.Short() && c.Hidden > 1024 && ctas[0] > 5 {
					continue // each CTA repeats the router, and other layers have large grids
				}
				t.Run(fmt.Sprintf("%v %s %v", c, when.Name, ctas), func(t *testing.T) {
					got := p.single(kt.New(t, when), ctas[0], ctas[1], false)
					require.Equal(t, want.ids, got.ids)
					require.Equal(t, want.scores, got.scores)
					kt.SameBits(t, want.h, got.h, "H")
					kt.SameBits(t, want.o, got.o, "O")
				})
			}
		}
	}
}

// TestTinyProductsOverlap checks that the down-projection of tiny CTAs may start before the end of
// the up-projection, although the up-projection writes the table that the down-projection reads.
// With the late timing the test also detects races.
func TestTinyProductsOverlap(t *testing.T) {
	c := spec.Config{Hidden: 192, Intermediate: 128, NumExperts: 70, TopK: 8, Bias: true}
	p := newPassOfOne(c)
	want := p.tiny(kt.New(t, kt.Early), 2, 2, true)
	for _, when := range kt.Timings() {
		require.Equal(t, want, p.tiny(kt.New(t, when), 3, 2, false), when.Name)
	}
}

// TestSingleTokenOfUnits compares the kernels of a single token for units of packed weights with the
// kernels of a few tokens for the values that the units stand for.
func TestSingleTokenOfUnits(t *testing.T) {
	for i, c := range []spec.Config{
		{Hidden: 128, Intermediate: 64, NumExperts: 12, TopK: 3, Weights: "mxfp4"},
		{Hidden: 192, Intermediate: 160, NumExperts: 37, TopK: 2, GateUp: spec.Apart, Bias: true, RouterBias: true, Weights: "int4-g32"},
		{Hidden: 336, Intermediate: 144, NumExperts: 70, TopK: 8, GateUp: spec.Interleaved, Score: spec.SoftmaxAll, Weights: "fp8"},
		{Hidden: 64, Intermediate: 192, NumExperts: 16, TopK: 5, Activation: spec.ReLU2, Bias: true, Weights: "uint4-g32"},
		{Hidden: 1152, Intermediate: 208, NumExperts: 9, TopK: 5, GateUp: spec.Apart, Weights: "nvfp4"},
		{Hidden: 2240, Intermediate: 80, NumExperts: 9, TopK: 4, Weights: "fp8-ue8m0"}, // a CTA has several items
		{Hidden: 2144, Intermediate: 32, NumExperts: 8, TopK: 8, Weights: "mxfp4"},     // a CTA computes two items at once, with a warp for each slice
	} {
		if testing.Short() && i > 2 {
			continue
		}
		p := newPassOfOne(plainOf(c))
		rows := []int{c.HWidth()}
		if c.GateUp == spec.Apart {
			rows = []int{c.Intermediate, c.Intermediate}
		}
		q1, q2 := quantise(t, fragments.W1(c), c.Type, 3, rows, c.Hidden), quantise(t, fragments.W2(c), c.Type, 4, []int{c.Hidden}, c.Intermediate)
		p.w1, p.w2 = q1.plain[0], q2.plain[0]
		if len(q1.plain) == 2 {
			p.w3 = q1.plain[1]
		}
		want := p.tiny(kt.New(t, kt.Early), 1, 1, true)
		ups, downs := c.TopK*fragments.W1(c).Units*4, c.Hidden/16
		for j, when := range kt.Timings() {
			for _, ctas := range [][2]int{{ups, downs}, {ups - 1, max(1, downs-1)}, {5, 3}, {1, 2}} {
				if testing.Short() && (j > 0 || ctas[0] > 5) {
					continue
				}
				t.Run(fmt.Sprintf("%v %s %v", c, when.Name, ctas), func(t *testing.T) {
					b := kt.New(t, when)
					scores, ids, h, o := b.Room(4*c.TopK), b.Room(4*c.TopK), b.Room(2*p.hValues), b.Room(2*c.Hidden)
					a, chosen := b.Room(2*c.TopK*weights.A(c).Elements()), kt.Upload(b, make([]uint32, c.TopK+1))
					kt.Queue(b, decode.SingleUnitsUp{Config: c}, ctas[0], decode.SingleUpArgs{Sums: kt.Upload(b, p.sums), RouterBias: kt.Upload(b, p.bias), Chosen: chosen, Scores: scores, ExpertIDs: ids,
						X: kt.Upload(b, p.x), W1: kt.Upload(b, q1.units), B1: kt.Upload(b, p.b1), B3: kt.Upload(b, p.b3), A: a, H: h})
					kt.Run(b, decode.SingleUnitsDown{Config: c}, ctas[1], decode.SingleDownArgs{Chosen: chosen, Scores: scores, A: a, W2: kt.Upload(b, q2.units), B2: kt.Upload(b, p.b2), O: o})
					require.Equal(t, want.ids, kt.Download[int32](b, ids, c.TopK))
					require.Equal(t, want.scores, kt.Download[float32](b, scores, c.TopK))
					kt.SameBits(t, want.h, kt.Download[uint16](b, h, p.hValues), "H")
					kt.SameBits(t, want.o, kt.Download[uint16](b, o, c.Hidden), "O")
				})
			}
		}
	}
}
