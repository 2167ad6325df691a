package spec_test

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/moe/spec"
)

var good = spec.Config{Hidden: 1536, Intermediate: 256, Experts: 128, TopK: 8}

func TestCheck(t *testing.T) {
	tests := []struct {
		name   string
		change func(*spec.Config)
		want   string // "" = accepted
	}{
		{"as is", func(c *spec.Config) {}, ""},
		{"least", func(c *spec.Config) { *c = spec.Config{Hidden: 128, Intermediate: 64, Experts: 1, TopK: 1} }, ""},
		{"most", func(c *spec.Config) {
			*c = spec.Config{Hidden: 1 << 20, Intermediate: 1 << 20, Experts: 1024, TopK: 16,
				GateUp: spec.Interleaved, Logits: spec.LogitsF32, TokensHint: 1 << 20}
		}, ""},
		{"d not a multiple", func(c *spec.Config) { c.Hidden = 100 },
			"Config.Hidden is 100, must be a multiple of 64, at least 128"},
		{"d too small", func(c *spec.Config) { c.Hidden = 64 },
			"Config.Hidden is 64, must be a multiple of 64, at least 128"},
		{"d negative", func(c *spec.Config) { c.Hidden = -128 },
			"Config.Hidden is -128, must be a multiple of 64, at least 128"},
		{"d too large", func(c *spec.Config) { c.Hidden = 1<<20 + 64 },
			"Config.Hidden is 1048640, must be at most 1048576"},
		{"n zero", func(c *spec.Config) { c.Intermediate = 0 },
			"Config.Intermediate is 0, must be a multiple of 64, at least 64"},
		{"n not a multiple", func(c *spec.Config) { c.Intermediate = 96 },
			"Config.Intermediate is 96, must be a multiple of 64, at least 64"},
		{"no experts", func(c *spec.Config) { c.Experts = 0 }, "Config.Experts is 0, must be 1 to 1024"},
		{"experts", func(c *spec.Config) { c.Experts = 1025 }, "Config.Experts is 1025, must be 1 to 1024"},
		{"K zero", func(c *spec.Config) { c.TopK = 0 }, "Config.TopK is 0, must be 1 to 16 (with 128 experts)"},
		{"K large", func(c *spec.Config) { c.TopK = 17 }, "Config.TopK is 17, must be 1 to 16 (with 128 experts)"},
		{"K over E", func(c *spec.Config) { c.Experts = 4 }, "Config.TopK is 8, must be 1 to 4 (with 4 experts)"},
		{"gate up", func(c *spec.Config) { c.GateUp = 2 }, "Config.GateUp is GateUp(2), must be Concatenated or Interleaved"},
		{"logits", func(c *spec.Config) { c.Logits = 9 }, "Config.Logits is Logits(9), must be LogitsBF16 or LogitsF32"},
		{"hint", func(c *spec.Config) { c.TokensHint = -1 },
			"Config.TokensHint is -1, must be 0 (unknown) or the tokens expected in a call"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := good
			tt.change(&c)
			err := c.Check()
			if tt.want == "" {
				require.NoError(t, err)
				return
			}
			require.EqualError(t, err, tt.want)
			var arg *spec.ArgError
			require.True(t, errors.As(err, &arg))
			assert.NotEmpty(t, arg.Field)
		})
	}
}

func TestGateUpRowsCoverW1(t *testing.T) {
	const n = 6
	for _, g := range []spec.GateUp{spec.Concatenated, spec.Interleaved} {
		seen := map[int]bool{}
		for j := range n {
			seen[g.GateRow(j, n)] = true
			seen[g.UpRow(j, n)] = true
		}
		assert.Len(t, seen, 2*n, "%v", g)
		assert.True(t, seen[0] && seen[2*n-1], "%v", g)
	}
	assert.Equal(t, 5, spec.Concatenated.GateRow(5, n))
	assert.Equal(t, 11, spec.Concatenated.UpRow(5, n))
	assert.Equal(t, 10, spec.Interleaved.GateRow(5, n))
	assert.Equal(t, 11, spec.Interleaved.UpRow(5, n))
}

func TestStrings(t *testing.T) {
	assert.Equal(t, "d=1536 n=256 E=128 K=8 w1=concatenated logits=bf16", good.String())
	hinted := good
	hinted.TokensHint = 77
	assert.Equal(t, good.String(), hinted.String())
	other := good
	other.GateUp, other.Logits = spec.Interleaved, spec.LogitsF32
	assert.Equal(t, "d=1536 n=256 E=128 K=8 w1=interleaved logits=f32", other.String())
	assert.Equal(t, "bf16 [128 512 1536]", good.Shapes(1).W1.String())
}

