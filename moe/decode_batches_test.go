package moe_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/internal/drivertest"
	"sonicmoe/internal/spec"
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
	"sonicmoe/moe/internal/kernel/decode"
	kt "sonicmoe/moe/internal/kernel/kerneltest"
	"sonicmoe/moe/internal/route/choose"
	"sonicmoe/moe/tools"
)

// decodeConfigs are layers with all layouts of gate and up, both formats of logits, and both types.
// Some have more experts than one wgmma of the router covers, sums over more tiles than a ring has
// stages, or more than one chain of logits.
var decodeConfigs = []moe.Config{
	{Hidden: 128, Intermediate: 64, NumExperts: 4, TopK: 2},
	{Hidden: 192, Intermediate: 128, NumExperts: 16, TopK: 8, GateUp: spec.Interleaved},
	{Hidden: 576, Intermediate: 64, NumExperts: 5, TopK: 1, Logits: moe.F32},
	{Hidden: 320, Intermediate: 192, NumExperts: 300, TopK: 10},
	{Hidden: 192, Intermediate: 64, NumExperts: 4, TopK: 2, GateUp: spec.Apart, Bias: true},
	{Hidden: 128, Intermediate: 128, NumExperts: 4, TopK: 2, InOut: true, Activation: spec.GeGLUErf},
	{Hidden: 128, Intermediate: 64, NumExperts: 4, TopK: 2, Activation: spec.ReLU2, Bias: true},
	// In a pass over a single token, each SM has several items of weights, and the last two pairs
	// of strips repeat rows.
	{Hidden: 192, Intermediate: 320, NumExperts: 20, TopK: 16, RouterBias: true, SharedExperts: 1, SharedGate: true},
	{Hidden: 1152, Intermediate: 192, NumExperts: 12, TopK: 8, Bias: true, SharedExperts: 1},
	fp16(moe.Config{Hidden: 192, Intermediate: 128, NumExperts: 16, TopK: 8, GateUp: spec.Interleaved, Bias: true}),
	fp16(moe.Config{Hidden: 128, Intermediate: 192, NumExperts: 20, TopK: 5, InOut: true, SharedExperts: 1, SharedGate: true}),
	// These widths end inside tiles, and inside the two k-tiles of a stage in a pass over a single
	// token.
	{Hidden: 144, Intermediate: 80, NumExperts: 4, TopK: 2, GateUp: spec.Interleaved, Bias: true},
	{Hidden: 208, Intermediate: 48, NumExperts: 20, TopK: 16, SharedExperts: 3, SharedGate: true},
	fp16(moe.Config{Hidden: 336, Intermediate: 176, NumExperts: 5, TopK: 2, InOut: true, Bias: true}),
	{Hidden: 16, Intermediate: 32, NumExperts: 4, TopK: 2, GateUp: spec.Apart, Bias: true},
	// The router chooses the experts and computes a softmax over all logits. The order of its sums
	// is fixed.
	{Hidden: 192, Intermediate: 64, NumExperts: 100, TopK: 6, Score: spec.SoftmaxAll, RouterBias: true},
	{Hidden: 128, Intermediate: 64, NumExperts: 37, TopK: 3, Score: spec.SoftmaxAll, Logits: moe.F32},
	// Gate and up are in pairs, or scores multiply the inputs. The router or another kernel chooses
	// the experts.
	{Hidden: 192, Intermediate: 128, NumExperts: 8, TopK: 2, InOut: true, GateUp: spec.Interleaved, Bias: true, Activation: spec.SwiGLUOAI, Alpha: 1.702, Limit: 0.7},
	fp16(moe.Config{Hidden: 208, Intermediate: 112, NumExperts: 5, TopK: 3, InOut: true, GateUp: spec.Interleaved, Bias: true}),
	{Hidden: 192, Intermediate: 64, NumExperts: 8, TopK: 1, InOut: true, Score: spec.Sigmoid, ScoreOnInput: true, SharedExperts: 1},
	{Hidden: 128, Intermediate: 80, NumExperts: 6, TopK: 3, ScoreOnInput: true, Activation: spec.SiLU},
	fp16(moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 6, TopK: 2, InOut: true, GateUp: spec.Interleaved, ScoreOnInput: true}),
	// In a pass over a single token, each SM has a large share, so that CTAs of both products do
	// not fit on an SM together.
	{Hidden: 64, Intermediate: 528, NumExperts: 32, TopK: 32},
}

