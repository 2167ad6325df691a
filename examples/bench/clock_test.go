package main

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver/emulated"
	"sonicmoe/examples/bench/report"
	"sonicmoe/examples/internal/rung/rungtest"
	"sonicmoe/internal/num"
	"sonicmoe/jit"
)

// TestProbe checks that every CTA writes its SM, cycles and time to its own part of the
// readings.
func TestProbe(t *testing.T) {
	dev, err := emulated.New(emulated.Options{})
	require.NoError(t, err)
	defer dev.Close()
	defer jit.Forget(dev)
	s, err := dev.NewStream()
	require.NoError(t, err)
	p, err := newClockProbe(context.Background(), dev, 2)
	require.NoError(t, err)
	require.NoError(t, p.read(s, 0))
	require.NoError(t, p.read(s, 1))
	require.ErrorContains(t, p.read(s, 2), "clock reading 2, there are 2")
	words := make([]uint32, 2*p.placeBytes()/4)
	require.NoError(t, s.CopyToHost(num.Bytes(words), p.readings))
	var last uint64
	for i := 0; i < len(words); i += 6 {
		require.Less(t, words[i], uint32(dev.Target().SMs))
		require.NotZero(t, words[i+2], "a clock")
		ns := uint64(words[i+4]) | uint64(words[i+5])<<32
		if place := len(words) / 2; i == place {
			require.Greater(t, ns, last, "the second reading is later")
		}
		last = ns
	}
	_, err = p.gigahertz(s, 0, 1)
	require.NoError(t, err)
	require.NoError(t, p.close())
}

func TestProbeAssembles(t *testing.T) {
	k, err := probeKernel()
	require.NoError(t, err)
	rungtest.ModuleAssembles(t, k.Module)
}

// TestMeanClock checks that the mean clock is the median over the SMs. It must leave out SMs
// that were read only once, and SMs whose counter went backwards, as it does after a change of
// the context.
func TestMeanClock(t *testing.T) {
	from := map[uint64][2]uint64{0: {1000, 100}, 1: {5000, 100}, 2: {9000, 100}, 3: {7000, 100}}
	to := map[uint64][2]uint64{0: {2700, 1100}, 1: {6800, 1100}, 2: {100, 1100}, 3: {8900, 1100}, 4: {1, 2}}
	require.InDelta(t, 1.8, meanClock(from, to), 1e-9)
	require.Zero(t, meanClock(from, nil))
}

func sampled(median, fastest, slowest float64, clocks ...float64) *report.Sample {
	s := &report.Sample{MedianMS: median, FastestMS: fastest, SlowestMS: slowest}
	for _, c := range clocks {
		s.Rounds = append(s.Rounds, report.Round{MedianMS: median, GHz: c})
	}
	return s
}

func TestDisturbances(t *testing.T) {
	calm := sampled(1, 0.99, 1.02, 1.7, 1.72, 1.71, 1.7)
	require.Empty(t, disturbances(report.Row{Eager: calm, Graph: calm}))
	require.InDelta(t, 1.7075, calm.GHz(), 1e-9)
	for want, s := range map[string]*report.Sample{
		"graph: repeats differ by 20 %":      sampled(1, 0.95, 1.15, 1.7, 1.7),
		"graph: the SM clock went from 1.50": sampled(1, 1, 1, 1.7, 1.5),
		"graph: the SM clock was 0.90 GHz":   sampled(1, 1, 1, 0.9, 0.9),
	} {
		warnings := disturbances(report.Row{Eager: calm, Graph: s})
		require.Len(t, warnings, 1)
		require.Contains(t, warnings[0], want)
	}
	require.Empty(t, driverCache("1"))
	require.Contains(t, driverCache("")[0], "CUDA_CACHE_DISABLE=1")
	require.Empty(t, otherProcess(139<<30, 141<<30))
	require.Contains(t, otherProcess(100<<30, 141<<30)[0], "41.0 GiB of the device's memory are in use")
}
