package parallel

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sonicmoe/internal/drivertest"
	"sonicmoe/internal/peers"
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
)

// benchTokens is the number of tokens of each rank.
const benchTokens = 16384

// BenchmarkForward measures a forward pass on one GPU, and on groups with the same number of tokens
// on each rank. Ranks share GPUs if there are not enough. It reports the median time of a pass, the
// bytes that a rank sends, and the ratio to the time on one device.
func BenchmarkForward(b *testing.B) {
	if drivertest.Name() == "emulated" {
		b.Skip("times of an emulated device say nothing")
	}
	for _, name := range []string{"Qwen3-30B-A3B", "30B n=1024"} {
		row, ok := peers.Find(name)
		require.True(b, ok)
		row.Config.TokensHint = benchTokens
		var alone time.Duration
		b.Run(name+"/one", func(b *testing.B) { alone = benchOne(b, row.Config) })
		for _, ranks := range []int{1, 2} {
			b.Run(fmt.Sprintf("%s/ranks=%d", name, ranks), func(b *testing.B) { benchRanks(b, row.Config, ranks, alone) })
		}
	}
}

// median returns the median time of ten runs, after two runs for warming up.
func median(run func() error) (time.Duration, error) {
	var times []time.Duration
	for i := range 12 {
		began := time.Now()
		if err := run(); err != nil {
			return 0, err
		}
		if i >= 2 {
			times = append(times, time.Since(began))
		}
	}
	slices.Sort(times)
	return times[len(times)/2], nil
}

func benchOne(b *testing.B, c moe.Config) time.Duration {
	list, err := devices()
	require.NoError(b, err)
	l, err := moe.New(context.Background(), list[0], c, moe.WithoutBackward())
	require.NoError(b, err)
	tr, err := trial.New(list[0], l, benchTokens, 1, 1)
	require.NoError(b, err)
	defer tr.Close()
	took, err := median(func() error { return benchPass(tr) })
	require.NoError(b, err)
	b.ReportMetric(float64(took.Microseconds()), "µs")
	return took
}

func benchRanks(b *testing.B, c moe.Config, ranks int, alone time.Duration) {
	of := testCase{config: c, tokens: slices.Repeat([]int{benchTokens}, ranks)}
	x, w := trial.Draw(c, benchTokens, 1, 1)
	shared := &trial.Trial{X: x, Weights: w} // all ranks have the same tokens
	members := join(b, of, Options{Layer: forwardOnly})
	require.NoError(b, each(members, func(_ int, m *member) error { return m.fill(shared, 0, benchTokens) }))
	took := make([]time.Duration, ranks)
	require.NoError(b, each(members, func(i int, m *member) (err error) {
		took[i], err = median(func() error {
			if err := m.Forward(context.Background(), m.stream, m.args); err != nil {
				return err
			}
			return m.stream.Synchronize(context.Background())
		})
		return err
	}))
	b.ReportMetric(float64(took[0].Microseconds()), "µs")
	b.ReportMetric(float64(took[0])/float64(alone), "×one")
	var sizes Sizes
	sizes, err := members[0].Sizes()
	require.NoError(b, err)
	b.ReportMetric(float64(sizes.Workspace)/(1<<30), "GiB")
}

// benchPass runs a pass on one device and waits for it.
func benchPass(tr *trial.Trial) error {
	if err := tr.Call().Forward(tr.Stream(), tr.Inference()); err != nil {
		return err
	}
	return tr.Stream().Synchronize(context.Background())
}