// TestSmallBatchBits checks that the kernels for small batches give the bits of the kernels for
// large batches.
func TestSmallBatchBits(t *testing.T) {
	for i, c := range decodeConfigs {
		if testing.Short() && i%6 != 1 && i != len(decodeConfigs)-1 {
			// -short runs every sixth layer and the last. TestCombinations and
			// TestRoutingKindsInSmallBatches cover the other kinds of layers.
			continue
		}
		counts := [][]int{{1, 3, 64, 200}, {8, 33}, {2, 65}, {5}, {1, 20}, {3, 70}, {9}, {}, {2}, {2, 65}, {33}, {1, 70}, {1, 20}, {40}, {1, 7}, {1, 40}, {1, 9}, {1, 70}, {33}, {1, 40}, {9}, {4, 65}, {1}}[i]
		if testing.Short() && len(counts) > 0 {
			counts = counts[len(counts)-1:]
		}
		if !slices.Contains(counts, 1) && (!testing.Short() || i%3 == 0 || len(counts) == 0) {
			counts = append(counts, 1)
		}
		for _, tokens := range counts {
			t.Run(fmt.Sprintf("%d %v", tokens, c), func(t *testing.T) {
				few, many := newTrial(t, c, tokens, 6, moe.WithDecode(tokens), moe.WithoutBackward()), newTrial(t, c, tokens, 6, moe.WithoutDecode(), moe.WithoutBackward())
				require.Contains(t, launched(t, few), decodesBy(few.Layer, tokens))
				require.Contains(t, launched(t, many), "up")
				samePass(t, many, few)
				require.NoError(t, few.Run(context.Background(), few.Inference()))
				infer, err := few.Results(false)
				require.NoError(t, err)
				want, err := many.Results(false)
				require.NoError(t, err)
				kt.SameBits(t, want.O, infer.O, "O of inference")
			})
		}
	}
}

// TestSmallBatchLimit checks the largest small batch of some layers. It is close to the measured
// largest batch for which the kernels for small batches are faster.
func TestSmallBatchLimit(t *testing.T) {
	for _, tt := range []struct{ experts, topK, want int }{
		{8, 2, 484}, {32, 4, 804}, {32, 8, 402}, {64, 8, 744}, {128, 8, 1368}, {256, 16, 1024}, {512, 10, 2048}, // measured sizes
		{1, 1, 121}, {4, 1, 484}, {16, 2, 886}, {160, 6, 2048}, {384, 16, 1536}, {128, 1, 2048}, {32, 32, 100}, {1, 32, 64},
	} {
		require.Equal(t, tt.want, moe.FewTokens(moe.Config{NumExperts: tt.experts, TopK: tt.topK}), "%d experts, %d a token", tt.experts, tt.topK)
	}
}

// TestDecodeKernels checks that a layer has exactly the kernels that its passes can launch. These
// depend on its largest small batch: kernels for a single token, for tiny batches, for ranges, and
// with wide CTAs.
func TestDecodeKernels(t *testing.T) {
	c := decodeConfigs[0]
	wideFrom := decode.WideFrom(c)
	require.Positive(t, wideFrom)
	for _, tt := range []struct {
		few                         int
		decode, small, ranges, wide bool
	}{{0, false, false, false, false}, {1, true, false, false, false}, {2, true, true, false, false}, {64, true, true, false, false}, {65, true, true, true, false},
		{wideFrom - 1, true, true, true, false}, {wideFrom, true, true, true, true}} {
		sources, err := tools.Sources(driver.H200(), c, moe.WithDecode(tt.few), moe.WithoutBackward())
		require.NoError(t, err)
		var names []string
		for _, s := range sources {
			names = append(names, s.Name)
		}
		has := func(name string) bool { return slices.Contains(names, name) }
		for _, name := range []string{"moe_small_batch_logits", "moe_chain_logits", "moe_choose", "moe_decode_up", "moe_decode_down",
			"moe_single_up", "moe_single_down"} {
			require.Equal(t, tt.decode, has(name), "%d tokens are few, %s", tt.few, name)
		}
		for _, name := range []string{"moe_decode_tiny_up", "moe_decode_tiny_down"} {
			require.Equal(t, tt.small, has(name), "%d tokens are few, %s", tt.few, name)
		}
		require.Equal(t, tt.ranges, has("moe_choose_ranges"), "%d tokens are few", tt.few)
		for _, name := range []string{"moe_decode_wide_up", "moe_decode_wide_down"} {
			require.Equal(t, tt.wide, has(name), "%d tokens are few, %s", tt.few, name)
		}
		require.True(t, has("moe_up") && has("moe_down") && has("moe_plan"), "%v", names)
	}
}

