package moe_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/internal/num"
	"sonicmoe/internal/spec"
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
)

// packedLayers are small layers with packed weights. They have partial groups and blocks, all
// layouts of gate and up, biases, shared experts, lists, and more experts than a ballot has bits.
var packedLayers = []moe.Config{
	{Hidden: 160, Intermediate: 96, NumExperts: 6, TopK: 2, Weights: "mxfp4"},
	{Hidden: 96, Intermediate: 224, NumExperts: 40, TopK: 3, Weights: "mxfp4", GateUp: spec.Interleaved, Bias: true, Activation: spec.SwiGLUOAI, Alpha: 1.702, Limit: 7},
	{Hidden: 208, Intermediate: 144, NumExperts: 5, TopK: 2, Weights: "fp8"},
	{Hidden: 128, Intermediate: 80, NumExperts: 7, TopK: 3, Weights: "fp8-ue8m0", GateUp: spec.Apart, SharedExperts: 1, SharedGate: true},
	{Hidden: 288, Intermediate: 160, NumExperts: 33, TopK: 1, Weights: "mxfp4", Activation: spec.ReLU2, Lists: true},
	{Hidden: 144, Intermediate: 272, NumExperts: 4, TopK: 4, Weights: "fp8", Score: spec.Sigmoid, ScoreOnInput: true, GateUp: spec.Interleaved},
	{Hidden: 128, Intermediate: 160, NumExperts: 5, TopK: 2, Weights: "int4-g32"},
	{Hidden: 256, Intermediate: 128, NumExperts: 6, TopK: 3, Weights: "int4-g128", GateUp: spec.Apart},
	{Hidden: 144, Intermediate: 112, NumExperts: 5, TopK: 2, Weights: "fp8-tensor"},
	{Hidden: 144, Intermediate: 80, NumExperts: 6, TopK: 2, Weights: "nvfp4"},
	{Hidden: 80, Intermediate: 176, NumExperts: 5, TopK: 3, Weights: "nvfp4", GateUp: spec.Apart, SharedExperts: 1},
	{Hidden: 96, Intermediate: 160, NumExperts: 5, TopK: 2, Weights: "uint4-g32"},
	{Hidden: 128, Intermediate: 256, NumExperts: 4, TopK: 2, Weights: "uint4-g128", GateUp: spec.Apart, Bias: true},
	{Hidden: 160, Intermediate: 96, NumExperts: 5, TopK: 2, Weights: "uint4-g32-f16", Type: moe.F16, Logits: moe.F16},
	{Hidden: 128, Intermediate: 128, NumExperts: 3, TopK: 2, Weights: "uint4-g128-f16", Activation: spec.ReLU2},
	{Hidden: 96, Intermediate: 64, NumExperts: 5, TopK: 2, Weights: "int4-g32", Type: moe.F16, Logits: moe.F16},
}

// plainTwin returns a trial of the layer with plain weights. It has the same tokens, and the
// unpacked values of the same weights.
func plainTwin(t *testing.T, tr *trial.Trial, dev driver.Device, opts ...moe.Option) *trial.Trial {
	c := tr.Layer.Config()
	c.Weights = ""
	plain, err := trial.FromHost(dev, newLayer(t, dev, c, opts...), tr.Tokens, tr.X, tr.Weights)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, plain.Close()) })
	return plain
}

// TestPackedForward checks, for small and large batches, that a packed layer has the bits of the
// layer of plain weights with the unpacked values.
func TestPackedForward(t *testing.T) {
	layers, batches := packedLayers, []int{512, 200, 65, 33, 7, 2, 1}
	if testing.Short() {
		layers, batches = packedLayers[:3], batches[2:]
	}
	for i, c := range layers {
		t.Run(c.String(), func(t *testing.T) {
			dev := testDevice(t)
			opts := []moe.Option{moe.WithoutBackward(), moe.WithDecode([]int{64, 600}[i%2])}
			packed := trialOn(t, dev, c, batches[0], opts...)
			plain := plainTwin(t, packed, dev, opts...)
			for _, tokens := range batches {
				for _, f := range []func(*trial.Trial) moe.ForwardArgs{(*trial.Trial).Inference, func(tr *trial.Trial) moe.ForwardArgs { return tr.Args }} {
					got, want := forwardOf(t, packed, f(packed), tokens), forwardOf(t, plain, f(plain), tokens)
					require.Equal(t, want, got, "%d tokens", tokens)
				}
			}
			r, err := packed.Check(forward(t, packed, packed.Args), 8)
			require.NoError(t, err)
			require.NoError(t, r.Check())
		})
	}
}

