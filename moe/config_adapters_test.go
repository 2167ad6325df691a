package moe_test

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/internal/num"
	"sonicmoe/internal/reference"
	"sonicmoe/internal/spec"
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
)

// adapterScales are the scales of a table of four adapters. The third place has none.
var adapterScales = []float32{1.5, -0.75, 0, 2}

// adapterOf returns the adapter that the tests give to a token: none, one of the table, the place
// without an adapter, or a place outside the table.
func adapterOf(token int) int32 { return []int32{-1, 0, 1, 3, 3, -1, 2, 4, math.MinInt32, 0}[token%10] }

// TestAdapters compares layers with a table of adapters with the reference. Tokens without an
// adapter must have the bits of the layer without a table, and all tokens the same bits in batches of
// all sizes, by the kernels of large, small and tiny batches.
func TestAdapters(t *testing.T) {
	for i, change := range []func(c *moe.Config){
		func(c *moe.Config) {},
		func(c *moe.Config) {
			c.LoRARank, c.InOut, c.GateUp, c.Hidden, c.Intermediate = 72, true, spec.Interleaved, 208, 112
		},
		func(c *moe.Config) { c.LoRARank, c.GateUp, c.Bias, c.Hidden = 8, spec.Apart, true, 176 },
		// -short leaves out the other layers.
		func(c *moe.Config) { c.LoRARank, c.GateUp = 128, spec.Interleaved },
		func(c *moe.Config) { c.LoRARank = 4 },
		func(c *moe.Config) { c.LoRARank, c.GateUp, c.Intermediate = 28, spec.Interleaved, 80 },
		func(c *moe.Config) { c.LoRARank, c.Activation, c.SharedExperts, c.SharedGate = 64, spec.ReLU2, 1, true },
		func(c *moe.Config) { c.Type, c.Logits = moe.F16, moe.F16 },
		func(c *moe.Config) { c.ScoreOnInput, c.Score = true, spec.Sigmoid },
		func(c *moe.Config) { c.Weights, c.GateUp = "mxfp4", spec.Interleaved },
		func(c *moe.Config) { c.Weights, c.LoRARank = "fp8", 32 },
		func(c *moe.Config) { c.Weights, c.GateUp = "uint4-g32", spec.Apart },
	} {
		if i > 2 && testing.Short() {
			break
		}
		c := moe.Config{Hidden: 192, Intermediate: 128, NumExperts: 5, TopK: 2, LoRARank: 16, LoRAAdapters: len(adapterScales)}
		change(&c)
		t.Run(c.String(), func(t *testing.T) {
			const tokens = 70
			tr := newAdapterTrial(t, c, tokens, moe.WithoutDecode())
			misses := tr.Memory().Tensor(tr.Args.AdapterIDs.Shape)
			misses.Shape.Dims[0] = 1
			tr.Args.AdapterMisses = misses
			require.NoError(t, tr.Stream().Fill32(misses.Ptr, 5, 1))
			first := forward(t, tr, tr.Args)
			count := make([]int32, 1)
			require.NoError(t, moe.Read(tr.Stream(), misses, count))
			require.Equal(t, int32(5+3*tokens/10), count[0], "the pass adds the tokens whose place has no adapter")
			checkAdapters(t, tr, first)

			plain := c
			plain.LoRARank, plain.LoRAAdapters = 0, 0
			base := newTrial(t, plain, tokens, 6, moe.WithoutDecode()) // draws the same tokens and weights
			without := forward(t, base, base.Args)
			for token := range tokens {
				if at := adapterOf(token); at < 0 || at > 3 || at == 2 {
					require.Equal(t, without.O[token*c.Hidden:][:c.Hidden], first.O[token*c.Hidden:][:c.Hidden], "token %d has no adapter", token)
				}
			}
			require.NoError(t, tr.Run(testContext(t), tr.Inference()))
			same(t, tr, first, "the inference pass")

			small := newAdapterTrial(t, c, tokens, moe.WithDecode(64))
			for _, n := range []int{1, 7, 33} {
				f, err := small.Args.Tokens(n)
				require.NoError(t, err)
				require.Equal(t, first.O[:n*c.Hidden], forward(t, small, f).O[:n*c.Hidden], "%d tokens", n)
				if spec.IsPacked(c) {
					f.Units = arranged(t, small)
					require.Equal(t, first.O[:n*c.Hidden], forward(t, small, f).O[:n*c.Hidden], "%d tokens, over units", n)
				}
			}
			checkSingle(t, small, first)
		})
	}
}

