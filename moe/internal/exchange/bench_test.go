package exchange

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

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
// have come home. It reports the rate of the bytes that they read and write.
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
			rate(b, bed, Rows{d}, RowsArgs{From: all, Index: index, To: few, Count: tokens}, tokens*(2*row+4))
		})
		b.Run(fmt.Sprintf("sum/d=%d", d), func(b *testing.B) {
			args := kernel.AggregateArgs{Y: all, O: few, Inverse: kt.Upload(bed, places), Scores: kt.Upload(bed, scores), Tokens: tokens}
			rate(b, bed, kernel.Aggregate{Hidden: d, TopK: topK, Element: tile.BF16}, args, tokens*(topK*(row+8)+row))
		})
	}
}

// rate launches a kernel many times, and reports its time and the rate of its bytes.
func rate[A any](b *testing.B, bed *kt.Bed, from interface {
	Build() (*jit.Kernel[A], error)
}, args A, bytes float64) {
	k, err := from.Build()
	require.NoError(b, err)
	fn, err := jit.Of(bed.Device).Load(context.Background(), nil, k.Source(b.Name()), gpu.CompileOptions{})
	require.NoError(b, err)
	l := k.Launcher(fn)
	var marks [2]driver.Event
	for i := range marks {
		marks[i], err = bed.Device.NewEvent()
		require.NoError(b, err)
		defer marks[i].Close()
	}
	const launches = 50
	for i := range 2 * launches { // the first half warms up
		if i == launches {
			require.NoError(b, marks[0].Record(bed.Stream))
		}
		require.NoError(b, l.Launch(bed.Stream, args))
	}
	require.NoError(b, marks[1].Record(bed.Stream))
	require.NoError(b, bed.Stream.Synchronize(context.Background()))
	took, err := marks[1].Since(marks[0])
	require.NoError(b, err)
	b.ReportMetric(float64(took.Microseconds())/launches, "µs")
	b.ReportMetric(bytes*launches/took.Seconds()/1e12, "TB/s")
}