// forwardOf runs a forward pass of the first tokens on poisoned outputs. It cuts the scores after
// these tokens. The other results still have the poison after them.
func forwardOf(t testing.TB, tr *trial.Trial, f moe.ForwardArgs, tokens int) trial.Results {
	f, err := f.Tokens(tokens)
	require.NoError(t, err)
	r := forward(t, tr, f)
	r.Scores = r.Scores[:f.Scores.Shape.Elements()]
	return r
}

// besideLayers are layers whose matrices have equal parts, and a last part that is smaller.
var besideLayers = []moe.Config{
	{Hidden: 144, Intermediate: 80, NumExperts: 4, TopK: 3, Weights: "nvfp4", GateUp: spec.Apart},
	{Hidden: 256, Intermediate: 128, NumExperts: 6, TopK: 2, Weights: "fp8"},
	{Hidden: 384, Intermediate: 128, NumExperts: 3, TopK: 2, Weights: "fp8-ue8m0", GateUp: spec.Apart},
	{Hidden: 128, Intermediate: 64, NumExperts: 40, TopK: 1, Weights: "uint4-g32", GateUp: spec.Interleaved},
	{Hidden: 128, Intermediate: 128, NumExperts: 3, TopK: 2, Weights: "mxfp4", Activation: spec.ReLU2},
}

// TestPackedBeside checks passes whose up-projection runs next to the kernel that unpacks. Two layers
// with other weights use the same workspace in turns, so values of the pass before differ.
func TestPackedBeside(t *testing.T) {
	type pass struct{ layer, trial, tokens int }
	wants := map[pass]trial.Results{} // of layers of plain weights; every device gives these bits
	for n, d := range timedDevices(t) {
		t.Run(d.name, func(t *testing.T) {
			for i, c := range besideLayers {
				if testing.Short() && (i > 1 || i == 1 && n > 0) {
					break
				}
				opts := []moe.Option{moe.WithoutBackward(), moe.WithoutDecode()}
				packed := trialOn(t, d.dev, c, 150, opts...)
				moe.BesideAlways(packed.Layer)
				other, err := trial.New(d.dev, packed.Layer, 150, 2, 6)
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, other.Close()) })
				other.Args.Workspace = packed.Args.Workspace
				var launched []string
				packed.Call().Observe(func(kernel string, _ driver.Stream) error {
					launched = append(launched, kernel)
					return nil
				})
				for turn, tr := range []*trial.Trial{packed, other, packed} {
					for _, tokens := range []int{150, 33} {
						of := pass{i, turn % 2, tokens}
						want, ok := wants[of]
						if !ok {
							plain := plainTwin(t, tr, d.dev, opts...)
							want = forwardOf(t, plain, plain.Inference(), tokens)
							wants[of] = want
						}
						require.Equal(t, want, forwardOf(t, tr, tr.Inference(), tokens), "%v, %d tokens", c, tokens)
					}
				}
				require.Subset(t, launched, []string{"unpack", "up-beside"})
				packed.Call().Observe(nil)
				want := forward(t, packed, packed.Inference()).O
				g := capture(t, packed.Stream(), func() error { return other.Call().Forward(packed.Stream(), other.Inference()) },
					func() error { return packed.Call().Forward(packed.Stream(), packed.Inference()) })
				defer g.Close()
				require.NoError(t, packed.Poison())
				for range 2 {
					require.NoError(t, g.Launch(packed.Stream()))
				}
				got, err := packed.Results(false)
				require.NoError(t, err)
				require.Equal(t, want, got.O, "%v, in a graph", c)
			}
		})
	}
}