// arranged returns the units of a layer's packed weights.
func arranged(t *testing.T, tr *trial.Trial) moe.Buffer {
	sizes, err := tr.Layer.Sizes(tr.Tokens)
	require.NoError(t, err)
	units := tr.Memory().Buffer(sizes.Units)
	require.NoError(t, tr.Memory().Err())
	require.NoError(t, tr.Call().Arrange(tr.Stream(), tr.Args.Weights, units))
	return units
}

// checkSingle checks that passes over one token have the bits of the token in a large batch, whatever
// adapter it names, and that they count a place without an adapter.
func checkSingle(t *testing.T, tr *trial.Trial, want trial.Results) {
	width := tr.Layer.Config().Hidden
	misses := tr.Memory().Tensor(tr.Args.AdapterIDs.Shape)
	misses.Shape.Dims[0] = 1
	ids := make([]int32, tr.Tokens)
	for token := range 10 {
		f, err := tr.Args.Tokens(1)
		require.NoError(t, err)
		f.X.Ptr += driver.DevicePtr(token * width * 2)
		ids[0] = adapterOf(token)
		require.NoError(t, moe.Write(tr.Stream(), tr.Args.AdapterIDs, ids))
		f.AdapterMisses = misses
		require.NoError(t, tr.Stream().Fill32(misses.Ptr, 5, 1))
		if token%2 == 1 {
			f.H, f.SharedH = moe.Tensor{}, moe.Tensor{}
		}
		require.NoError(t, tr.Stream().Fill32(f.O.Ptr, 0xffffffff, f.O.Shape.Bytes()/4))
		require.NoError(t, tr.Run(testContext(t), f))
		require.Equal(t, want.O[token*width:][:width], elementsOf(t, tr, f.O), "token %d alone", token)
		count, missed := make([]int32, 1), int32(0)
		require.NoError(t, moe.Read(tr.Stream(), misses, count))
		if adapterOf(token) != -1 && !slices.Contains([]int32{0, 1, 3}, adapterOf(token)) {
			missed = 1
		}
		require.Equal(t, 5+missed, count[0], "token %d alone", token)
	}
}

// newAdapterTrial returns a trial of a layer with a table, whose tokens have the adapters of
// adapterOf.
func newAdapterTrial(t *testing.T, c moe.Config, tokens int, opts ...moe.Option) *trial.Trial {
	tr := newTrial(t, c, tokens, 6, opts...)
	writeAdapters(t, tr)
	return tr
}

// writeAdapters writes the tokens' adapters and the adapters' scales.
func writeAdapters(t *testing.T, tr *trial.Trial) {
	ids := make([]int32, tr.Tokens)
	for i := range ids {
		ids[i] = adapterOf(i)
	}
	require.NoError(t, moe.Write(tr.Stream(), tr.Args.AdapterIDs, ids))
	require.NoError(t, moe.Write(tr.Stream(), tr.Args.LoraScales, adapterScales))
}

// TestAdapterTimings checks that passes have the same bits whenever asynchronous work completes, and
// that the emulator finds no race between a product and the kernel after it.
func TestAdapterTimings(t *testing.T) {
	c := moe.Config{Hidden: 64, Intermediate: 32, NumExperts: 4, TopK: 2, LoRARank: 8, LoRAAdapters: len(adapterScales)}
	var want []uint16
	for _, d := range timedDevices(t) {
		tr := trialOn(t, d.dev, c, 90, moe.WithDecode(64))
		writeAdapters(t, tr)
		for _, tokens := range []int{90, 40, 1} {
			f, err := tr.Args.Tokens(tokens)
			require.NoError(t, err)
			got := forward(t, tr, f).O[:tokens*c.Hidden]
			if want == nil {
				want = got
			}
			require.Equal(t, want[:len(got)], got, "%s, %d tokens", d.name, tokens)
		}
	}
}