// TestDecodeKernelsAreLaunched checks that passes over small batches launch every kernel that a
// layer has for them, and no others. The documentation of package kernel has the numbers of
// launches.
func TestDecodeKernelsAreLaunched(t *testing.T) {
	plain := []string{"decode-up", "decode-down", "aggregate-early"}
	chooses := append([]string{"small-batch-logits", "choose"}, plain...)
	lone := []string{"chain-logits", "single-up", "single-down"}
	small := []string{"chain-logits", "decode-tiny-up", "decode-tiny-down"}
	for _, tt := range []struct {
		name   string
		few    int
		config moe.Config
		want   []string
		// launches has the number of launches of passes over 1, 2, 9, 65 and 96 tokens, up to the
		// largest small batch.
		launches []int
	}{
		{"one token", 1, moe.Config{Hidden: 64, Intermediate: 16, NumExperts: 4, TopK: 2}, slices.Concat(chooses, lone), []int{3}},
		{"two", 2, moe.Config{Hidden: 64, Intermediate: 16, NumExperts: 4, TopK: 2}, slices.Concat(chooses, lone, small[1:]), []int{3, 4}},
		{"wide CTAs", 96, moe.Config{Hidden: 64, Intermediate: 16, NumExperts: 2, TopK: 1}, slices.Concat(chooses, lone, small[1:], []string{"choose-ranges", "decode-wide-up", "decode-wide-down"}), []int{3, 4, 5, 6, 6}},
		{"one token in tiny CTAs, for InOut weights", 1, moe.Config{Hidden: 64, Intermediate: 16, NumExperts: 4, TopK: 2, InOut: true}, slices.Concat(chooses, small), []int{4}},
		{"memory for the sums, but not for the chains", 65, moe.Config{Hidden: 320, Intermediate: 16, NumExperts: 56, TopK: 1}, slices.Concat(chooses, lone, []string{"choose-ranges"}), []int{3, 5, 5, 6}},
		{"the same without kernels for a single token", 65, moe.Config{Hidden: 320, Intermediate: 16, NumExperts: 56, TopK: 1, InOut: true}, slices.Concat(chooses, []string{"choose-ranges"}), []int{5, 5, 5, 6}},
		{"no memory for the router's sums", 65, moe.Config{Hidden: 32, Intermediate: 16, NumExperts: 17, TopK: 1}, plain, []int{5, 5, 5, 5}},
		{"scores on the input", 65, moe.Config{Hidden: 64, Intermediate: 16, NumExperts: 4, TopK: 2, ScoreOnInput: true}, slices.Concat(chooses, []string{"choose-ranges"}), []int{5, 5, 5, 6}},
		{"a router of FP32 weights", 8, moe.Config{Hidden: 64, Intermediate: 16, NumExperts: 4, TopK: 2, RouterF32: true, Logits: moe.F32}, chooses, []int{6, 6}},
		{"shared experts", 65, moe.Config{Hidden: 64, Intermediate: 16, NumExperts: 4, TopK: 2, SharedExperts: 1}, slices.Concat(chooses, lone, small[1:], []string{"choose-ranges", "shared-decode-up", "shared-decode-down"}), []int{6, 7, 8, 9}},
		{"scores by sigmoid", 65, moe.Config{Hidden: 64, Intermediate: 16, NumExperts: 4, TopK: 2, Score: spec.Sigmoid}, append([]string{"small-batch-logits"}, plain...), []int{6, 6, 6, 6}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dev, seen := testDevice(t), map[string]bool{}
			l := newLayer(t, dev, tt.config, moe.WithDecode(tt.few), moe.WithoutBackward())
			many := newLayer(t, dev, tt.config, moe.WithoutDecode(), moe.WithoutBackward()).Kernels()
			for i, tokens := range []int{1, 2, 9, 65, 96}[:len(tt.launches)] {
				tr, err := trial.New(dev, l, tokens, 1, 6)
				require.NoError(t, err)
				require.Len(t, launched(t, tr), tt.launches[i], "%d tokens", tokens)
				tr.Call().Observe(func(kernel string, _ driver.Stream) error {
					seen[kernel] = true
					return nil
				})
				for _, f := range []moe.ForwardArgs{tr.Args, tr.Inference()} {
					for _, pass := range []func(driver.Stream, moe.ForwardArgs) error{tr.Call().Forward, tr.Call().Route, tr.Call().ForwardExperts} {
						require.NoError(t, pass(tr.Stream(), f))
					}
				}
				require.NoError(t, tr.Stream().Synchronize(testContext(t)))
				require.NoError(t, tr.Close())
			}
			isOfMany := func(kernel string) bool { return slices.Contains(many, kernel) }
			require.ElementsMatch(t, tt.want, slices.DeleteFunc(l.Kernels(), isOfMany), "the layer's")
			require.ElementsMatch(t, tt.want, slices.DeleteFunc(slices.Collect(maps.Keys(seen)), isOfMany), "launched")
		})
	}
}