// TestPackedGiven checks given experts: some have no tokens, some ids repeat, and some are out of
// range.
func TestPackedGiven(t *testing.T) {
	for _, d := range timedDevices(t) {
		t.Run(d.name, func(t *testing.T) {
			const tokens = 70
			c := packedLayers[0]
			packed := trialOn(t, d.dev, c, tokens, moe.WithoutBackward(), moe.WithDecode(64))
			plain := plainTwin(t, packed, d.dev, moe.WithoutBackward(), moe.WithDecode(64))
			ids, scores := make([]int32, tokens*c.TopK), make([]float32, tokens*c.TopK)
			for i := range ids {
				ids[i], scores[i] = [...]int32{4, 1, 4, 4, 99, -1, 1, 4}[i%8], float32(i%5)/4
			}
			for _, n := range []int{3, tokens} {
				var outputs [2][]uint16
				for i, tr := range []*trial.Trial{packed, plain} {
					require.NoError(t, tr.Poison())
					require.NoError(t, moe.Write(tr.Stream(), tr.Args.ExpertIDs, ids))
					require.NoError(t, moe.Write(tr.Stream(), tr.Args.Scores, scores))
					f, err := tr.Args.Tokens(n)
					require.NoError(t, err)
					require.NoError(t, tr.Call().ForwardExperts(tr.Stream(), f))
					require.NoError(t, tr.Layer.Explain(tr.Stream().Synchronize(testContext(t))))
					outputs[i] = make([]uint16, n*c.Hidden)
					require.NoError(t, moe.Read(tr.Stream(), f.O, outputs[i]))
				}
				require.Equal(t, outputs[1], outputs[0], "%d tokens", n)
			}
		})
	}
}

// TestPackedList checks passes over a list of tokens and experts.
func TestPackedList(t *testing.T) {
	const tokens = 40
	dev, c := testDevice(t), packedLayers[4]
	packed := trialOn(t, dev, c, tokens, moe.WithoutBackward(), moe.WithoutDecode())
	plain := plainTwin(t, packed, dev, moe.WithoutBackward(), moe.WithoutDecode())
	l := newList(rand.New(rand.NewPCG(5, 6)), c, tokens, 3*tokens)
	var outputs [2][]uint16
	for i, tr := range []*trial.Trial{packed, plain} {
		require.NoError(t, tr.Poison())
		f := tr.Inference()
		f.List = tr.Memory().RoutingList(tr.Layer, len(l.ids))
		sizes, err := tr.Layer.ListSizes(tokens, len(l.ids))
		require.NoError(t, err)
		f.Workspace = tr.Memory().Buffer(sizes.Workspace)
		require.NoError(t, tr.Memory().Err())
		require.NoError(t, moe.Write(tr.Stream(), f.List.Tokens, l.tokens))
		require.NoError(t, moe.Write(tr.Stream(), f.List.ExpertIDs, l.ids))
		require.NoError(t, moe.Write(tr.Stream(), f.List.Scores, l.scores))
		require.NoError(t, tr.Call().ForwardExperts(tr.Stream(), f))
		r, err := tr.Results(false)
		require.NoError(t, err)
		outputs[i] = r.O
	}
	require.Equal(t, outputs[1], outputs[0])
}

// TestPackedBackward checks that all gradients have the bits of the layer of plain weights, and
// that Backward refuses gradients of packed weights.
func TestPackedBackward(t *testing.T) {
	for i, c := range packedLayers {
		if testing.Short() && i > 1 || c.Lists {
			continue
		}
		t.Run(c.String(), func(t *testing.T) {
			dev, tokens := testDevice(t), 70
			packed := trialOn(t, dev, c, tokens)
			plain := plainTwin(t, packed, dev)
			var got [2][]moe.Tensor
			for i, tr := range []*trial.Trial{packed, plain} {
				forward(t, tr, tr.Args)
				require.NoError(t, tr.PrepareBackward(7, moe.F32))
				b := tr.Back
				b.DW1, b.DW3, b.DW2 = moe.Gradient{}, moe.Gradient{}, moe.Gradient{}
				require.NoError(t, tr.RunBackward(testContext(t), b))
				got[i] = []moe.Tensor{b.DX, b.DScores, b.DRouter.Tensor, b.DB1.Tensor, b.DB2.Tensor, b.DSharedW1.Tensor, b.DSharedW2.Tensor}
			}
			for i := range got[0] {
				a, err := packed.Rows(got[0][i], 1, nil)
				require.NoError(t, err)
				b, err := plain.Rows(got[1][i], 1, nil)
				require.NoError(t, err)
				require.Equal(t, b, a, "gradient %d", i)
			}
			b := packed.Back
			b.DW2 = moe.Gradient{Tensor: packed.Memory().Tensor(plain.Back.DW2.Shape)}
			err := packed.Call().Backward(packed.Stream(), b)
			require.EqualError(t, err, fmt.Sprintf("DW2 is %v, must be none: W2 is packed (%s), and packed weights have no gradients; DX and DScores have", b.DW2.Shape, c.Weights))
		})
	}
}

