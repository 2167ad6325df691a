package main

import (
	"bytes"
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sonicmoe/examples/internal/command"
)

// A short service on the emulated device answers every token and draws.
func TestServe(t *testing.T) {
	picture := filepath.Join(t.TempDir(), "serve.png")
	var out, errs bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"-device", "emulated", "-cache", "off", "-time", "200ms", "-tokens", "3", "-plot", picture}, &out, &errs), errs.String())
	require.Contains(t, out.String(), "2 layers of small")
	require.Regexp(t, `[1-9]\d* tokens in .* p50 [1-9].*, p99 [1-9]`, joined(out.String()))
	require.FileExists(t, picture)
}

func joined(s string) string { return string(bytes.ReplaceAll([]byte(s), []byte("\n"), []byte(" "))) }

// Percentiles are those of what was counted, to the width of a bin.
func TestHistogram(t *testing.T) {
	var h histogram
	require.Zero(t, h.at(0.5))
	for i := range 1000 {
		h.add(time.Duration(i+1) * time.Millisecond)
	}
	for _, share := range []float64{0.01, 0.5, 0.9, 0.99} {
		require.InEpsilon(t, share*float64(time.Second), float64(h.at(share)), binWidth-1, "at %v", share)
	}
	require.Equal(t, time.Second, h.at(1))
	h.add(time.Hour)
	require.Equal(t, time.Hour, h.longest)
}

// Arrivals are exponential and the same for the same seed; what waits leaves in
// its order.
func TestArrivals(t *testing.T) {
	a, b := newTraffic(1000, 7), newTraffic(1000, 7)
	var sum time.Duration
	for range 10000 {
		gap := a.gap()
		require.Equal(t, gap, b.gap())
		sum += gap
	}
	require.InEpsilon(t, 10*time.Second, sum, 0.05)
	r := waiting{1, 2, 3, 4}
	r.take(3)
	require.Equal(t, waiting{4}, r)
}

// Where next to nothing arrives, the time is waited for, and a signal ends that.
func TestHardlyAnyTraffic(t *testing.T) {
	require.Greater(t, newTraffic(1e-300, 1).gap(), 24*365*time.Hour)
	require.Positive(t, time.Hour+newTraffic(1e-300, 1).gap())
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- newTraffic(1e-6, 1).run(ctx, nil, 1000*time.Hour) }()
	select {
	case err := <-done:
		require.ErrorIs(t, err, context.DeadlineExceeded)
	case <-time.After(10 * time.Second):
		t.Fatal("it sleeps on")
	}
	// Nothing arrives in the time at all.
	require.NoError(t, newTraffic(1e-300, 1).run(t.Context(), nil, time.Millisecond))
}

func TestMisuse(t *testing.T) {
	for _, args := range [][]string{{"-load", "0"}, {"-load", "inf"}, {"-load", "1e300"}, {"-load", "nan"}, {"-layers", "-1"}, {"-plot", "serve.txt"}} {
		require.Equal(t, command.Misuse, command.Code(run(t.Context(), args, new(bytes.Buffer), new(bytes.Buffer))), "%v", args)
	}
}