// launched returns the names of the kernels of a training pass.
func launched(t *testing.T, tr *trial.Trial) (names []string) {
	tr.Call().Observe(func(kernel string, _ driver.Stream) error {
		names = append(names, kernel)
		return nil
	})
	defer tr.Call().Observe(nil)
	require.NoError(t, tr.Run(context.Background(), tr.Args))
	return names
}

// samePass compares all outputs of two training passes.
func samePass(t *testing.T, want, got *trial.Trial) {
	a, err := want.Results(true)
	require.NoError(t, err)
	b, err := got.Results(true)
	require.NoError(t, err)
	kt.SameBits(t, a.ExpertIDs, b.ExpertIDs, "experts")
	kt.SameBits(t, a.Scores, b.Scores, "scores")
	kt.SameBits(t, a.H, b.H, "H")
	kt.SameBits(t, a.O, b.O, "O")
}

// TestBatchInvariance checks that a token's output does not depend on the rest of the batch. The
// output must be the same if the token is alone, if the tokens are in another order, in a captured
// pass, and in a large batch. Long runs on a GPU draw 200 batches of up to 2048 of 4096 tokens.
func TestBatchInvariance(t *testing.T) {
	configs, tokens, most, more := decodeConfigs[:2], 200, 200, 0
	switch {
	case kt.Long() && drivertest.Name() == "cuda":
		tokens, most, more = 4096, 2048, 200
	case kt.Long():
		more = 50
	}
	if kt.Long() {
		configs = append(slices.Clone(configs), decodeConfigs[4:6]...)
	}
	for _, c := range configs {
		t.Run(c.String(), func(t *testing.T) {
			few := min(moe.FewTokens(c), tokens/2) // the layer's own limit, unless the whole batch would then be small
			whole := newTrial(t, c, tokens, 6, moe.WithDecode(few), moe.WithoutBackward())
			require.Contains(t, launched(t, whole), "up")
			want, err := whole.Results(false)
			require.NoError(t, err)
			random := rand.New(rand.NewPCG(1, 2))
			batches := [][]int{{0}, {77}, {149, 3, 60, 5, 4, 2, 1, 148, 20}, {20, 1, 77, 0, 150}, random.Perm(tokens)[:64]}
			for range more { // small batches are as frequent as large ones, for each kernel
				batch := random.Perm(tokens)[:1+random.IntN(most>>random.IntN(8))]
				batches = append(batches, batch, batch[:1])
			}
			for i, batch := range batches {
				part, o := partOf(t, whole, batch, want.O)
				if kernels := launched(t, part); i < 5 {
					require.Contains(t, kernels, decodesBy(part.Layer, len(batch)))
				}
				got, err := part.Results(false)
				require.NoError(t, err)
				kt.SameBits(t, o, got.O, fmt.Sprint("O of tokens ", batch))
				require.NoError(t, part.Poison())
				captured(t, part)
				got, err = part.Results(false)
				require.NoError(t, err)
				kt.SameBits(t, o, got.O, fmt.Sprint("O of a captured pass over tokens ", batch))
				require.NoError(t, part.Close())
			}
		})
	}
}

// partOf returns a trial of some tokens of another trial, and the rows of the other trial's output
// for these tokens.
func partOf(t *testing.T, whole *trial.Trial, tokens []int, of []uint16) (*trial.Trial, []uint16) {
	var x, o []uint16
	d := whole.Layer.Config().Hidden
	for _, i := range tokens {
		x, o = append(x, whole.X[i*d:][:d]...), append(o, of[i*d:][:d]...)
	}
	part, err := trial.FromHost(testDevice(t), whole.Layer, len(tokens), x, whole.Weights)
	require.NoError(t, err)
	return part, o
}