// TestPackedArguments checks that the errors of wrong packed tensors name the tensor.
func TestPackedArguments(t *testing.T) {
	tr := trialOn(t, testDevice(t), packedLayers[2], 3, moe.WithoutBackward(), moe.WithoutDecode())
	for _, tt := range []struct {
		change func(f *moe.ForwardArgs)
		want   string
	}{
		{func(f *moe.ForwardArgs) { f.W1Scale = moe.Tensor{} }, "W1Scale is missing, must be f32 [5 3 2]"},
		{func(f *moe.ForwardArgs) { f.W2Scale.Shape.Dims[2] = 1 }, "W2Scale is f32 [5 2 1], must be f32 [5 2 2]"},
		{func(f *moe.ForwardArgs) { f.W2Scale.Shape.Type = moe.U8 }, "W2Scale is u8 [5 2 2], must be f32 [5 2 2]"},
		{func(f *moe.ForwardArgs) { f.W1.Shape.Type = moe.BF16 }, "W1 is bf16 [5 288 208], must be u8 [5 288 208]"},
		{func(f *moe.ForwardArgs) { f.W3Scale = f.W2Scale }, "W3Scale is f32 [5 2 2], must be none: the layer has no such weight"},
		{func(f *moe.ForwardArgs) { f.W2Scale.Ptr += 4 }, "W2Scale.Ptr is "},
	} {
		f := tr.Inference()
		tt.change(&f)
		require.ErrorContains(t, tr.Call().Forward(tr.Stream(), f), tt.want)
	}
	for _, tt := range []struct {
		c    moe.Config
		want string
	}{
		{moe.Config{Hidden: 64, Intermediate: 48, Weights: "mxfp4"}, "Config.Intermediate is 48, must be a multiple of 32 with Weights mxfp4: a group does not cross the edge of a matrix"},
		{moe.Config{Hidden: 48, Intermediate: 64, Weights: "mxfp4"}, "Config.Hidden is 48, must be a multiple of 32 with Weights mxfp4: a group does not cross the edge of a matrix"},
		{moe.Config{Hidden: 64, Intermediate: 64, Weights: "fp8", InOut: true}, "Config.InOut is true, must be false with Weights fp8: packed matrices are [out, in]"},
		{moe.Config{Hidden: 64, Intermediate: 64, Weights: "fp8", Type: moe.F16, Logits: moe.F16}, "Config.Type is f16, must be BF16 with Weights fp8"},
		{moe.Config{Hidden: 64, Intermediate: 64, Weights: "int3"}, `Config.Weights is "int3", must be one of plain, mxfp4, fp8, fp8-ue8m0, int4-g32, int4-g128, fp8-tensor, nvfp4, uint4-g32, uint4-g128, uint4-g32-f16, uint4-g128-f16`},
	} {
		tt.c.NumExperts, tt.c.TopK = 4, 2
		require.EqualError(t, moe.Check(tt.c), tt.want)
	}
	plain := tr.Layer.Config()
	plain.Weights = "plain"
	assert.Empty(t, plain.Normal().Weights)
}

