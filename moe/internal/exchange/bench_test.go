package exchange

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/drivertest"
	"sonicmoe/jit"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/kernel"
	kt "sonicmoe/moe/internal/kernel/kerneltest"
)

// BenchmarkRates measures the kernels that pack the tokens of a pass, and that sum the rows which
// have come home, on a rested device and after 200 ms of load. It reports the rate of the bytes that they
// read and write: rows, indices and scores. Copies of the device for as many rows show the rate that
// memory allows.
func BenchmarkRates(b *testing.B) {
	if drivertest.Name() == "emulated" {
		b.Skip("times of an emulated device say nothing")
	}
	const tokens, topK = 16384, 8
	for _, d := range []int{2048, 7168} {
		bed := kt.New(b, kt.Timings()[0])
		r := rand.New(rand.NewPCG(uint64(d), 1))
		places, scores := make([]uint32, tokens*topK), make([]float32, tokens*topK)
		for i, p := range r.Perm(len(places)) {
			places[i] = uint32(p)
		}
		index := kt.Upload(bed, places[:tokens]) // rows in a random order
		few, all := bed.Room(2*d*tokens), bed.Room(2*d*tokens*topK)
		row := float64(2 * d)
		b.Run(fmt.Sprintf("pack/d=%d", d), func(b *testing.B) {
			rate(b, bed, tokens*(2*row+4), launches(b, bed, Rows{d}, RowsArgs{From: all, Index: index, To: few, Count: tokens}))
		})
		b.Run(fmt.Sprintf("copy/d=%d", d), func(b *testing.B) { // as many rows, one after the other
			rate(b, bed, tokens*2*row, func() error { return bed.Stream.Copy(few, all, tokens*int64(row)) })
		})
		b.Run(fmt.Sprintf("sum/d=%d", d), func(b *testing.B) {
			args := kernel.AggregateArgs{Y: all, O: few, Inverse: kt.Upload(bed, places), Scores: kt.Upload(bed, scores), Tokens: tokens}
			rate(b, bed, tokens*(topK*(row+8)+row), launches(b, bed, kernel.Aggregate{Hidden: d, TopK: topK, Element: tile.BF16}, args))
		})
	}
}

// launches returns a function that launches a kernel.
func launches[A any](b *testing.B, bed *kt.Bed, from interface {
	Build() (*jit.Kernel[A], error)
}, args A) func() error {
	k, err := from.Build()
	require.NoError(b, err)
	fn, err := jit.Of(bed.Device).Load(context.Background(), nil, k.Source(b.Name()), gpu.CompileOptions{})
	require.NoError(b, err)
	l := k.Launcher(fn)
	return func() error { return l.Launch(bed.Stream, args) }
}

// rate measures an operation on a rested device, and on a device that has repeated the operation for a
// while. It reports the median of several samples, and the least and the greatest rate.
func rate(b *testing.B, bed *kt.Bed, bytes float64, queue func() error) {
	for _, load := range []time.Duration{0, 200 * time.Millisecond} {
		b.Run(fmt.Sprintf("load=%v", load), func(b *testing.B) {
			time.Sleep(25 * time.Millisecond)
			for start := time.Now(); time.Since(start) < load; {
				times(b, bed, queue)
			}
			took := times(b, bed, queue)
			slices.Sort(took)
			rate := func(seconds float64) float64 { return bytes / seconds / 1e12 }
			b.ReportMetric(took[len(took)/2]*1e6, "µs")
			b.ReportMetric(rate(took[len(took)/2]), "TB/s")
			b.ReportMetric(rate(took[len(took)-1]), "least-TB/s")
			b.ReportMetric(rate(took[0]), "most-TB/s")
		})
	}
}

// times queues an operation many times. It returns samples of the operation's time in seconds.
func times(b *testing.B, bed *kt.Bed, queue func() error) []float64 {
	const times, samples = 50, 9
	marks := make([]driver.Event, samples+1)
	var err error
	for i := range marks {
		marks[i], err = bed.Device.NewEvent()
		require.NoError(b, err)
		defer marks[i].Close()
	}
	for i := range (samples + 1) * times { // the first ones warm up
		if i%times == 0 && i > 0 {
			require.NoError(b, marks[i/times-1].Record(bed.Stream))
		}
		require.NoError(b, queue())
	}
	require.NoError(b, marks[samples].Record(bed.Stream))
	require.NoError(b, bed.Stream.Synchronize(context.Background()))
	took := make([]float64, samples)
	for i := range took {
		t, err := marks[i+1].Since(marks[i])
		require.NoError(b, err)
		took[i] = t.Seconds() / times
	}
	return took
}
