package decode_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/internal/num"
	"sonicmoe/internal/reference"
	"sonicmoe/internal/spec"
	"sonicmoe/jit/gemm"
	"sonicmoe/moe/internal/fragments"
	"sonicmoe/moe/internal/kernel/decode"
	kt "sonicmoe/moe/internal/kernel/kerneltest"
	"sonicmoe/moe/internal/route/choose"
	"sonicmoe/moe/internal/route/order"
)

// routed has the tensors that the choice of experts writes.
type routed struct {
	order.PlanTensors
	scores, logits driver.DevicePtr
}

func newRouted(b *kt.Bed, c spec.Config, tokens int) routed {
	pairs := tokens * c.TopK
	return routed{scores: b.Room(4 * pairs), logits: b.Room(2 * tokens * c.NumExperts), PlanTensors: order.PlanTensors{
		ExpertIDs: b.Room(4 * pairs), Gather: b.Room(4 * pairs), Inverse: b.Room(4 * pairs), Offsets: b.Room(4 * (c.NumExperts + 1)),
		Table: b.Room(int(order.Plan{NumExperts: c.NumExperts}.TableBytes(pairs))), RowPairs: kt.Upload(b, []uint32{0}), Tickets: b.Room(8),
	}}
}

// tiles returns the tile arguments of a product, with fresh tickets.
func (r routed) tiles(b *kt.Bed) gemm.TileArgs {
	return gemm.TileArgs{Table: r.Table, RowPairs: r.RowPairs, Tickets: kt.Upload(b, []uint32{0})}
}

// TestTinyUp checks that the up-projection with tiny CTAs chooses and plans the same as the kernel
// Choose, and gives the same bits as the narrow up-projection of plain weights, under every timing.
func TestTinyUp(t *testing.T) {
	for i, c := range []spec.Config{
		{Hidden: 128, Intermediate: 64, NumExperts: 4, TopK: 2},
		{Hidden: 192, Intermediate: 128, NumExperts: 37, TopK: 8, GateUp: spec.Apart, Bias: true, RouterBias: true},
		{Hidden: 320, Intermediate: 64, NumExperts: 300, TopK: 10, InOut: true},
		{Hidden: 64, Intermediate: 128, NumExperts: 128, TopK: 16, Score: spec.SoftmaxAll, Activation: spec.ReLU2},
		{Hidden: 64, Intermediate: 64, NumExperts: 16, TopK: 16},
		{Hidden: 192, Intermediate: 128, NumExperts: 20, TopK: 4, Bias: true, Weights: "mxfp4"},
	} {
		for tokens := 1 + i%3; tokens <= decode.MaxTiny; tokens += 2 + i%2 {
			if testing.Short() && tokens < decode.MaxTiny-2 {
				continue
			}
			t.Run(fmt.Sprintf("%d %v", tokens, c), func(t *testing.T) {
				pairs := tokens * c.TopK
				u := newUp(plainOf(c), &kt.Packed{Rows: make([]int, c.NumExperts), Expert: make([]int, pairs), Tokens: tokens})
				uploadW1 := func(b *kt.Bed) driver.DevicePtr { return kt.Upload(b, u.w1) }
				if spec.IsPacked(c) {
					q := quantise(t, fragments.W1(c), spec.BF16, 3, []int{c.HWidth()}, c.Hidden)
					u.w1, uploadW1 = q.plain[0], func(b *kt.Bed) driver.DevicePtr { return kt.Upload(b, q.units) }
				}
				chains, values := choose.ChainBytes(c)/4/c.NumExperts, tokens*c.NumExperts
				sums, bias := make([]float32, chains*values), make([]float32, c.NumExperts)
				for i, v := range reference.NewNormal(8, 1).Values(int64(len(sums))) {
					sums[i] = num.BF16ToFloat32(v)
				}
				for i := range bias {
					bias[i] = float32(i%3) / 4
				}
				added := make([]float32, values) // the sums over all chains, as the router kernel of larger batches writes them
				for i := range added {
					for chain := range chains {
						added[i] += sums[chain*values+i]
					}
					if c.RouterBias {
						added[i] += bias[i%c.NumExperts]
					}
				}
				b := kt.New(t, kt.Early)
				want := newRouted(b, c, tokens)
				kt.Run(b, choose.Choose{Router: choose.RouterOf(c)}, 0, choose.ChooseArgs{SmallBatchLogits: kt.Upload(b, added), Scores: want.scores, Logits: want.logits, PlanTensors: want.PlanTensors, Tokens: tokens})
				h, a := b.Room(2*u.hValues), b.Room(2*u.rows*c.Intermediate)
				args := decode.UpArgs{X: kt.Upload(b, u.x), Gather: want.Gather, W1: kt.Upload(b, u.w1), W3: kt.Upload(b, u.w3), B1: kt.Upload(b, u.b1), B3: kt.Upload(b, u.b3),
					A: a, H: h, Rows: pairs, TileArgs: want.tiles(b)}
				kt.Run(b, decode.Up{Config: u.c}, 2, args)
				outputs := func(b *kt.Bed, of routed, args decode.UpArgs) map[string][]uint32 {
					at := map[string][]uint32{}
					for what, out := range map[string]struct {
						at    driver.DevicePtr
						words int
					}{
						"experts": {of.ExpertIDs, pairs}, "scores": {of.scores, pairs}, "logits": {of.logits, tokens * c.NumExperts / 2}, "inverse": {of.Inverse, pairs},
						"H": {args.H, u.hValues / 2}, "A": {args.A, u.rows * c.Intermediate / 2}, "entries": {of.RowPairs, 1},
					} {
						at[what] = kt.Download[uint32](b, out.at, out.words)
					}
					at["table"] = kt.Download[uint32](b, of.Table, 4*int(at["entries"][0]))
					for i := 3; i < len(at["table"]); i += 4 {
						at["table"][i] = 0 // clears the set of tokens, which only tiny CTAs write
					}
					return at
				}
				wanted := outputs(b, want, args)
				for j, when := range kt.Timings() {
					b := kt.New(t, when)
					got := newRouted(b, c, tokens)
					args := args
					args.X, args.W1, args.W3, args.B1, args.B3 = kt.Upload(b, u.x), uploadW1(b), kt.Upload(b, u.w3), kt.Upload(b, u.b1), kt.Upload(b, u.b3)
					args.Gather = 0
					args.A, args.H, args.TileArgs = b.Room(2*u.rows*c.Intermediate), b.Room(2*u.hValues), got.tiles(b)
					args.ChoiceArgs = decode.ChoiceArgs{Sums: kt.Upload(b, sums), RouterBias: kt.Upload(b, bias), ChosenScores: got.scores, ExpertIDs: got.ExpertIDs, Logits: got.logits, Inverse: got.Inverse, Tokens: tokens}
					kt.Run(b, decode.Up{Config: c, Tiny: true, Units: spec.IsPacked(c)}, 1+(i+j)%4, args)
					require.Equal(t, wanted, outputs(b, got, args), when.Name)
				}
			})
		}
	}
}