// TestPackedSizes checks the number of bytes of packed weights and of their values in the
// workspace.
func TestPackedSizes(t *testing.T) {
	plain := moe.Config{Hidden: 2048, Intermediate: 768, NumExperts: 128, TopK: 8}
	weights := int64(3 * 2048 * 768 * 128)
	of := func(word string) moe.Cost {
		c := plain
		c.Weights = word
		cost, err := moe.Estimate(c, moe.Workload{Tokens: 64})
		require.NoError(t, err)
		return cost
	}
	router := int64(2 * 128 * 2048)
	before := of("")
	require.Equal(t, router+2*weights, before.Weights)
	for word, bytes := range map[string]int64{"mxfp4": weights/2 + weights/32, "fp8": weights + weights/(128*128)*4, "fp8-ue8m0": weights + weights/(128*128),
		"nvfp4": weights/2 + weights/16 + 2*4*128, "uint4-g32": weights/2 + weights/32*3, "uint4-g128-f16": weights/2 + weights/128*3} {
		cost := of(word)
		require.Equal(t, router+bytes, cost.Weights, word)
		const counters = 4 * 128
		require.Equal(t, before.Workspace+2*weights+counters, cost.Workspace, word)
		require.Less(t, cost.Decode, before.Decode, word)
	}
}

// TestPackedUnits checks that passes over units have the bits of passes that unpack. It checks
// small batches, and a large batch, which does not read the units.
func TestPackedUnits(t *testing.T) {
	for i, c := range packedLayers {
		if testing.Short() && i != 1 && i != 3 && i != 9 && i != 13 {
			continue
		}
		t.Run(c.String(), func(t *testing.T) {
			tr := trialOn(t, testDevice(t), c, 70, moe.WithoutBackward(), moe.WithDecode(64))
			units := arranged(t, tr)
			for _, tokens := range []int{1, 5, 9, 33, 70} {
				var launched []string
				tr.Call().Observe(func(kernel string, _ driver.Stream) error {
					launched = append(launched, kernel)
					return nil
				})
				f := tr.Args
				f.Units = units
				got := forwardOf(t, tr, f, tokens)
				tr.Call().Observe(nil)
				require.Equal(t, forwardOf(t, tr, tr.Args, tokens), got, "%d tokens", tokens)
				switch {
				case tokens == 1 && c.Score == "" && !c.ScoreOnInput:
					require.Subset(t, launched, []string{"single-units-up", "single-units-down"})
				case tokens <= 8 && c.Score == "" && !c.ScoreOnInput:
					require.Subset(t, launched, []string{"decode-units-tiny-up", "decode-units-tiny-down"})
				case tokens <= 64 && tokens*c.TopK <= 18*c.NumExperts:
					require.Subset(t, launched, []string{"decode-units-few-up", "decode-units-few-down"})
				case tokens <= 64:
					require.Subset(t, launched, []string{"decode-units-up", "decode-units-down"})
				}
				require.Equal(t, tokens > 64, slices.Contains(launched, "unpack"))
			}
		})
	}
}

// TestPackedUnitsMedium checks which kernels read the units of a layer without WithDecode: CTAs of 32
// tokens up to 18 rows an expert, CTAs of 96 tokens from 52 rows on, wide ones from 80 rows on, narrow
// ones in between, and none above 768 rows. All have the bits of the unpacked weights.
func TestPackedUnitsMedium(t *testing.T) {
	dev, c := testDevice(t), moe.Config{Hidden: 64, Intermediate: 64, NumExperts: 2, TopK: 2, Weights: "fp8"}
	l, err := moe.New(t.Context(), dev, c, moe.WithoutCache(), moe.WithoutBackward())
	require.NoError(t, err)
	for tokens, up := range map[int]string{18: "decode-units-few-up", 19: "decode-units-up", 51: "decode-units-up", 52: "decode-units-mid-up", 79: "decode-units-mid-up", 80: "decode-units-wide-up", 768: "decode-units-wide-up", 769: "unpack"} {
		tr, err := trial.New(dev, l, tokens, 1, 6)
		require.NoError(t, err)
		sizes, err := l.Sizes(tokens)
		require.NoError(t, err)
		want := forward(t, tr, tr.Inference())
		f := tr.Inference()
		f.Units = tr.Memory().Buffer(sizes.Units)
		require.NoError(t, tr.Memory().Err())
		require.NoError(t, tr.Call().Arrange(tr.Stream(), f.Weights, f.Units))
		var launched []string
		tr.Call().Observe(func(kernel string, _ driver.Stream) error {
			launched = append(launched, kernel)
			return nil
		})
		require.Equal(t, want.O, forward(t, tr, f).O, "%d tokens", tokens)
		for _, name := range []string{"decode-units-few-up", "decode-units-up", "decode-units-mid-up", "decode-units-wide-up", "unpack"} {
			require.Equal(t, name == up, slices.Contains(launched, name), "%d tokens: %v", tokens, launched)
		}
		require.NoError(t, tr.Close())
	}
}

