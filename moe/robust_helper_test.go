package moe_test

import (
	"context"
	"crypto/sha256"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/internal/drivertest"
	"sonicmoe/internal/faulty"
	"sonicmoe/internal/num"
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
	kt "sonicmoe/moe/internal/kernel/kerneltest"
)

// onGPU reports whether the tests run on a GPU.
func onGPU() bool { return drivertest.Name() == "cuda" }

// rounds returns the number of repetitions of a concurrent pass: one under the race
// detector, which slows the emulator down tenfold.
func rounds(short int) int {
	switch {
	case onGPU() || kt.Long():
		return 1000
	case raceDetector:
		return 1
	}
	return short
}

// faultyTrial creates a layer and its tensors on a wrapper of the test's device,
// and resets the counts of calls.
func faultyTrial(t testing.TB, inner driver.Device, c moe.Config, tokens int, opts ...moe.Option) (*faulty.Device, *trial.Trial) {
	t.Helper()
	dev := faulty.Wrap(inner)
	tr, err := trial.New(dev, newLayer(t, dev, c, opts...), tokens, 1, 6)
	require.NoError(t, err)
	dev.ResetCounts()
	return dev, tr
}

// digest runs a pass on a stream and hashes its outputs, with H if f has it.
func digest(ctx context.Context, tr *trial.Trial, s driver.Stream, f moe.ForwardArgs) (sum [32]byte, err error) {
	if err := tr.Poison(); err != nil {
		return sum, err
	}
	if err := tr.Stream().Synchronize(ctx); err != nil {
		return sum, err
	}
	if err := tr.Call().Forward(s, f); err != nil {
		return sum, err
	}
	if err := s.Synchronize(ctx); err != nil {
		return sum, err
	}
	return hashed(tr, !f.H.IsZero())
}

// hashed returns the hash of a trial's present outputs.
func hashed(tr *trial.Trial, withH bool) (sum [32]byte, err error) {
	r, err := tr.Results(withH)
	if err != nil {
		return sum, err
	}
	h := sha256.New()
	h.Write(num.Bytes(r.O))
	h.Write(num.Bytes(r.H))
	h.Write(num.Bytes(r.Scores))
	h.Write(num.Bytes(r.ExpertIDs))
	return [32]byte(h.Sum(nil)), nil
}

// limited returns a context with a deadline.
func limited(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}
