package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sonicmoe/cache"
	"sonicmoe/driver/emulated"
	"sonicmoe/examples/internal/command"
	"sonicmoe/internal/faulty"
	"sonicmoe/moe"
)

// TestDecode checks that a short run of -decode on the emulated device decodes every token.
func TestDecode(t *testing.T) {
	var out, errs bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"-device", "emulated", "-cache", "off", "-decode", "200ms", "-tokens", "3"}, &out, &errs), errs.String())
	require.Contains(t, out.String(), "2 layers of small")
	require.Contains(t, out.String(), "steps of up to 3 tokens")
	require.Regexp(t, `[1-9]\d* tokens in .* p50 [1-9].*, p99 [1-9]`, strings.ReplaceAll(out.String(), "\n", " "))
}

// TestDecodeModel checks that -decode runs all layers of a model with packed weights, and that
// moe.Estimate computes the bytes of the weights.
func TestDecodeModel(t *testing.T) {
	dir := packedFolder(t)
	args := []string{"-device", "emulated", "-cache", "off", "-decode", "1ms", "-tokens", "2", "-model", dir, "-layer", "all"}
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), args, &out, &out), out.String())
	c := published
	c.Weights = "mxfp4"
	cost, err := moe.Estimate(c, moe.Workload{Tokens: 2})
	require.NoError(t, err)
	require.Contains(t, out.String(), "3 layers of qwen3_moe (d=64 n=32 E=8 K=2 w1=concatenated logits=bf16 weights=mxfp4")
	require.Contains(t, out.String(), fmt.Sprintf("weights %d bytes, arranged again for small batches ", 3*cost.Weights))
	require.NotContains(t, out.String(), "small batches 0;")
	require.Regexp(t, `first token after [1-9]`, out.String())
}

// TestHistogram checks that percentiles are right to the width of a bin.
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

// TestArrivals checks that tokens arrive at the wanted rate, and that they are decoded in the
// order of arrival, at most one full step at a time.
func TestArrivals(t *testing.T) {
	a := newTraffic(1000)
	var sum time.Duration
	for range 10000 {
		sum += a.gap()
	}
	require.InEpsilon(t, 10*time.Second, sum, 0.05)
	b, decoded := newTraffic(1e5), 0
	require.NoError(t, b.run(t.Context(), 3, func(_ context.Context, n int) error {
		require.LessOrEqual(t, n, 3)
		require.IsIncreasing(t, append([]time.Duration{0}, b.arrived...))
		decoded += n
		return nil
	}, 5*time.Millisecond))
	require.Positive(t, decoded)
	require.Equal(t, decoded, b.latency.count)
	require.Empty(t, b.arrived)
}

// TestHardlyAnyTraffic checks that at a very low rate, run waits for the next token, and that
// the end of its context ends the wait.
func TestHardlyAnyTraffic(t *testing.T) {
	require.Greater(t, newTraffic(1e-300).gap(), 24*365*time.Hour)
	require.Positive(t, time.Hour+newTraffic(1e-300).gap())
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- newTraffic(1e-6).run(ctx, 1, nil, 1000*time.Hour) }()
	select {
	case err := <-done:
		require.ErrorIs(t, err, context.DeadlineExceeded)
	case <-time.After(10 * time.Second):
		t.Fatal("run still waits")
	}
	// No token arrives during this time.
	require.NoError(t, newTraffic(1e-300).run(t.Context(), 1, nil, time.Millisecond))
}

func TestMisuse(t *testing.T) {
	for _, args := range [][]string{{"-load", "0"}, {"-load", "inf"}, {"-load", "1e300"}, {"-load", "nan"}, {"-layers", "-1"}, {"-decode", "-1s"}} {
		require.Equal(t, command.Misuse, command.Code(run(t.Context(), args, new(bytes.Buffer), new(bytes.Buffer))), "%v", args)
	}
}

// TestDecodeFaults checks that -decode returns the error of each kind of call, and leaves nothing on
// the device.
func TestDecodeFaults(t *testing.T) {
	for _, op := range []faulty.Op{faulty.NewStream, faulty.NewEvent, faulty.Alloc, faulty.Launch, faulty.EndCapture, faulty.GraphLaunch} {
		inner, err := emulated.New(emulated.Options{})
		require.NoError(t, err)
		dev := faulty.Wrap(inner)
		dev.Arm(faulty.Fault{Op: op, N: 1})
		row := emulatedRow
		row.Tokens = 1
		err = decode(t.Context(), dev, row, cache.Open(cache.Options{Dir: "off"}), decoding{layers: 1, load: 0.5, length: time.Millisecond}, io.Discard)
		require.ErrorContains(t, err, "made to fail", op)
		live := dev.Live()
		live.Modules = 0 // modules stay loaded for later layers
		require.Equal(t, faulty.Live{}, live, op)
		require.NoError(t, dev.Close())
	}
}
