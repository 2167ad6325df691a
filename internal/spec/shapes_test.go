package spec_test

import (
	"maps"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/spec"
)

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
		{"Experts", s.ExpertIDs, "i32 [24576 8]", 786432},
		{"H", s.H, "bf16 [196608 512]", 201326592}, // 192 MiB
		{"A", s.A, "bf16 [196608 256]", 100663296},
		{"Y", s.Y, "bf16 [196608 1536]", 603979776},
	}
	for _, tt := range tests {
		assert.Equal(t, tt.text, tt.got.String(), tt.name)
		assert.Equal(t, tt.want, tt.got.Bytes(), tt.name)
	}
	f32 := good
	f32.Logits = spec.F32
	assert.Equal(t, int64(2*6291456), f32.Shapes(24576).Logits.Bytes())
	assert.Zero(t, good.Shapes(0).H.Bytes())
}

// TestShapesOfOtherLayers checks the shapes of the tensors in every layout of the weights, and
// for every feature that adds tensors.
func TestShapesOfOtherLayers(t *testing.T) {
	show := func(v any) map[string]string {
		out := map[string]string{}
		r := reflect.ValueOf(v)
		for i := range r.NumField() {
			if s := r.Field(i).Interface().(spec.Shape); !s.IsZero() {
				out[r.Type().Field(i).Name] = s.String()
			} else {
				assert.Zero(t, s.Bytes())
			}
		}
		return out
	}
	c := spec.Config{Hidden: 64, Intermediate: 32, NumExperts: 8, TopK: 2}
	with := func(change func(*spec.Config)) spec.Config {
		c := c
		change(&c)
		require.NoError(t, c.Check())
		return c
	}
	tests := []struct {
		name   string
		config spec.Config
		want   map[string]string // the tensors that differ from those of a plain layer, with their shapes
	}{
		{"plain", c, nil},
		{"apart", with(func(c *spec.Config) { c.GateUp, c.Bias = spec.Apart, true }), map[string]string{
			"W1": "bf16 [8 32 64]", "W3": "bf16 [8 32 64]", "B1": "bf16 [8 32]", "B3": "bf16 [8 32]", "B2": "bf16 [8 64]"}},
		{"apart, in-out", with(func(c *spec.Config) { c.GateUp, c.InOut = spec.Apart, true }), map[string]string{
			"W1": "bf16 [8 64 32]", "W3": "bf16 [8 64 32]", "W2": "bf16 [8 32 64]"}},
		{"gpt-oss", with(func(c *spec.Config) {
			c.InOut, c.Activation, c.Alpha, c.Limit, c.Bias, c.RouterBias = true, spec.SwiGLUOAI, 1, 1, true, true
		}), map[string]string{"W1": "bf16 [8 64 64]", "W2": "bf16 [8 32 64]", "B1": "bf16 [8 64]", "B2": "bf16 [8 64]", "RouterBias": "f32 [8]"}},
		{"no gate", with(func(c *spec.Config) { c.Activation, c.SharedExperts, c.Bias = spec.ReLU2, 3, true }), map[string]string{
			"W1": "bf16 [8 32 64]", "H": "bf16 [10 32]", "B1": "bf16 [8 32]", "B2": "bf16 [8 64]",
			"SharedW1": "bf16 [96 64]", "SharedW2": "bf16 [64 96]",
			"SharedH": "bf16 [5 96]", "SharedA": "bf16 [5 96]", "SharedY": "bf16 [5 64]"}},
		{"shared, in-out", with(func(c *spec.Config) { c.InOut, c.SharedExperts, c.SharedGate = true, 2, true }), map[string]string{
			"W1": "bf16 [8 64 64]", "W2": "bf16 [8 32 64]",
			"SharedW1": "bf16 [64 64]", "SharedW3": "bf16 [64 64]", "SharedW2": "bf16 [64 64]",
			"SharedH": "bf16 [5 128]", "SharedA": "bf16 [5 64]", "SharedY": "bf16 [5 64]", "SharedGate": "bf16 [64]", "SharedScore": "f32 [5]"}},
		{"router", with(func(c *spec.Config) {
			c.RouterF32, c.Logits, c.Score, c.SelectionBias, c.ExpertScale = true, spec.F32, spec.SoftmaxAll, true, true
		}), map[string]string{"Router": "f32 [8 64]", "Logits": "f32 [5 8]", "SelectionBias": "f32 [8]", "ExpertScale": "f32 [8]"}},
	}
	for _, tt := range tests {
		want := show(c.Shapes(5))
		assert.Len(t, want, 11)
		maps.Copy(want, tt.want)
		assert.Equal(t, want, show(tt.config.Shapes(5)), tt.name)

		f, g := tt.config.Shapes(5), show(tt.config.Gradients(5, spec.F32))
		for of, s := range map[string]spec.Shape{
			"DRouter": f.Router, "DW1": f.W1, "DW3": f.W3, "DW2": f.W2, "DB1": f.B1, "DB3": f.B3, "DB2": f.B2, "DRouterBias": f.RouterBias,
			"DExpertScale": f.ExpertScale, "DSharedW1": f.SharedW1, "DSharedW3": f.SharedW3, "DSharedW2": f.SharedW2, "DSharedGate": f.SharedGate,
		} {
			text := ""
			if s.Type = spec.F32; s.Rank > 0 {
				text = s.String()
			}
			assert.Equal(t, text, g[of], "%s of %s", of, tt.name)
		}
	}
	s, bf16 := with(func(c *spec.Config) { c.Type, c.Logits = spec.F16, spec.F16 }).Shapes(5), show(c.Shapes(5))
	for name, text := range show(s) {
		assert.Equal(t, strings.Replace(bf16[name], "bf16", "f16", 1), text, name)
	}
}

func TestLargestLayerDoesNotOverflow(t *testing.T) {
	c := spec.Config{Hidden: spec.MaxWidth, Intermediate: spec.MaxWidth, NumExperts: spec.MaxExperts, TopK: spec.MaxTopK, SharedExperts: 1}
	s := c.Shapes(math.MaxInt32)
	assert.Equal(t, int64(1)<<52, s.W1.Bytes())
	assert.Equal(t, int64(math.MaxInt32)<<27, s.H.Bytes())
	assert.Positive(t, c.SavedBytes(math.MaxInt32))
	for _, m := range spec.SavedByMethod(c, math.MaxInt32) {
		assert.Positive(t, m.Bytes(), m.Method)
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