// captured runs a trial's inference pass in a graph.
func captured(t *testing.T, tr *trial.Trial) {
	s := tr.Stream()
	g := capture(t, s, func() error { return tr.Call().Forward(s, tr.Inference()) })
	defer g.Close()
	require.NoError(t, g.Launch(s))
	require.NoError(t, s.Synchronize(testContext(t)))
}

// TestDecodeBounds compares passes over small batches with float64, with the same bounds as for
// large batches. Long runs check every number of tokens up to 257.
func TestDecodeBounds(t *testing.T) {
	numbers := []int{2, 65}
	if !testing.Short() {
		numbers = []int{1, 2, 7, 8, 9, 63, 64, 65, 129, 257}
	}
	if kt.Long() {
		numbers = nil
		for n := range 257 {
			numbers = append(numbers, n+1)
		}
	}
	c := decodeConfigs[1]
	l, err := moe.New(testContext(t), testDevice(t), c, moe.WithDecode(slices.Max(numbers)), moe.WithoutBackward(), moe.WithoutCache())
	require.NoError(t, err)
	for _, tokens := range numbers {
		tr, err := trial.New(testDevice(t), l, tokens, uint64(tokens), 6)
		require.NoError(t, err)
		rep, err := tr.Check(forward(t, tr, tr.Args), tokens)
		require.NoError(t, err)
		require.NoError(t, rep.Check(), "%d tokens", tokens)
		require.NoError(t, tr.Close())
	}
}

// TestDecodeGivenExperts checks that the kernels for small batches give the bits of the kernels for
// large batches if a token has an expert twice or ids are invalid. A captured pass must work with
// ids that are all invalid, and then with others, in the same buffers.
func TestDecodeGivenExperts(t *testing.T) {
	const tokens = 21
	c := decodeConfigs[1]
	few, many := newTrial(t, c, tokens, 6, moe.WithDecode(tokens), moe.WithoutBackward()), newTrial(t, c, tokens, 6, moe.WithoutDecode(), moe.WithoutBackward())
	random := rand.New(rand.NewPCG(3, 4))
	ids, scores, nobody := make([]int32, tokens*c.TopK), make([]float32, tokens*c.TopK), make([]int32, tokens*c.TopK)
	for i := range ids {
		ids[i], scores[i], nobody[i] = int32(random.IntN(c.NumExperts+3)), random.Float32(), int32(c.NumExperts)
	}
	for i := range c.TopK {
		ids[i], ids[c.TopK+i] = 5, int32(c.NumExperts)
	}
	given := func(tr *trial.Trial, ids []int32) {
		require.NoError(t, moe.Write(tr.Stream(), tr.Args.ExpertIDs, ids))
		require.NoError(t, moe.Write(tr.Stream(), tr.Args.Scores, scores))
	}
	outputs := func(tr *trial.Trial) []uint16 {
		o := make([]uint16, tokens*c.Hidden)
		require.NoError(t, moe.Read(tr.Stream(), tr.Args.O, o))
		return o
	}
	given(many, ids)
	require.NoError(t, many.Call().ForwardExperts(many.Stream(), many.Inference()))
	want := outputs(many)
	require.Equal(t, make([]uint16, c.Hidden), want[c.Hidden:2*c.Hidden], "a token of nobody")
	s := few.Stream()
	given(few, ids)
	require.NoError(t, few.Call().ForwardExperts(s, few.Inference()))
	kt.SameBits(t, want, outputs(few), "O")
	g := capture(t, s, func() error { return few.Call().ForwardExperts(s, few.Inference()) })
	defer g.Close()
	for name, step := range map[string]struct {
		ids  []int32
		want []uint16
	}{"nobody": {nobody, make([]uint16, len(want))}, "others": {ids, want}} {
		require.NoError(t, few.Poison())
		given(few, step.ids)
		require.NoError(t, g.Launch(s))
		require.NoError(t, s.Synchronize(context.Background()))
		kt.SameBits(t, step.want, outputs(few), "O of "+name)
	}
}

// decodesBy returns the name of the up-projection of a training pass over a small
// batch.
func decodesBy(l *moe.Layer, tokens int) string {
	if tokens == 1 && choose.HasSingle(l.Config()) {
		return "single-up"
	}
	if from := decode.WideFrom(l.Config()); from > 0 && tokens >= from {
		return "decode-wide-up"
	}
	if tokens <= decode.MaxTiny && choose.ChoosesInProducts(l.Config()) {
		return "decode-tiny-up"
	}
	return "decode-up"
}
