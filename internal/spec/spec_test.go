package spec_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/peers"
	"sonicmoe/internal/spec"
)

// TestSavedMeetsPublishedPeaks checks that the formulas of SavedByMethod agree with the
// published memory peaks per layer. The weights (6dnE) are added, and for SonicMoE the output.
// The peaks are GiB, read from a plot with an error of about 0.03.
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
		r, ok := peers.Find(tt.row)
		require.True(t, ok, tt.row)
		s := r.Config.Shapes(r.Tokens)
		peak := map[string]float64{}
		for _, m := range spec.SavedByMethod(r.Config, r.Tokens) {
			peak[m.Method] = float64(m.Activations+s.W1.Bytes()+s.W2.Bytes()) / gib
		}
		assert.InDelta(t, tt.sonic, peak["SonicMoE"]+float64(s.O.Bytes())/gib, .035, tt.row)
		assert.InDelta(t, tt.scatter, peak["ScatterMoE"], .035, tt.row)
		assert.InDelta(t, tt.momoe, peak["MoMoE"], .035, tt.row)
		assert.InDelta(t, tt.megatron, peak["Megatron"], .035, tt.row)
		assert.InDelta(t, tt.dgm, peak["DeepGEMM"], .1, tt.row) // DeepGEMM pads each expert to 128 rows
	}
}

func TestSavedIsIndependentOfGranularity(t *testing.T) {
	a, _ := peers.Find("7B n=256")
	b, _ := peers.Find("7B n=1024")
	activations := func(r peers.Row) int64 { return r.Config.SavedBytes(r.Tokens) - 8*int64(r.Tokens*r.Config.TopK) }
	assert.Equal(t, activations(a), activations(b))
	assert.Equal(t, int64(2*10*1536+4*10*8*256+8*80), good.SavedBytes(10))
	assert.Equal(t, int64(16*80+4*129), spec.SavedByMethod(good, 10)[0].Metadata)
}

// TestSavedIsTheTensors checks that SavedBytes is the sum of the sizes of the tensors that a
// training pass saves.
func TestSavedIsTheTensors(t *testing.T) {
	for _, r := range peers.All() {
		s := r.Config.Shapes(r.Tokens)
		assert.Equal(t, s.X.Bytes()+s.H.Bytes()+s.Scores.Bytes()+s.ExpertIDs.Bytes(), r.Config.SavedBytes(r.Tokens), r.Name)
	}
}

// TestSavedOfOtherLayers checks what SavedBytes adds for shared experts (their H) and for a
// router with SavesLogits (the logits), and that H without a gate is half as large.
func TestSavedOfOtherLayers(t *testing.T) {
	c := spec.Config{Hidden: 64, Intermediate: 32, NumExperts: 8, TopK: 2}
	plain := c.SavedBytes(10)
	c.SharedExperts, c.SharedGate, c.Score = 3, true, spec.Sigmoid
	assert.Equal(t, int64(4*10*3*32+2*10*8), c.SavedBytes(10)-plain)
	assert.Equal(t, int64(2*10*64+4*20*32), spec.SavedByMethod(c, 10)[0].Activations, "without shared experts")
	ungated := spec.Config{Hidden: 64, Intermediate: 32, NumExperts: 8, TopK: 2, Activation: spec.GELUErf}
	assert.Equal(t, int64(2*10*64+2*20*32+8*20), ungated.SavedBytes(10))
}

// TestRoofline checks the rooflines of forward and backward passes, in TFLOPS.
func TestRoofline(t *testing.T) {
	want := map[string][2]float64{
		"1.4B n=256": {600, 664}, "1.4B n=512": {670, 699}, "1.4B n=1024": {708, 718},
		"7B n=256": {608, 700}, "7B n=512": {672, 739}, "7B n=1024": {708, 761},
		"Qwen3-Next-80B": {680, 746}, "Qwen3-30B-A3B": {721, 761}, "OLMoE-1B-7B": {739, 769},
		"30B n=256": {622, 705}, "30B n=512": {690, 744}, "30B n=1024": {729, 766},
		"120B n=512": {698, 747}, "120B n=1024": {739, 769}, "120B n=2048": {760, 780},
		"DeepSeek-V3": {765, 782},
	}
	require.Len(t, peers.All(), len(want))
	for _, r := range peers.All() {
		c := r.Config
		f := spec.TFLOPS(c.ForwardFLOPs(r.Tokens), spec.H200.Roofline(spec.ForwardWork(c, r.Tokens)))
		b := spec.TFLOPS(c.BackwardFLOPs(r.Tokens), spec.H200.Roofline(spec.BackwardWork(c, r.Tokens)))
		assert.InDelta(t, want[r.Name][0], f, .51, r.Name)
		assert.InDelta(t, want[r.Name][1], b, .51, r.Name)
	}
	w := spec.Work{FLOPs: 2e12, Bytes: 1e12}
	assert.Equal(t, 2*time.Second, spec.Rates{FLOPs: 1e12, Bytes: 1e12}.Time(w))
	assert.Equal(t, time.Second, spec.Rates{FLOPs: 4e12, Bytes: 1e12}.Time(w))
}

func TestRowsAreConsistent(t *testing.T) {
	names := map[string]bool{}
	for _, r := range peers.All() {
		require.NoError(t, r.Config.Check(), r.Name)
		assert.False(t, names[r.Name], r.Name)
		names[r.Name] = true
		// The table states both times and speeds, which must agree.
		if r.SonicForwardMS > 0 {
			f := r.Config.ForwardFLOPs(r.Tokens) / r.SonicForwardMS / 1e9
			assert.InEpsilon(t, r.Sonic.Forward, f, .005, r.Name)
		}
		if r.SonicBackwardMS > 0 {
			b := r.Config.BackwardFLOPs(r.Tokens) / r.SonicBackwardMS / 1e9
			assert.InEpsilon(t, r.Sonic.Backward, b, .005, r.Name)
		}
		roof := spec.TFLOPS(r.Config.ForwardFLOPs(r.Tokens), spec.H200.Roofline(spec.ForwardWork(r.Config, r.Tokens)))
		for _, v := range []peers.Speed{r.Sonic, r.MoMoE, r.ScatterMoE, r.Torch} {
			assert.Less(t, v.Forward, roof, "%s beats its roofline", r.Name)
		}
		assert.Positive(t, r.Torch.Backward, r.Name)
	}
	_, ok := peers.Find("no such row")
	assert.False(t, ok)
}
