package moe_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sonicmoe/internal/spec"
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
)

// benchmarkPass measures a pass on a GPU and reports the median of 24 repeats as ms/pass. A chip's
// clock changes under load, so compare two layers by several runs in turns (-count).
func benchmarkPass(b *testing.B, tr *trial.Trial, pass func() error) {
	for b.Loop() {
		times, err := trial.Measure(b.Context(), testDevice(b), tr.Stream(), 200*time.Millisecond, 24, pass)
		require.NoError(b, err)
		b.ReportMetric(float64(times.Median)/1e6, "ms/pass")
	}
}

// benchmarkPasses measures forward, and backward with weight gradients of the given type.
func benchmarkPasses(b *testing.B, c moe.Config, gradients moe.Type, accumulate bool) {
	tr := newTrial(b, c, c.TokensHint, 1, accumulating(c)...)
	require.NoError(b, tr.PrepareBackward(17, gradients))
	back := tr.Back
	back.DW1.Accumulate, back.DW2.Accumulate, back.DRouter.Accumulate = accumulate, accumulate, accumulate
	b.Run("forward", func(b *testing.B) {
		benchmarkPass(b, tr, func() error { return tr.Call().Forward(tr.Stream(), tr.Args) })
	})
	b.Run("backward", func(b *testing.B) {
		require.NoError(b, tr.Call().Forward(tr.Stream(), tr.Args))
		benchmarkPass(b, tr, func() error { return tr.Call().Backward(tr.Stream(), back) })
	})
}

// benchRows are layers of published models.
var benchRows = []struct {
	name   string
	config moe.Config
}{
	{"Qwen3-30B-A3B", moe.Config{Hidden: 2048, Intermediate: 768, NumExperts: 128, TopK: 8, TokensHint: 32768}},
	{"DeepSeek-V2-Lite", moe.Config{Hidden: 2048, Intermediate: 1408, NumExperts: 64, TopK: 6, TokensHint: 32768}},
	{"gpt-oss-20b", moe.Config{Hidden: 2880, Intermediate: 2880, NumExperts: 32, TopK: 4, TokensHint: 16384}},
}

func skipUnlessGPU(b *testing.B) {
	if !onGPU() {
		b.Skip("SONICMOE_DEVICE is not cuda: times of the emulated device mean nothing")
	}
}

// BenchmarkKinds measures every kind of expert in layers of published models. "plain" is
// SwiGLU with concatenated gate and up.
func BenchmarkKinds(b *testing.B) {
	skipUnlessGPU(b)
	for _, row := range benchRows {
		for _, kind := range []struct {
			name   string
			change func(c *moe.Config)
		}{
			{"plain", func(*moe.Config) {}},
			{"clamped", func(c *moe.Config) { c.Limit = 7 }},
			{"swiglu-oai", func(c *moe.Config) { c.Activation, c.Alpha, c.Limit = spec.SwiGLUOAI, 1.702, 7 }},
			{"geglu-tanh", func(c *moe.Config) { c.Activation = spec.GeGLUTanh }},
			{"geglu-erf", func(c *moe.Config) { c.Activation = spec.GeGLUErf }},
			{"reglu", func(c *moe.Config) { c.Activation = spec.ReGLU }},
			{"apart", func(c *moe.Config) { c.GateUp = spec.Apart }},
			{"in-out", func(c *moe.Config) { c.InOut = true }},
			{"in pairs", func(c *moe.Config) { c.InOut, c.GateUp = true, spec.Interleaved }},
			{"shared", func(c *moe.Config) { c.SharedExperts, c.SharedGate = 1, true }},
			{"biases", func(c *moe.Config) { c.Bias = true }},
			{"biases in pairs", func(c *moe.Config) { c.InOut, c.GateUp, c.Bias = true, spec.Interleaved, true }},
			{"n + 16", func(c *moe.Config) { c.Intermediate += 16 }},
			{"d + 16", func(c *moe.Config) { c.Hidden += 16 }},
		} {
			c := row.config
			kind.change(&c)
			b.Run(row.name+"/"+kind.name, func(b *testing.B) { benchmarkPasses(b, c, moe.BF16, false) })
		}
	}
}

