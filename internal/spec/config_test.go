package spec_test

import (
	"errors"
	"math"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/spec"
)

var good = spec.Config{Hidden: 1536, Intermediate: 256, NumExperts: 128, TopK: 8}

func TestCheck(t *testing.T) {
	tests := []struct {
		name   string
		change func(*spec.Config)
		want   string // part of the error, or "" if the Config is accepted
	}{
		{"as is", func(c *spec.Config) {}, ""},
		{"least", func(c *spec.Config) { *c = spec.Config{Hidden: 16, Intermediate: 16, NumExperts: 1, TopK: 1} }, ""},
		{"most", func(c *spec.Config) {
			*c = spec.Config{Hidden: 1 << 20, Intermediate: 1 << 20, NumExperts: 1024, TopK: 32, SharedExperts: 1,
				GateUp: spec.Interleaved, Logits: spec.F32, TokensHint: 1 << 20}
		}, ""},
		{"d not a multiple", func(c *spec.Config) { c.Hidden = 100 },
			"Config.Hidden is 100, must be a multiple of 16, at least 16"},
		{"d too small", func(c *spec.Config) { c.Hidden = 8 },
			"Config.Hidden is 8, must be a multiple of 16, at least 16"},
		{"d negative", func(c *spec.Config) { c.Hidden = -128 },
			"Config.Hidden is -128, must be a multiple of 16, at least 16"},
		{"d too large", func(c *spec.Config) { c.Hidden = 1<<20 + 64 },
			"Config.Hidden is 1048640, must be at most 1048576"},
		{"n zero", func(c *spec.Config) { c.Intermediate = 0 },
			"Config.Intermediate is 0, must be a multiple of 16, at least 16"},
		{"n not a multiple", func(c *spec.Config) { c.Intermediate = 72 },
			"Config.Intermediate is 72, must be a multiple of 16, at least 16"},
		{"no experts", func(c *spec.Config) { c.NumExperts = 0 }, "Config.NumExperts is 0, must be 1 to 1024"},
		{"experts", func(c *spec.Config) { c.NumExperts = 1025 }, "Config.NumExperts is 1025, must be 1 to 1024"},
		{"K zero", func(c *spec.Config) { c.TopK = 0 }, "Config.TopK is 0, must be 1 to 32 (with 128 experts)"},
		{"K large", func(c *spec.Config) { c.TopK = 33 }, "Config.TopK is 33, must be 1 to 32 (with 128 experts)"},
		{"K over E", func(c *spec.Config) { c.NumExperts = 4 }, "Config.TopK is 8, must be 1 to 4 (with 4 experts)"},
		{"type", func(c *spec.Config) { c.Type = spec.F32 }, "Config.Type is f32, must be BF16 or F16"},
		{"gate up", func(c *spec.Config) { c.GateUp = "sideways" },
			`Config.GateUp is "sideways", must be one of concatenated, interleaved, apart`},
		{"activation", func(c *spec.Config) { c.Activation = "gelu" }, `Config.Activation is "gelu", must be one of ` +
			"swiglu, swiglu-oai, geglu-tanh, geglu-erf, reglu, relu, relu2, silu, gelu-tanh, gelu-erf"},
		{"gate up without a gate", func(c *spec.Config) { c.Activation, c.GateUp = spec.ReLU2, spec.Apart },
			"Config.GateUp is apart, must be concatenated, its zero value: relu2 has no gate"},
		{"gpt-oss", func(c *spec.Config) { c.Activation, c.Alpha, c.Limit, c.Bias = spec.SwiGLUOAI, 1.702, 7, true }, ""},
		{"no alpha", func(c *spec.Config) { c.Activation, c.Limit = spec.SwiGLUOAI, 7 },
			"Config.Alpha is 0, must be a number above 0 with swiglu-oai (gpt-oss has 1.702)"},
		{"no limit", func(c *spec.Config) { c.Activation, c.Alpha = spec.SwiGLUOAI, 1.702 },
			"Config.Limit is 0, must be a number above 0 with swiglu-oai (gpt-oss has 7)"},
		{"alpha of another", func(c *spec.Config) { c.Alpha = 1 }, "Config.Alpha is 1, must be 0: swiglu has none"},
		{"limit", func(c *spec.Config) { c.Limit = 10 }, ""},
		{"limit NaN", func(c *spec.Config) { c.Limit = math.NaN() }, "Config.Limit is NaN, must be 0 (no limit) or a number above 0"},
		{"limit of another", func(c *spec.Config) { c.Activation, c.Limit = spec.ReGLU, 10 }, "Config.Limit is 10, must be 0: reglu has none"},
		{"logits", func(c *spec.Config) { c.Logits = 9 }, "Config.Logits is Type(9), must be BF16, F16 or F32"},
		{"logits of another type", func(c *spec.Config) { c.Logits = spec.F16 },
			"Config.Logits is f16, must be BF16, the layer's Type, or F32"},
		{"fp16", func(c *spec.Config) { c.Type, c.Logits = spec.F16, spec.F16 }, ""},
		{"bf16 logits of fp16", func(c *spec.Config) { c.Type = spec.F16 },
			"Config.Logits is bf16, must be F16, the layer's Type, or F32"},
		{"f32 router", func(c *spec.Config) { c.RouterF32 = true }, "Config.Logits is bf16, must be F32 with RouterF32"},
		{"score", func(c *spec.Config) { c.Score = "tanh" }, `Config.Score is "tanh", must be one of softmax-topk, softmax, sigmoid, sqrt-softplus`},
		{"selection bias", func(c *spec.Config) { c.SelectionBias = true }, "Config.SelectionBias is true, must be false with the score softmax-topk, " +
			"which comes after the choice; softmax with Renormalize sum is the same function"},
		{"DeepSeek-V3", func(c *spec.Config) {
			c.NumExperts, c.Score, c.SelectionBias, c.Groups, c.TopGroups = 256, spec.Sigmoid, true, 8, 4
			c.GroupSumOfTwo, c.Renormalize, c.NormEpsilon, c.ScoreScale, c.SharedExperts = true, spec.RenormSum, 1e-20, 2.5, 1
		}, ""},
		{"top groups alone", func(c *spec.Config) { c.TopGroups = 2 }, "Config.TopGroups is 2, must be 0 where Groups is 0"},
		{"group score alone", func(c *spec.Config) { c.GroupSumOfTwo = true },
			"Config.GroupSumOfTwo is true, must be false where Groups is 0"},
		{"one group", func(c *spec.Config) { c.Groups, c.TopGroups = 1, 1 },
			"Config.Groups is 1, must be 0 (no groups), or 2 or more that 128 experts divide by"},
		{"groups", func(c *spec.Config) { c.Groups, c.TopGroups = 5, 2 },
			"Config.Groups is 5, must be 0 (no groups), or 2 or more that 128 experts divide by"},
		{"top groups", func(c *spec.Config) { c.Groups, c.TopGroups = 4, 5 }, "Config.TopGroups is 5, must be 1 to 4, the number of groups"},
		{"no top groups", func(c *spec.Config) { c.Groups = 4 }, "Config.TopGroups is 0, must be 1 to 4, the number of groups"},
		{"groups too small", func(c *spec.Config) { c.Groups, c.TopGroups = 64, 3 },
			"Config.TopK is 8, must be at most 6, the experts of 3 groups of 2"},
		{"sum of two after the choice", func(c *spec.Config) { c.Groups, c.TopGroups, c.GroupSumOfTwo = 4, 2, true },
			"Config.GroupSumOfTwo is true, must be false with the score softmax-topk, which comes after the choice"},
		{"sum of one", func(c *spec.Config) {
			c.Groups, c.TopGroups, c.GroupSumOfTwo, c.Score = 128, 8, true, spec.Sigmoid
		}, "Config.GroupSumOfTwo is true, must be false: groups have one expert"},
		{"renorm", func(c *spec.Config) { c.Renormalize = "l2" }, `Config.Renormalize is "l2", must be one of none, sum, clamp`},
		{"renorm twice", func(c *spec.Config) { c.Renormalize = spec.RenormSum },
			"Config.Renormalize is sum, must be none with the score softmax-topk, whose sum is 1"},
		{"clamp without", func(c *spec.Config) { c.Score, c.Renormalize = spec.SoftmaxAll, spec.RenormClamp },
			"Config.NormEpsilon is 0, must be a number above 0 with Renormalize clamp"},
		{"epsilon", func(c *spec.Config) { c.Score, c.Renormalize, c.NormEpsilon = spec.Sigmoid, spec.RenormSum, -1e-6 },
			"Config.NormEpsilon is -1e-06, must be a number, 0 or more"},
		{"epsilon alone", func(c *spec.Config) { c.NormEpsilon = 1e-20 }, "Config.NormEpsilon is 1e-20, must be 0 without Renormalize"},
		{"scale", func(c *spec.Config) { c.ScoreScale = math.Inf(1) }, "Config.ScoreScale is +Inf, must be 0 (which means 1) or a number above 0"},
		{"score on the input with biases", func(c *spec.Config) { c.ScoreOnInput, c.Bias = true, true },
			"Config.Bias is true, must be false with ScoreOnInput: no model has both"},
		{"shared", func(c *spec.Config) { c.SharedExperts = -1 }, "Config.SharedExperts is -1, must be 0 or more"},
		{"shared too wide", func(c *spec.Config) { c.SharedExperts = 4097 },
			"Config.SharedExperts is 4097, must be at most 4096: their width together is bounded by 1048576"},
		{"gate of nothing", func(c *spec.Config) { c.SharedGate = true }, "Config.SharedGate is true, must be false without SharedExperts"},
		{"hint", func(c *spec.Config) { c.TokensHint = -1 },
			"Config.TokensHint is -1, must be 0 (unknown) or the tokens expected in a call, at most 268435455"},
		{"hint of the most", func(c *spec.Config) { c.TokensHint = 268435455 }, ""},
		{"hint too large", func(c *spec.Config) { c.TokensHint = 268435456 },
			"Config.TokensHint is 268435456, must be 0 (unknown) or the tokens expected in a call, at most 268435455"},
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

var (
	deepSeek = spec.Config{
		Hidden: 7168, Intermediate: 2048, NumExperts: 256, TopK: 8, GateUp: spec.Apart, Logits: spec.F32,
		Score: spec.Sigmoid, SelectionBias: true, Groups: 8, TopGroups: 4, GroupSumOfTwo: true,
		Renormalize: spec.RenormSum, NormEpsilon: 1e-20, ScoreScale: 2.5, SharedExperts: 1,
	}
	gptLike = spec.Config{
		Hidden: 64, Intermediate: 32, NumExperts: 8, TopK: 2, Type: spec.F16, GateUp: spec.Interleaved, InOut: true,
		Activation: spec.SwiGLUOAI, Alpha: 1.702, Limit: 7, Bias: true, Logits: spec.F16, RouterBias: true, ExpertScale: true,
		ScoreOnInput: true, SharedExperts: 2, SharedGate: true,
	}
)

// TestStringTellsEveryField checks that String shows every field except the hint, so that
// layers that compute differently have different texts.
func TestStringTellsEveryField(t *testing.T) {
	typ := reflect.TypeFor[spec.Config]()
	for i := range typ.NumField() {
		c := gptLike
		v := reflect.ValueOf(&c).Elem().Field(i)
		switch v.Kind() {
		case reflect.Bool:
			v.SetBool(!v.Bool())
		case reflect.Int:
			v.SetInt(v.Int() + 16)
		case reflect.String:
			v.SetString(v.String() + "?")
		case reflect.Uint8:
			v.SetUint(v.Uint() ^ 1)
		case reflect.Float64:
			v.SetFloat(v.Float() + 0.1)
		case reflect.Struct:
			v.Set(reflect.ValueOf(spec.Rounding{Rule: spec.RoundUp}))
		}
		if typ.Field(i).Name == "TokensHint" {
			assert.Equal(t, gptLike.String(), c.String())
			continue
		}
		assert.NotEqual(t, gptLike.String(), c.String(), typ.Field(i).Name)
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
	other.GateUp, other.Logits = spec.Interleaved, spec.F32
	assert.Equal(t, "d=1536 n=256 E=128 K=8 w1=interleaved logits=f32", other.String())
	assert.Equal(t, "d=7168 n=2048 E=256 K=8 w1=apart logits=f32 score=sigmoid selection-bias groups=4/8 group-score=sum2 "+
		"renorm=sum epsilon=1e-20 scale=2.5 shared=1", deepSeek.String())
	assert.Equal(t, "d=64 n=32 E=8 K=2 w1=interleaved logits=f16 type=f16 order=in-out act=swiglu-oai alpha=1.702 limit=7 bias "+
		"router-bias expert-scale score-on-input shared=2 shared-gate", gptLike.String())
	one := good
	one.ScoreScale = 1
	assert.Equal(t, good.String(), one.String(), "1 is what 0 means")
	assert.Equal(t, "bf16 [128 512 1536]", good.Shapes(1).W1.String())
}

// TestNormal checks that a default spelled as a word and the zero value give the same Config
// after Normal.
func TestNormal(t *testing.T) {
	zero := spec.Config{Hidden: 64, Intermediate: 32, NumExperts: 8, TopK: 2}
	c := zero
	c.GateUp, c.Activation, c.Score, c.Renormalize, c.Rounding.Rule = "concatenated", "swiglu", "softmax-topk", "none", "none"
	require.NoError(t, c.Check())
	assert.Equal(t, zero, c.Normal())
	assert.Equal(t, zero.String(), c.String())
	assert.Equal(t, zero.Shapes(3), c.Shapes(3))
	assert.Equal(t, zero.SavesLogits(), c.SavesLogits())
	assert.False(t, c.Rounds())
	gated := []spec.Activation{spec.SwiGLU, "swiglu", spec.SwiGLUOAI, spec.GeGLUTanh, spec.GeGLUErf, spec.ReGLU}
	for _, a := range append(spec.Activations, spec.SwiGLU) {
		assert.Equal(t, slices.Contains(gated, a), a.Gated(), a)
	}
}