// checkAdapters compares O of the tokens of each adapter with the reference of a layer with this
// adapter alone.
func checkAdapters(t *testing.T, tr *trial.Trial, got trial.Results) {
	c := tr.Layer.Config()
	scores := make([]float64, len(got.Scores))
	for i, s := range got.Scores {
		scores[i] = float64(s)
	}
	for place := range 4 {
		if adapterScales[place] == 0 {
			continue
		}
		one, w := c, tr.Weights
		one.LoRAAdapters, one.LoRARank = 0, (c.LoRARank+7)/8*8
		one.LoRAAlpha = math.Abs(float64(adapterScales[place])) * float64(one.LoRARank)
		w.LoraScales = nil
		for _, f := range []struct {
			factor    *[]uint16
			out, in   int
			isNegated bool
		}{
			{&w.LoraA1, c.LoRARank, c.Hidden, adapterScales[place] < 0}, {&w.LoraB1, len(w.LoraB1) / len(adapterScales) / c.NumExperts / c.LoRARank, c.LoRARank, false},
			{&w.LoraB3, c.Intermediate, c.LoRARank, false}, {&w.LoraA2, c.LoRARank, c.Intermediate, adapterScales[place] < 0}, {&w.LoraB2, c.Hidden, c.LoRARank, false},
		} {
			if len(*f.factor) > 0 {
				*f.factor = factorOf((*f.factor)[place*c.NumExperts*f.out*f.in:][:c.NumExperts*f.out*f.in], f.out, f.in, c, f.isNegated)
			}
		}
		l, err := reference.New(one, w)
		require.NoError(t, err)
		var list []int32
		for token := range tr.Tokens {
			if adapterOf(token) == int32(place) {
				list = append(list, int32(token))
			}
		}
		want, err := l.Experts(tr.X, scores, got.ExpertIDs, list, reference.Unrounded)
		require.NoError(t, err)
		var difference, norm float64
		for i, token := range list {
			for j := range c.Hidden {
				w, g := want.O[i*c.Hidden+j], valueOf(c, got.O[int(token)*c.Hidden+j])
				difference, norm = difference+(w-g)*(w-g), norm+w*w
			}
		}
		require.Less(t, math.Sqrt(difference/norm), 6e-3, "adapter %d", place)
	}
}

// valueOf returns the value of an element of the layer's type.
func valueOf(c moe.Config, bits uint16) float64 {
	if c.Type == moe.F16 {
		return num.F16ToFloat64(bits)
	}
	return num.BF16ToFloat64(bits)
}

// factorOf returns the matrices [out, in] of a factor in the layout of a layer with one adapter, whose
// rank is a multiple of 8.
func factorOf(from []uint16, out, in int, c moe.Config, isNegated bool) []uint16 {
	padded := func(width int) int {
		if width == c.LoRARank {
			return (width + 7) / 8 * 8
		}
		return width
	}
	rows, columns := padded(out), padded(in)
	to := make([]uint16, c.NumExperts*rows*columns)
	for i, v := range from {
		if isNegated {
			v ^= 0x8000
		}
		e, row, column := i/(out*in), i/in%out, i%in
		at := row*columns + column
		if c.InOut {
			at = column*rows + row
		}
		to[e*rows*columns+at] = v
	}
	return to
}

// TestAdapterErrors checks that New refuses wrong tables, and that passes refuse missing or wrong
// tensors of a table.
func TestAdapterErrors(t *testing.T) {
	c := moe.Config{Hidden: 64, Intermediate: 32, NumExperts: 4, TopK: 2}
	for _, wrong := range []struct {
		rank, adapters int
		alpha          float64
		rs             bool
		text           string
	}{
		{0, 3, 0, false, "Config.LoRAAdapters is 3, must be 0 without LoRARank"},
		{16, -1, 0, false, "Config.LoRAAdapters is -1, must be 0 (no table of adapters) to 4096"},
		{16, 4097, 0, false, "Config.LoRAAdapters is 4097"},
		{16, 3, 8, false, "Config.LoRAAlpha is 8, must be 0 with LoRAAdapters: the tensor LoraScales has a factor for each adapter"},
		{16, 3, math.NaN(), false, "Config.LoRAAlpha is NaN, must be 0 with LoRAAdapters"},
		{16, 3, 0, true, "Config.RSLoRA is true, must be false with LoRAAdapters"},
		{10, 3, 0, false, "Config.LoRARank is 10, must be 0 (no adapter), or a multiple of 4 up to 128"},
	} {
		c.LoRARank, c.LoRAAdapters, c.LoRAAlpha, c.RSLoRA = wrong.rank, wrong.adapters, wrong.alpha, wrong.rs
		require.ErrorContains(t, moe.Check(c), wrong.text)
	}
	c.LoRARank, c.LoRAAdapters, c.LoRAAlpha, c.RSLoRA = 16, 3, 0, false
	tr := newTrial(t, c, 5, 6)
	for _, wrong := range []struct {
		change func(f *moe.ForwardArgs)
		text   string
	}{
		{func(f *moe.ForwardArgs) { f.AdapterIDs = moe.Tensor{} }, "AdapterIDs is missing, must be i32 [5]"},
		{func(f *moe.ForwardArgs) { f.AdapterIDs.Shape.Dims[0] = 4 }, "AdapterIDs is i32 [4], must be i32 [5]"},
		{func(f *moe.ForwardArgs) { f.AdapterMisses = f.AdapterIDs }, "AdapterMisses is i32 [5], must be i32 [1]"},
		{func(f *moe.ForwardArgs) { f.LoraScales = moe.Tensor{} }, "LoraScales is missing, must be f32 [3]"},
		{func(f *moe.ForwardArgs) { f.LoraA1.Shape.Dims[0] = 4 }, "LoraA1 is bf16 [4 16 64], must be bf16 [12 16 64]"},
	} {
		f := tr.Args
		wrong.change(&f)
		require.ErrorContains(t, tr.Call().Forward(tr.Stream(), f), wrong.text)
	}
	require.ErrorContains(t, tr.Call().Backward(tr.Stream(), tr.Args.BackwardArgs()), "Config.LoRAAdapters is 3, must be 0: a layer with a table of adapters has no backward pass")
	plain := newTrial(t, moe.Config{Hidden: 64, Intermediate: 32, NumExperts: 4, TopK: 2}, 5, 6)
	f := plain.Args
	f.AdapterIDs = tr.Args.AdapterIDs
	require.ErrorContains(t, plain.Call().Forward(plain.Stream(), f), "AdapterIDs is i32 [5], must be none: the layer has no table of adapters (Config.LoRAAdapters)")
}