func TestShapesBytes(t *testing.T) {
	s := good.Shapes(24576)
	tests := []struct {
		name string
		got  spec.Shape
		text string
		want int64
	}{
		{"X", s.X, "bf16 [24576 1536]", 75497472},
		{"O", s.O, "bf16 [24576 1536]", 75497472},
		{"Router", s.Router, "bf16 [128 1536]", 393216},
		{"W1", s.W1, "bf16 [128 512 1536]", 201326592},
		{"W2", s.W2, "bf16 [128 1536 256]", 100663296},
		{"Logits", s.Logits, "bf16 [24576 128]", 6291456},
		{"Scores", s.Scores, "f32 [24576 8]", 786432},
		{"Experts", s.Experts, "i32 [24576 8]", 786432},
		{"H", s.H, "bf16 [196608 512]", 201326592}, // 192 MiB
		{"A", s.A, "bf16 [196608 256]", 100663296},
		{"Y", s.Y, "bf16 [196608 1536]", 603979776},
	}
	for _, tt := range tests {
		assert.Equal(t, tt.text, tt.got.String(), tt.name)
		assert.Equal(t, tt.want, tt.got.Bytes(), tt.name)
	}
	f32 := good
	f32.Logits = spec.LogitsF32
	assert.Equal(t, int64(2*6291456), f32.Shapes(24576).Logits.Bytes())
	assert.Zero(t, good.Shapes(0).H.Bytes())
}

func TestLargestLayerDoesNotOverflow(t *testing.T) {
	c := spec.Config{Hidden: spec.MaxWidth, Intermediate: spec.MaxWidth, Experts: spec.MaxExperts, TopK: spec.MaxTopK}
	s := c.Shapes(math.MaxInt32)
	assert.Equal(t, int64(1)<<52, s.W1.Bytes())
	assert.Equal(t, int64(math.MaxInt32)<<26, s.H.Bytes())
	for _, m := range c.SavedByMethod(math.MaxInt32) {
		assert.Positive(t, m.Bytes(), m.Method)
	}
}

// With the weights (6dnE) and, for SonicMoE, the output, the formulas meet the
// published peaks per layer (GiB, read off a figure with an error of about 0.03).
func TestSavedMeetsPublishedPeaks(t *testing.T) {
	const gib = 1 << 30
	tests := []struct {
		row                                  string
		sonic, scatter, momoe, megatron, dgm float64
	}{
		{"1.4B n=256", .57, 1.14, .99, 1.60, 1.00},
		{"7B n=256", .60, 1.19, 1.10, 1.75, 1.14},
		{"7B n=512", .60, .91, .82, 1.19, .84},
		{"30B n=512", 2.48, 4.47, 4.22, 6.47, 4.31},
		{"120B n=1024", 4.47, 6.72, 6.22, 8.72, 6.35},
		{"120B n=2048", 4.47, 5.72, 5.22, 6.72, 5.31},
	}
	for _, tt := range tests {
		r, ok := spec.FindRow(tt.row)
		require.True(t, ok, tt.row)
		s := r.Config.Shapes(r.Tokens)
		peak := map[string]float64{}
		for _, m := range r.Config.SavedByMethod(r.Tokens) {
			peak[m.Method] = float64(m.Activations+s.W1.Bytes()+s.W2.Bytes()) / gib
		}
		assert.InDelta(t, tt.sonic, peak["SonicMoE"]+float64(s.O.Bytes())/gib, .035, tt.row)
		assert.InDelta(t, tt.scatter, peak["ScatterMoE"], .035, tt.row)
		assert.InDelta(t, tt.momoe, peak["MoMoE"], .035, tt.row)
		assert.InDelta(t, tt.megatron, peak["Megatron"], .035, tt.row)
		assert.InDelta(t, tt.dgm, peak["DeepGEMM"], .1, tt.row) // pads each expert to 128 rows
	}
}

func TestSavedIsIndependentOfGranularity(t *testing.T) {
	a, _ := spec.FindRow("7B n=256")
	b, _ := spec.FindRow("7B n=1024")
	assert.Equal(t, a.Config.Saved(a.Tokens).Activations, b.Config.Saved(b.Tokens).Activations)
	saved := good.Saved(10)
	assert.Equal(t, "SonicMoE", saved.Method)
	assert.Equal(t, int64(2*10*1536+4*10*8*256), saved.Activations)
	assert.Equal(t, int64(8*80), saved.Metadata)
	assert.Equal(t, int64(16*80+4*129), good.SavedByMethod(10)[0].Metadata)
}

