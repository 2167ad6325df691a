package main

import (
	"bytes"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/emulated"
	"sonicmoe/examples/internal/rung/rungtest"
	"sonicmoe/internal/num"
	"sonicmoe/internal/reference"
	"sonicmoe/jit/gemm"
	"sonicmoe/jit/tile"
)

// TestCauses runs each probe and checks the printed line of each.
func TestCauses(t *testing.T) {
	if testing.Short() {
		t.Skip("too long for -short")
	}
	b, _ := onDevice(t, io.Discard)
	target := driver.H200()
	target.SMs = 1
	dev, err := emulated.New(emulated.Options{Target: target})
	require.NoError(t, err)
	var out bytes.Buffer
	b.dev, b.gpu, b.out, b.meter = dev, false, &out, &counter{step: time.Nanosecond}
	require.NoError(t, b.causes())
	for _, p := range probes {
		require.Contains(t, out.String(), "\n"+p.name+"  ")
	}
}

// TestProbeMultiplies checks the sums of the probe that loads and multiplies.
func TestProbeMultiplies(t *testing.T) {
	target := driver.H200()
	target.SMs = 1
	dev, err := emulated.New(emulated.Options{Target: target})
	require.NoError(t, err)
	defer dev.Close()
	s, err := dev.NewStream()
	require.NoError(t, err)
	bed, err := newProbeBed(dev, s, false)
	require.NoError(t, err)
	defer bed.close()
	launch, err := bed.load(t.Context(), probes[len(probes)-1])
	require.NoError(t, err)
	require.NoError(t, launch())
	require.NoError(t, s.Synchronize(t.Context()))
	out := make([]float32, gemm.MathThreads)
	require.NoError(t, s.CopyToHost(num.Bytes(out), bed.run.Out))
	depth := bed.kTiles * tile.K
	a := reference.NewNormal(3, 1).Values(int64(gemm.TileM * depth))
	for thread, got := range out { // the first sum of a thread is of row 16·warp + lane/4 and column 2·(lane%4)
		row, column := thread/32*16+thread%32/4, thread%4*2
		want, size := 0.0, 0.0
		for i := range depth {
			p := num.BF16ToFloat64(a[row*depth+i]) * num.BF16ToFloat64(a[column*depth+i])
			want, size = want+p, size+max(p, -p)
		}
		require.InDelta(t, want, got, 1e-4*size, "thread %d", thread)
	}
}

// TestProbesAssemble lets ptxas assemble each probe.
func TestProbesAssemble(t *testing.T) {
	for _, p := range probes {
		k, err := p.build()
		require.NoError(t, err, p.name)
		rungtest.ModuleAssembles(t, k.Module)
	}
}