// TestPackedUnitsRefuses checks the errors of Arrange and of the buffer of units.
func TestPackedUnitsRefuses(t *testing.T) {
	dev := testDevice(t)
	tr := trialOn(t, dev, packedLayers[0], 3, moe.WithoutBackward(), moe.WithDecode(64))
	sizes, err := tr.Layer.Sizes(3)
	require.NoError(t, err)
	units := tr.Memory().Buffer(sizes.Units)
	f := tr.Inference()
	f.Units = moe.Buffer{Ptr: units.Ptr, Bytes: units.Bytes - 1}
	require.ErrorContains(t, tr.Call().Forward(tr.Stream(), f), fmt.Sprintf("Units is %d bytes, must be at least %d bytes (Layer.Sizes, Units)", sizes.Units-1, sizes.Units))
	require.ErrorContains(t, tr.Call().Arrange(tr.Stream(), f.Weights, f.Units), "Units is")
	scales := slices.Repeat([]byte{127}, int(f.W2Scale.Shape.Bytes()))
	scales[5] = 255
	require.NoError(t, tr.Stream().CopyToDevice(f.W2Scale.Ptr, scales))
	require.ErrorContains(t, tr.Call().Arrange(tr.Stream(), f.Weights, units), "Weights is packed with 1 values that units cannot hold, must be packed with finite codes")
	plain := trialOn(t, dev, moe.Config{Hidden: 64, Intermediate: 64, NumExperts: 2, TopK: 1}, 3, moe.WithoutBackward())
	f = plain.Inference()
	f.Units = units
	require.ErrorContains(t, plain.Call().Forward(plain.Stream(), f), "Units is")
	require.ErrorContains(t, plain.Call().Arrange(plain.Stream(), f.Weights, units), "Layer is without units, must be one of packed weights, and with LoRARank only with LoRAAdapters")
}

// TestPackedUnitsCaptured checks that a graph arranges weights that change in place, and that it
// counts the values that the units cannot represent.
func TestPackedUnitsCaptured(t *testing.T) {
	tr := trialOn(t, testDevice(t), packedLayers[0], 3, moe.WithoutBackward(), moe.WithDecode(64))
	sizes, err := tr.Layer.Sizes(3)
	require.NoError(t, err)
	s, f := tr.Stream(), tr.Inference()
	units := tr.Memory().Buffer(sizes.Units)
	require.NoError(t, tr.Memory().Err())
	g := capture(t, s, func() error { return tr.Call().Arrange(s, f.Weights, units) })
	defer g.Close()
	var before []uint16
	for _, scale := range []byte{121, 122, 255} { // 255 is NaN
		scales := slices.Repeat([]byte{scale &^ 0x80}, int(f.W2Scale.Shape.Bytes()))
		scales[5] = scale
		require.NoError(t, s.CopyToDevice(f.W2Scale.Ptr, scales))
		require.NoError(t, g.Launch(s))
		count := []uint32{7}
		require.NoError(t, s.CopyToHost(num.Bytes(count), units.Ptr+driver.DevicePtr(sizes.Units-16)))
		if scale == 255 {
			require.Equal(t, []uint32{1}, count)
			break
		}
		require.Equal(t, []uint32{0}, count)
		f.Units = moe.Buffer{}
		want := forward(t, tr, f).O
		require.NotEqual(t, before, want)
		f.Units = units
		require.Equal(t, want, forward(t, tr, f).O)
		before = want
	}
}
