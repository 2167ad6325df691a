package moe_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/internal/reference"
	"sonicmoe/internal/spec"
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
)

// kinds are layers with every kind of routing. The first are the kinds of published models. Their
// sizes are not multiples of a lane, a pair or 32.
var kinds = []struct {
	name   string
	config moe.Config
}{
	{"OLMoE", moe.Config{NumExperts: 64, TopK: 8, Score: spec.SoftmaxAll}},
	{"DeepSeek-V2", moe.Config{NumExperts: 40, TopK: 6, Logits: moe.F32, Score: spec.SoftmaxAll, Groups: 8, TopGroups: 3, ScoreScale: 16}},
	{"DeepSeek-V3", moe.Config{NumExperts: 64, TopK: 8, Logits: moe.F32, Score: spec.Sigmoid, SelectionBias: true,
		Groups: 8, TopGroups: 4, GroupSumOfTwo: true, Renormalize: spec.RenormSum, NormEpsilon: 1e-20, ScoreScale: 2.5}},
	{"Hunyuan", moe.Config{NumExperts: 72, TopK: 8, Logits: moe.F32, RouterF32: true}},
	{"ERNIE", moe.Config{NumExperts: 33, TopK: 6, Logits: moe.F32, RouterF32: true, Score: spec.SoftmaxAll, SelectionBias: true, Renormalize: spec.RenormClamp, NormEpsilon: 1e-12}},
	{"MiniMax-M2", moe.Config{NumExperts: 264, TopK: 8, Logits: moe.F32, RouterF32: true, Score: spec.Sigmoid, SelectionBias: true, Renormalize: spec.RenormSum, NormEpsilon: 1e-20}},
	{"ERNIE, bf16", moe.Config{NumExperts: 33, TopK: 6, Score: spec.SoftmaxAll, SelectionBias: true, Renormalize: spec.RenormClamp, NormEpsilon: 1e-12}},
	{"gpt-oss", moe.Config{NumExperts: 32, TopK: 4, RouterBias: true}},
	{"gpt-oss, FP32", moe.Config{NumExperts: 37, TopK: 4, RouterBias: true, Logits: moe.F32}},
	{"Gemma-4", moe.Config{NumExperts: 16, TopK: 3, ExpertScale: true}},
	{"sigmoid", moe.Config{NumExperts: 7, TopK: 2, Score: spec.Sigmoid, RouterBias: true}},
	{"sigmoid, groups by two scores", moe.Config{NumExperts: 30, TopK: 5, Score: spec.Sigmoid, Groups: 6, TopGroups: 2, GroupSumOfTwo: true, Renormalize: spec.RenormSum}},
	{"root of softplus", moe.Config{NumExperts: 65, TopK: 4, Score: spec.SqrtSoftplus, Renormalize: spec.RenormSum}},
	{"root of softplus, clamped", moe.Config{NumExperts: 24, TopK: 24, Logits: moe.F32, Score: spec.SqrtSoftplus, SelectionBias: true, Renormalize: spec.RenormClamp, NormEpsilon: 100}},
	{"softmax, all switches", moe.Config{NumExperts: 50, TopK: 5, Score: spec.SoftmaxAll, RouterBias: true, ExpertScale: true, SelectionBias: true,
		Groups: 5, TopGroups: 3, GroupSumOfTwo: true, Renormalize: spec.RenormSum, NormEpsilon: 0.25, ScoreScale: 2.5}},
	{"softmax over 20", moe.Config{NumExperts: 45, TopK: 20}},
	{"softmax over 32 of groups of one", moe.Config{NumExperts: 66, TopK: 32, Groups: 66, TopGroups: 40, RouterBias: true}},
	{"scaled softmax", moe.Config{NumExperts: 9, TopK: 2, ScoreScale: 2.5}},
}

// TestRoutingKinds compares every kind of routing with float64, forward and
// backward.
func TestRoutingKinds(t *testing.T) {
	for i, g := range kinds {
		if testing.Short() && i != 2 && i != 3 {
			continue
		}
		t.Run(g.name, func(t *testing.T) {
			c := g.config
			c.Hidden, c.Intermediate = 128, 64
			const tokens = 75
			tr := newTrial(t, c, tokens, 12)
			require.NoError(t, tr.PrepareBackward(3, moe.F32))
			r := forward(t, tr, tr.Args)
			report, err := tr.Check(r, tokens)
			require.NoError(t, err)
			require.NoError(t, report.Check())
			for _, extra := range []bool{false, true} {
				if extra {
					require.NoError(t, tr.AddLogitGradients(5))
				}
				require.NoError(t, tr.RunBackward(context.Background(), tr.Back))
				for _, rounding := range []reference.Rounding{reference.Unrounded, reference.Rounded} {
					report, err := tr.CheckBackward(tr.Back, r, trial.BackwardCheck{Routed: true, Rounding: rounding, Tokens: tokens, Rows: 200})
					require.NoError(t, err)
					require.NoError(t, report.Check(), "extra=%v", extra)
				}
			}
		})
	}
}

// TestRoutingKindsInSmallBatches checks that small batches have the bits of large batches, and that
// choices in wide layers match the reference.
func TestRoutingKindsInSmallBatches(t *testing.T) {
	for i, g := range kinds {
		if testing.Short() && i > 2 {
			break // -short runs three kinds; TestRoutingsOfKinds covers small batches, too
		}
		t.Run(g.name, func(t *testing.T) {
			c := g.config
			c.Hidden, c.Intermediate = 128, 64
			few, many := newTrial(t, c, 33, 12, moe.WithDecode(33), moe.WithoutBackward()), newTrial(t, c, 33, 12, moe.WithoutDecode(), moe.WithoutBackward())
			require.Contains(t, launched(t, few), "small-batch-logits")
			require.NotContains(t, launched(t, many), "small-batch-logits")
			samePass(t, many, few)
			r, err := few.Results(true)
			require.NoError(t, err)
			report, err := few.Check(r, few.Tokens)
			require.NoError(t, err)
			require.NoError(t, report.Check())
		})
	}
}
