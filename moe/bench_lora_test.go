package moe_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
)

// BenchmarkAdapters measures forward passes of a layer with a table of 16 adapters, which the tokens
// name in turns, next to the layer without a table. A graph has 8 passes over different tokens, so
// that most weights of a small batch are not in the L2 cache.
func BenchmarkAdapters(b *testing.B) {
	skipUnlessGPU(b)
	const passes, adapters = 8, 16
	for _, rank := range []int{16, 64} {
		c := benchRows[0].config
		c.TokensHint, c.LoRARank, c.LoRAAdapters = 0, rank, adapters
		const most = 8192
		tr := newTrial(b, c, most, 1, moe.WithoutBackward())
		ids, scales := make([]int32, most), make([]float32, adapters)
		for i := range ids {
			ids[i] = int32(i % adapters)
		}
		for i := range scales {
			scales[i] = 2
		}
		require.NoError(b, moe.Write(tr.Stream(), tr.Args.AdapterIDs, ids))
		require.NoError(b, moe.Write(tr.Stream(), tr.Args.LoraScales, scales))
		plain := c
		plain.LoRARank, plain.LoRAAdapters = 0, 0
		base := newLayer(b, testDevice(b), plain, moe.WithoutBackward()).NewCall()
		for _, tokens := range []int{1, 2, 8, 64, 256, most} {
			var queue [2][]func() error
			for i := range passes {
				f, err := tr.Args.Tokens(tokens)
				require.NoError(b, err)
				f.H = moe.Tensor{}
				first := i * tokens % most
				f.X.Ptr += driver.DevicePtr(first * c.Hidden * 2)
				queue[1] = append(queue[1], func() error { return tr.Call().Forward(tr.Stream(), f) })
				without := f
				without.AdapterIDs, without.LoraA1, without.LoraB1, without.LoraA2, without.LoraB2, without.LoraScales = moe.Tensor{}, moe.Tensor{}, moe.Tensor{}, moe.Tensor{}, moe.Tensor{}, moe.Tensor{}
				queue[0] = append(queue[0], func() error { return base.Forward(tr.Stream(), without) })
			}
			for turn := range 2 {
				for with, name := range []string{"base", "adapters"} {
					b.Run(fmt.Sprintf("r=%d/T=%d/%s/turn=%d", rank, tokens, name, turn), func(b *testing.B) {
						g := capture(b, tr.Stream(), queue[with]...)
						defer g.Close()
						for b.Loop() {
							times, err := trial.Measure(b.Context(), testDevice(b), tr.Stream(), 50*time.Millisecond, 24, func() error { return g.Launch(tr.Stream()) })
							require.NoError(b, err)
							b.ReportMetric(float64(times.Median)/1e3/passes, "µs/pass")
						}
					})
				}
			}
		}
		require.NoError(b, tr.Close())
	}
}

// BenchmarkLoRA measures forward passes and training steps in turns: steps of all weights, of an
// adapter over a frozen base, and of a frozen base without an adapter. The last has only dX and the
// scores' gradients.
func BenchmarkLoRA(b *testing.B) {
	skipUnlessGPU(b)
	for _, tokens := range []int{8192, 32768} {
		b.Run(fmt.Sprintf("T=%d", tokens), func(b *testing.B) {
			type subject struct {
				name    string
				forward func() error
				step    func() error
				tr      *trial.Trial
			}
			var subjects []subject
			for _, of := range []struct {
				weights string
				rank    int
			}{{"plain", 0}, {"plain", 16}, {"plain", 64}, {"mxfp4", 16}} {
				c := benchRows[0].config
				c.TokensHint, c.Weights, c.LoRARank = tokens, of.weights, of.rank
				if of.rank > 0 {
					c.LoRAAlpha = 32
				}
				tr := newTrial(b, c, tokens, 1)
				require.NoError(b, tr.PrepareBackward(17, moe.BF16))
				all, frozen := tr.Back, tr.Back
				frozen.DW1, frozen.DW2, frozen.DRouter = moe.Gradient{}, moe.Gradient{}, moe.Gradient{}
				forward := func() error { return tr.Call().Forward(tr.Stream(), tr.Args) }
				step := func(back moe.BackwardArgs) func() error {
					return func() error { return errors.Join(forward(), tr.Call().Backward(tr.Stream(), back)) }
				}
				name := fmt.Sprintf("%s/r=%d", of.weights, of.rank)
				subjects = append(subjects, subject{name, forward, step(frozen), tr})
				if of.rank == 0 {
					subjects = append(subjects, subject{name + "/all", forward, step(all), tr})
				}
			}
			for turn := range 3 {
				for _, s := range subjects {
					b.Run(fmt.Sprintf("%s/forward/turn=%d", s.name, turn), func(b *testing.B) { benchmarkPass(b, s.tr, s.forward) })
					b.Run(fmt.Sprintf("%s/step/turn=%d", s.name, turn), func(b *testing.B) { benchmarkPass(b, s.tr, s.step) })
				}
			}
		})
	}
}

// BenchmarkLoRAKernels measures each kernel of a training step with a frozen base, and without an
// adapter. An event after each kernel delays the next one, so the times add up to more than a step.
func BenchmarkLoRAKernels(b *testing.B) {
	skipUnlessGPU(b)
	for _, tokens := range []int{8192, 32768} {
		for _, rank := range []int{0, 16, 64} {
			c := benchRows[0].config
			c.TokensHint = tokens
			if c.LoRARank = rank; rank > 0 {
				c.LoRAAlpha = 32
			}
			tr := newTrial(b, c, c.TokensHint, 1)
			require.NoError(b, tr.PrepareBackward(17, moe.BF16))
			b.Run(fmt.Sprintf("T=%d/r=%d", tokens, rank), func(b *testing.B) {
				for b.Loop() {
					for _, kernel := range kernelTimes(b, tr) {
						b.ReportMetric(kernel.µs, kernel.name)
					}
				}
			})
			require.NoError(b, tr.Close())
		}
	}
}

// kernelTime is a kernel's mean time in a step.
type kernelTime struct {
	name string
	µs   float64
}

// kernelTimes returns the kernels of a step in the order of their launches, and the mean time of each
// over ten steps.
func kernelTimes(b *testing.B, tr *trial.Trial) (list []kernelTime) {
	var names []string
	var events []driver.Event
	record := func(name string, s driver.Stream) error {
		e, err := testDevice(b).NewEvent()
		if err != nil {
			return err
		}
		names, events = append(names, name), append(events, e)
		return e.Record(s)
	}
	step := func() {
		require.NoError(b, tr.Call().Forward(tr.Stream(), tr.Args))
		require.NoError(b, tr.Call().Backward(tr.Stream(), tr.Back))
		require.NoError(b, record("end", tr.Stream()))
	}
	for range 20 {
		require.NoError(b, tr.Call().Forward(tr.Stream(), tr.Args))
		require.NoError(b, tr.Call().Backward(tr.Stream(), tr.Back))
	}
	tr.Call().Observe(record)
	defer tr.Call().Observe(nil)
	const steps = 10
	for range steps {
		step()
	}
	require.NoError(b, tr.Stream().Synchronize(b.Context()))
	each := len(names) / steps
	for i := range each - 1 {
		var sum time.Duration
		for s := range steps {
			d, err := events[s*each+i+1].Since(events[s*each+i])
			require.NoError(b, err)
			sum += d
		}
		list = append(list, kernelTime{fmt.Sprintf("%02d-%s", i, names[i]), float64(sum) / 1e3 / steps})
	}
	for _, e := range events {
		require.NoError(b, e.Close())
	}
	return list
}