// TestAdaptedGiven checks that given experts, and a list of the same experts, give the bits of the
// pass that routes: for a layer with an adapter, forward and backward, and for a layer with a table of
// adapters. A token has one expert, so that the sum of a list has one order.
func TestAdaptedGiven(t *testing.T) {
	for _, adapters := range []int{0, len(adapterScales)} {
		c := moe.Config{Hidden: 96, Intermediate: 48, NumExperts: 3, TopK: 1, Lists: true, LoRARank: 24, LoRAAdapters: adapters}
		if adapters == 0 {
			c.LoRAAlpha = 12
		}
		t.Run(c.String(), func(t *testing.T) {
			const tokens = 150
			tr := newTrial(t, c, tokens, 6, moe.WithoutDecode())
			if adapters > 0 {
				writeAdapters(t, tr)
			}
			want := forward(t, tr, tr.Args)
			f := tr.Args
			list := f
			list.List = tr.Memory().RoutingList(tr.Layer, tokens)
			sizes, err := tr.Layer.ListSizes(tokens, tokens)
			require.NoError(t, err)
			list.Workspace = tr.Memory().Buffer(sizes.BackwardWorkspace)
			require.NoError(t, tr.Memory().Err())
			numbers := make([]int32, tokens)
			for i := range numbers {
				numbers[i] = int32(i)
			}
			require.NoError(t, moe.Write(tr.Stream(), list.List.Tokens, numbers))
			require.NoError(t, moe.Write(tr.Stream(), list.List.ExpertIDs, want.ExpertIDs))
			require.NoError(t, moe.Write(tr.Stream(), list.List.Scores, want.Scores))
			for what, pass := range map[string]moe.ForwardArgs{"given": f, "list": list} {
				require.NoError(t, tr.Stream().Fill32(f.O.Ptr, 0xffffffff, f.O.Shape.Bytes()/4))
				require.NoError(t, tr.Call().ForwardExperts(tr.Stream(), pass), what)
				require.NoError(t, tr.Layer.Explain(tr.Stream().Synchronize(testContext(t))), what)
				require.Equal(t, want.O, elementsOf(t, tr, f.O), what)
			}
			if adapters > 0 {
				return
			}
			require.NoError(t, tr.PrepareBackward(17, moe.BF16))
			back := tr.Back
			back.DRouter, back.DX = moe.Gradient{}, tr.Memory().Tensor(f.X.Shape)
			back.DScores = moe.Tensor{}
			given := gradientsOf(t, tr, back)
			back.List, back.Workspace = list.List, list.Workspace
			require.Equal(t, given, gradientsOf(t, tr, back), "the list's gradients")
		})
	}
}

// gradientsOf runs a backward pass of given experts, and returns DX and the gradients of the factors.
func gradientsOf(t *testing.T, tr *trial.Trial, b moe.BackwardArgs) (list [][]uint16) {
	outputs := []moe.Tensor{b.DX, b.DLoraA1.Tensor, b.DLoraB1.Tensor, b.DLoraA2.Tensor, b.DLoraB2.Tensor}
	for _, o := range outputs {
		require.NoError(t, tr.Stream().Fill32(o.Ptr, 0xffffffff, o.Shape.Bytes()/4))
	}
	require.NoError(t, tr.Call().BackwardExperts(tr.Stream(), b))
	require.NoError(t, tr.Layer.Explain(tr.Stream().Synchronize(testContext(t))))
	for _, o := range outputs {
		list = append(list, elementsOf(t, tr, o))
	}
	return list
}
