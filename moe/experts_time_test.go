package moe_test

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sonicmoe/moe"
	"sonicmoe/moe/trial"
)

// What each kind of expert takes, beside SwiGLU with the same sizes, in turns.
// It runs where SONICMOE_ROWS is "kinds".
func TestKindsTime(t *testing.T) {
	if os.Getenv("SONICMOE_ROWS") != "kinds" {
		t.Skip("SONICMOE_ROWS=kinds times the kinds of experts on a GPU")
	}
	for _, row := range []struct {
		name   string
		tokens int
		config moe.Config
	}{
		{"Qwen3-30B-A3B", 32768, moe.Config{Hidden: 2048, Intermediate: 768, NumExperts: 128, TopK: 8, TokensHint: 32768}},
		{"gpt-oss-20b", 16384, moe.Config{Hidden: 2880, Intermediate: 2880, NumExperts: 32, TopK: 4, TokensHint: 16384}},
	} {
		for _, kind := range []struct {
			name   string
			change func(c *moe.Config)
		}{
			{"clamped", func(c *moe.Config) { c.Limit = 7 }},
			{"swiglu-oai", func(c *moe.Config) { c.Activation, c.Alpha, c.Limit = moe.SwiGLUOAI, 1.702, 7 }},
			{"geglu-tanh", func(c *moe.Config) { c.Activation = moe.GeGLUTanh }},
			{"geglu-erf", func(c *moe.Config) { c.Activation = moe.GeGLUErf }},
			{"reglu", func(c *moe.Config) { c.Activation = moe.ReGLU }},
			{"apart", func(c *moe.Config) { c.GateUp = moe.Apart }},
			{"in-out", func(c *moe.Config) { c.WeightOrder = moe.InOut }},
			{"biases", func(c *moe.Config) { c.Bias = true }},
		} {
			changed := row.config
			kind.change(&changed)
			plainForward, plainBackward := passTimes(t, row.config, row.tokens)
			forward, backward := passTimes(t, changed, row.tokens)
			againForward, againBackward := passTimes(t, row.config, row.tokens)
			t.Logf("%s %-10s forward %.3f ms beside %.3f and %.3f (%+.1f %%), backward %.3f beside %.3f and %.3f (%+.1f %%)", row.name, kind.name,
				forward, plainForward, againForward, 200*forward/(plainForward+againForward)-100,
				backward, plainBackward, againBackward, 200*backward/(plainBackward+againBackward)-100)
		}
	}
}

// passTimes are the medians of both passes, in milliseconds.
func passTimes(t *testing.T, c moe.Config, tokens int) (forward, backward float64) {
	tr := newTrial(t, c, tokens, 1)
	defer func() { require.NoError(t, tr.Close()) }()
	require.NoError(t, tr.PrepareBackward(17, moe.BF16))
	median := func(pass func() error) float64 {
		m, err := trial.Measure(testContext(t), testDevice(t), tr.Stream(), 100*time.Millisecond, 16, pass)
		require.NoError(t, err)
		return float64(m.Median) / 1e6
	}
	forward = median(func() error { return tr.Call().Forward(tr.Stream(), tr.Args) })
	return forward, median(func() error { return tr.Call().Backward(tr.Stream(), tr.Back) })
}