// What is saved is what a training pass's tensors take.
func TestSavedIsTheTensors(t *testing.T) {
	for _, r := range spec.Rows() {
		s := r.Config.Shapes(r.Tokens)
		assert.Equal(t, s.X.Bytes()+s.H.Bytes()+s.Scores.Bytes()+s.Experts.Bytes(), r.Config.Saved(r.Tokens).Bytes(), r.Name)
	}
}

func TestGradientShapes(t *testing.T) {
	g := good.Gradients(24576, spec.F32)
	for _, tt := range []struct {
		name string
		got  spec.Shape
		want string
	}{
		{"DO", g.DO, "bf16 [24576 1536]"},
		{"DX", g.DX, "bf16 [24576 1536]"},
		{"DRouter", g.DRouter, "f32 [128 1536]"},
		{"DW1", g.DW1, "f32 [128 512 1536]"},
		{"DW2", g.DW2, "f32 [128 1536 256]"},
		{"DScores", g.DScores, "f32 [24576 8]"},
		{"DLogits", g.DLogits, "f32 [24576 128]"},
		{"DH", g.DH, "bf16 [196608 512]"},
		{"ScaledA", g.ScaledA, "bf16 [196608 256]"},
		{"DXRows", g.DXRows, "bf16 [196608 1536]"},
	} {
		assert.Equal(t, tt.want, tt.got.String(), tt.name)
	}
	assert.Equal(t, good.Shapes(1).W1, good.Gradients(1, spec.BF16).DW1)
}

// The roofline column of the table of speeds, TFLOPS.
func TestRoofline(t *testing.T) {
	want := map[string]spec.Speed{
		"1.4B n=256": {600, 664}, "1.4B n=512": {670, 699}, "1.4B n=1024": {708, 718},
		"7B n=256": {608, 700}, "7B n=512": {672, 739}, "7B n=1024": {708, 761},
		"Qwen3-Next-80B": {680, 746}, "Qwen3-30B-A3B": {721, 761}, "OLMoE-1B-7B": {739, 769},
		"30B n=256": {622, 705}, "30B n=512": {690, 744}, "30B n=1024": {729, 766},
		"120B n=512": {698, 747}, "120B n=1024": {739, 769}, "120B n=2048": {760, 780},
		"DeepSeek-V3": {765, 782},
	}
	rows := spec.Rows()
	require.Len(t, rows, len(want))
	for _, r := range rows {
		c := r.Config
		f := spec.TFLOPS(c.ForwardFLOPs(r.Tokens), spec.H200.Roofline(c.ForwardWork(r.Tokens)))
		b := spec.TFLOPS(c.BackwardFLOPs(r.Tokens), spec.H200.Roofline(c.BackwardWork(r.Tokens)))
		assert.InDelta(t, want[r.Name].Forward, f, .51, r.Name)
		assert.InDelta(t, want[r.Name].Backward, b, .51, r.Name)
	}
	w := spec.Work{FLOPs: 2e12, Bytes: 1e12}
	assert.Equal(t, 2*time.Second, spec.Rates{FLOPs: 1e12, Bytes: 1e12}.Time(w))
	assert.Equal(t, time.Second, spec.Rates{FLOPs: 4e12, Bytes: 1e12}.Time(w))
}

func TestRowsAreConsistent(t *testing.T) {
	names := map[string]bool{}
	for _, r := range spec.Rows() {
		require.NoError(t, r.Config.Check(), r.Name)
		assert.False(t, names[r.Name], r.Name)
		names[r.Name] = true
		// Times and speeds were written down separately: they must agree.
		if r.SonicForwardMS > 0 {
			f := r.Config.ForwardFLOPs(r.Tokens) / r.SonicForwardMS / 1e9
			assert.InEpsilon(t, r.Sonic.Forward, f, .005, r.Name)
		}
		if r.SonicBackwardMS > 0 {
			b := r.Config.BackwardFLOPs(r.Tokens) / r.SonicBackwardMS / 1e9
			assert.InEpsilon(t, r.Sonic.Backward, b, .005, r.Name)
		}
		roof := spec.TFLOPS(r.Config.ForwardFLOPs(r.Tokens), spec.H200.Roofline(r.Config.ForwardWork(r.Tokens)))
		assert.Less(t, r.Best().Forward, roof, "%s beats its roofline", r.Name)
		assert.Positive(t, r.Best().Backward, r.Name)
	}
	_, ok := spec.FindRow("no such row")
	assert.False(t, ok)
}