// BenchmarkGradients measures the formats of weights' gradients: 16 and 32 bits,
// overwritten and accumulated.
func BenchmarkGradients(b *testing.B) {
	skipUnlessGPU(b)
	for _, row := range benchRows {
		for _, order := range []bool{false, true} {
			for _, gradients := range []moe.Type{moe.BF16, moe.F32} {
				for _, accumulate := range []bool{false, true} {
					c := row.config
					c.InOut = order
					b.Run(fmt.Sprintf("%s/%v/%v/accumulate=%v", row.name, order, gradients, accumulate), func(b *testing.B) {
						benchmarkPasses(b, c, gradients, accumulate)
					})
				}
			}
		}
	}
}

// BenchmarkRoute measures only routing, for several kinds of scores, with and without writing the
// logits. Long names of kinds are names of published models.
func BenchmarkRoute(b *testing.B) {
	skipUnlessGPU(b)
	for _, kind := range []struct {
		name   string
		config moe.Config
	}{
		{"softmax over 8 of 128", moe.Config{NumExperts: 128, TopK: 8}},
		{"softmax over all 128", moe.Config{NumExperts: 128, TopK: 8, Score: spec.SoftmaxAll}},
		{"softmax over 8 of 256", moe.Config{NumExperts: 256, TopK: 8}},
		{"DeepSeek-V3", moe.Config{NumExperts: 256, TopK: 8, Logits: moe.F32, Score: spec.Sigmoid, SelectionBias: true,
			Groups: 8, TopGroups: 4, GroupSumOfTwo: true, Renormalize: spec.RenormSum, NormEpsilon: 1e-20, ScoreScale: 2.5}},
	} {
		for _, tokens := range []int{64, 32768} {
			for _, logits := range []bool{false, true} {
				b.Run(fmt.Sprintf("%s/%d tokens/logits=%v", kind.name, tokens, logits), func(b *testing.B) {
					c := kind.config
					c.Hidden, c.Intermediate = 2048, 256
					tr := newTrial(b, c, tokens, 1, moe.WithoutBackward())
					memory := moe.NewArena(testDevice(b))
					b.Cleanup(func() { require.NoError(b, memory.Free()) })
					f := tr.Inference()
					if logits {
						f.Logits = memory.Tensor(tr.Layer.Shapes(tokens).Logits)
					}
					require.NoError(b, memory.Err())
					benchmarkPass(b, tr, func() error { return tr.Call().Route(tr.Stream(), f) })
				})
			}
		}
	}
}

// BenchmarkForwardHost measures the host time of a pass with the same buffers, and with other
// buffers each time. Other buffers need new tensor maps, as in micro-batches.
func BenchmarkForwardHost(b *testing.B) {
	dev, tr := faultyTrial(b, testDevice(b), moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 8, TopK: 2}, 24)
	defer tr.Close()
	dev.Discard(true)
	other := tr.Args
	other.X, other.O, other.H = tr.Args.O, tr.Args.X, moe.Tensor{Ptr: 1 << 40, Shape: tr.Args.H.Shape}
	for name, args := range map[string][2]moe.ForwardArgs{"same buffers": {tr.Args, tr.Args}, "other buffers": {tr.Args, other}} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if err := tr.Call().Forward(tr.Stream(), args[i%2]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkBackwardHost measures the host time of a backward pass with the same buffers.
func BenchmarkBackwardHost(b *testing.B) {
	dev, tr := faultyTrial(b, testDevice(b), moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 8, TopK: 2}, 24)
	defer tr.Close()
	require.NoError(b, tr.PrepareBackward(17, moe.F32))
	dev.Discard(true)
	b.ReportAllocs()
	for b.Loop() {
		if err := tr.Call().Backward(tr.Stream(), tr.Back); err != nil {
			b.Fatal(err)
		}
	}
}
