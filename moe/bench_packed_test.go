package moe_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sonicmoe/internal/spec"
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
)

// packedRows are layers of published models, and the batches of BenchmarkPacked.
var packedRows = []struct {
	name    string
	config  moe.Config
	batches []int
}{
	{"Qwen3-30B-A3B", moe.Config{Hidden: 2048, Intermediate: 768, NumExperts: 128, TopK: 8}, []int{1, 4, 16, 64, 256, 1024, 4096, 8192, 16384, 32768}},
	{"gpt-oss-20b", moe.Config{Hidden: 2880, Intermediate: 2880, NumExperts: 32, TopK: 4}, []int{1, 4, 8, 16, 64, 256, 1024, 4096, 16384}},
	{"Mixtral", moe.Config{Hidden: 4096, Intermediate: 14336, NumExperts: 8, TopK: 2}, []int{1, 4, 8, 16, 64, 256, 1024, 4096, 16384}},
	{"DeepSeek-V3-EP-8", moe.Config{Hidden: 7168, Intermediate: 2048, NumExperts: 32, TopK: 8}, []int{1, 8, 64, 256}},
	{"Kimi-K2-EP-8", moe.Config{Hidden: 7168, Intermediate: 2048, NumExperts: 48, TopK: 8}, []int{1, 8, 64, 256}},
}

// BenchmarkPacked measures layers of packed weights in units (see [moe.Call.Arrange]), and layers
// of plain weights. A graph has a whole pass of each of four layers, twice, so that no layer's
// weights are in the L2 cache. The benchmark reports the time of a pass, and the bandwidth of
// reading the weights of the chosen experts as a share of an H200's bandwidth. A pass over units
// must have the bits of a pass that unpacks the weights and runs the kernels of plain weights.
func BenchmarkPacked(b *testing.B) {
	skipUnlessGPU(b)
	for _, row := range packedRows {
		b.Run(row.name, func(b *testing.B) {
			for _, word := range spec.WeightFormats {
				c := row.config
				c.Weights = word
				b.Run(word, func(b *testing.B) { benchmarkFormat(b, c, row.batches) })
			}
		})
	}
}

// benchmarkFormat measures a layer at each batch size.
func benchmarkFormat(b *testing.B, c moe.Config, batches []int) {
	const layers, rounds, peakGBps = 4, 2, 4800
	dev, most := testDevice(b), slices.Max(batches)
	l := newLayer(b, dev, c, moe.WithoutBackward())
	tr, err := trial.Allocate(dev, l, most)
	require.NoError(b, err)
	defer tr.Close()
	tr.Args.Workspace = tr.Memory().Workspace(most, l)
	sizes, err := l.Sizes(most)
	require.NoError(b, err)
	x, w := trial.Draw(moe.Config{Hidden: c.Hidden, Intermediate: 16, NumExperts: c.NumExperts, TopK: c.TopK}, most, 1, 1)
	require.NoError(b, moe.Write(tr.Stream(), tr.Args.X, x))
	var passes []moe.ForwardArgs
	for range layers {
		f := tr.Inference()
		f.Weights = tr.Memory().Weights(l)
		if sizes.Units > 0 {
			f.Units = tr.Memory().Buffer(sizes.Units)
		}
		require.NoError(b, tr.Memory().Err())
		require.NoError(b, moe.Write(tr.Stream(), f.Router, w.Router))
		require.NoError(b, trial.FillExperts(tr.Stream(), l.Config(), &f.Weights))
		if sizes.Units > 0 {
			require.NoError(b, tr.Call().Arrange(tr.Stream(), f.Weights, f.Units))
		}
		passes = append(passes, f)
	}
	for _, tokens := range batches {
		b.Run(fmt.Sprint(tokens), func(b *testing.B) {
			var queued []func() error
			for range rounds {
				for _, f := range passes {
					f, err := f.Tokens(tokens)
					require.NoError(b, err)
					queued = append(queued, func() error { return tr.Call().Forward(tr.Stream(), f) })
				}
			}
			f, err := passes[0].Tokens(tokens)
			require.NoError(b, err)
			sameWithoutUnits(b, tr, f)
			ids := make([]int32, tokens*c.TopK)
			require.NoError(b, moe.Read(tr.Stream(), f.ExpertIDs, ids))
			slices.Sort(ids)
			touched := float64(spec.MatrixBytes(l.Config())) * float64(len(slices.Compact(ids))) / float64(c.NumExperts)
			g := capture(b, tr.Stream(), queued...)
			defer g.Close()
			for b.Loop() {
				times, err := trial.Measure(b.Context(), dev, tr.Stream(), 30*time.Millisecond, 24, func() error { return g.Launch(tr.Stream()) })
				require.NoError(b, err)
				us := float64(times.Median) / 1e3 / layers / rounds
				b.ReportMetric(us, "µs/pass")
				b.ReportMetric(100*touched/us/1e3/peakGBps, "%bandwidth")
			}
		})
	}
}

// sameWithoutUnits runs a pass with and without units, and compares the bits of O.
func sameWithoutUnits(b *testing.B, tr *trial.Trial, f moe.ForwardArgs) {
	var outputs [2][]uint16
	for i := range outputs {
		require.NoError(b, tr.Poison())
		require.NoError(b, tr.Call().Forward(tr.Stream(), f))
		require.NoError(b, tr.Layer.Explain(tr.Stream().Synchronize(limited(b, time.Minute))))
		outputs[i] = make([]uint16, f.O.Shape.Elements())
		require.NoError(b, moe.Read(tr.Stream(), f.O, outputs[i]))
		f.Units = moe.Buffer{}
	}
	require.True(b, slices.Equal(outputs[0], outputs[1]), "O with units and without differ")
}
