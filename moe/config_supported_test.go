package moe_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/spec"
	"sonicmoe/moe"
)

// TestCheckRefusesWhatKernelsLack checks that the errors for combinations that no kernel computes
// name the field, and that Check accepts supported layers.
func TestCheckRefusesWhatKernelsLack(t *testing.T) {
	good := moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 32, TopK: 16}
	tests := []struct {
		change func(*moe.Config)
		want   string // part of the error, or "" if the Config is accepted
	}{
		{func(c *moe.Config) {}, ""},
		{func(c *moe.Config) { c.GateUp, c.Logits = spec.Interleaved, moe.F32 }, ""},
		{func(c *moe.Config) { c.ScoreScale = 1 }, ""},
		{func(c *moe.Config) { c.Hidden = 16 }, ""},
		{func(c *moe.Config) { c.Intermediate = 16 }, ""},
		{func(c *moe.Config) { c.Hidden = 72 }, "Config.Hidden is 72, must be a multiple of 16, at least 16"},
		{func(c *moe.Config) { c.Intermediate = 8 }, "Config.Intermediate is 8, must be a multiple of 16, at least 16"},
		{func(c *moe.Config) { c.TopK = 17 }, ""},
		{func(c *moe.Config) { c.Type, c.Logits = moe.F16, moe.F16 }, ""},
		{func(c *moe.Config) { c.Type, c.Logits = moe.F16, moe.F32 }, ""},
		{func(c *moe.Config) { c.Type = moe.F16 }, "Config.Logits is bf16, must be F16, the layer's Type, or F32"},
		{func(c *moe.Config) { c.GateUp = spec.Apart }, ""},
		{func(c *moe.Config) { c.InOut = true }, ""},
		{func(c *moe.Config) { c.Activation = spec.ReLU2 }, ""},
		{func(c *moe.Config) { c.Limit = 7 }, ""},
		{func(c *moe.Config) { c.InOut, c.GateUp = true, spec.Interleaved }, ""},
		{func(c *moe.Config) { c.Bias = true }, ""},
		{func(c *moe.Config) { c.RouterF32, c.Logits = true, moe.F32 }, ""},
		{func(c *moe.Config) { c.RouterBias = true }, ""},
		{func(c *moe.Config) { c.Score, c.SelectionBias, c.Renormalize = spec.Sigmoid, true, spec.RenormSum }, ""},
		{func(c *moe.Config) { c.Groups, c.TopGroups = 4, 2 }, ""},
		{func(c *moe.Config) { c.ScoreScale = 2.5 }, ""},
		{func(c *moe.Config) { c.ExpertScale = true }, ""},
		{func(c *moe.Config) { c.Rounding.Rule, c.RouterBias = spec.RoundNearest, true }, ""},
		{func(c *moe.Config) { c.Rounding.Rule, c.Score = spec.RoundNearest, spec.Sigmoid },
			"Config.Rounding is nearest/128, must be none: rounding needs softmax-topk scores without groups and scales"},
		{func(c *moe.Config) { c.ScoreOnInput = true }, ""},
		{func(c *moe.Config) { c.SharedExperts = 1 }, ""},
		{func(c *moe.Config) { c.TopK = 33 }, "Config.TopK is 33, must be 1 to 32 (with 32 experts)"},
	}
	for _, tt := range tests {
		c := good
		tt.change(&c)
		err := moe.Check(c)
		if tt.want == "" {
			require.NoError(t, err)
			continue
		}
		require.EqualError(t, err, tt.want)
		_, made := moe.New(t.Context(), testDevice(t), c, moe.WithoutCache())
		var arg *moe.ArgError
		require.True(t, errors.As(made, &arg))
		assert.Equal(t, err, made)
	}
}

func TestConfigErrors(t *testing.T) {
	for field, c := range map[string]moe.Config{
		"Config.Hidden":       {Hidden: 100, Intermediate: 64, NumExperts: 4, TopK: 2},
		"Config.Intermediate": {Hidden: 128, Intermediate: 40, NumExperts: 4, TopK: 2},
		"Config.NumExperts":   {Hidden: 128, Intermediate: 64, NumExperts: 1025, TopK: 2},
		"Config.TopK":         {Hidden: 128, Intermediate: 64, NumExperts: 4, TopK: 5},
		"Config.Logits":       {Hidden: 128, Intermediate: 64, NumExperts: 4, TopK: 2, Logits: 7},
	} {
		l, err := moe.New(context.Background(), testDevice(t), c, moe.WithoutCache())
		require.Nil(t, l)
		wantArgError(t, err, field)
	}
}
