package moe_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/internal/num"
	"sonicmoe/internal/packed"
	"sonicmoe/internal/reference"
	"sonicmoe/internal/spec"
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
)

// BenchmarkPacked measures layers of packed weights and the layer of plain weights. A
// graph has a pass of each of four layers, so that no layer's weights are in the L2 cache. It
// reports the time of a pass.
func BenchmarkPacked(b *testing.B) {
	skipUnlessGPU(b)
	const layers = 4
	for _, tokens := range []int{1, 64, 4096} {
		for _, word := range spec.WeightFormats {
			c := benchRows[0].config
			c.Weights, c.TokensHint = word, tokens
			b.Run(fmt.Sprintf("%s/%d tokens/%s", benchRows[0].name, tokens, word), func(b *testing.B) {
				dev := testDevice(b)
				l := newLayer(b, dev, c, moe.WithoutBackward())
				tr, err := trial.Allocate(dev, l, tokens)
				require.NoError(b, err)
				defer tr.Close()
				x, w := trial.Draw(moe.Config{Hidden: c.Hidden, Intermediate: 16, NumExperts: c.NumExperts, TopK: c.TopK}, tokens, 1, 1)
				require.NoError(b, moe.Write(tr.Stream(), tr.Args.X, x))
				var passes []func() error
				for range layers {
					f := tr.Inference()
					f.Weights, f.Workspace = tr.Memory().Weights(l), tr.Memory().Workspace(tokens, l)
					require.NoError(b, tr.Memory().Err())
					require.NoError(b, moe.Write(tr.Stream(), f.Router, w.Router))
					fillExperts(b, tr.Stream(), l.Config(), &f.Weights)
					passes = append(passes, func() error { return tr.Call().Forward(tr.Stream(), f) })
				}
				g := capture(b, tr.Stream(), passes...)
				defer g.Close()
				for b.Loop() {
					times, err := trial.Measure(b.Context(), dev, tr.Stream(), 200*time.Millisecond, 24, func() error { return g.Launch(tr.Stream()) })
					require.NoError(b, err)
					b.ReportMetric(float64(times.Median)/1e3/layers, "µs/pass")
				}
			})
		}
	}
}

// fillExperts repeats a part of random weights over W1 and W2.
func fillExperts(b *testing.B, s driver.Stream, c moe.Config, w *moe.Weights) {
	const rows, columns = 1024, 1024
	bits := reference.NewNormal(3, reference.ScaleWeight).Values(rows * columns)
	m := packed.Matrices{Codes: num.Bytes(bits)}
	if p := spec.PackingOf(c); p != nil {
		values := make([]float32, len(bits))
		num.DecodeBF16(values, bits)
		m = packed.Pack(p, values, rows, columns)
	}
	for _, t := range []struct {
		to   moe.Tensor
		from []byte
	}{{w.W1, m.Codes}, {w.W2, m.Codes}, {w.W1Scale, m.Scales}, {w.W2Scale, m.Scales}, {w.W1Zero, m.Zeros}, {w.W2Zero, m.Zeros}, {w.W1Global, m.Global}, {w.W2Global, m.Global}} {
		for at := int64(0); at < t.to.Shape.Bytes(); at += int64(len(t.from)) {
			part := t.from[:min(int64(len(t.from)), t.to.Shape.Bytes()-at)]
			require.NoError(b, s.CopyToDevice(t.to.Ptr+driver.DevicePtr(at), part))
		}
	}
}
