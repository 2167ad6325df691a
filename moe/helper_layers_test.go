package moe_test

import (
	"context"
	"crypto/sha256"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/emulated"
	"sonicmoe/driver/open"
	"sonicmoe/internal/drivertest"
	"sonicmoe/internal/faulty"
	"sonicmoe/internal/num"
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
	kt "sonicmoe/moe/internal/kernel/kerneltest"
	"sonicmoe/ptx/emu"
)

// device is the device of the tests, see drivertest.Name.
var device = sync.OnceValues(func() (driver.Device, error) {
	return open.Device(context.Background(), drivertest.Name())
})

func TestMain(m *testing.M) { os.Exit(drivertest.Main(m, open.Device)) }

func testDevice(t testing.TB) driver.Device {
	dev, err := device()
	require.NoError(t, err)
	return dev
}

func newTrial(t testing.TB, c moe.Config, tokens int, boost float64, opts ...moe.Option) *trial.Trial {
	dev := testDevice(t)
	tr, err := trial.New(dev, newLayer(t, dev, c, opts...), tokens, 1, boost)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tr.Close()) })
	return tr
}

// newLayer creates a layer without a cache. Its backward passes overwrite the gradients of the
// experts' weights; they add only if opts contain accumulating. With -short it has kernels for
// small batches only if opts ask for them. Kernels for small batches and for gradients are most of a
// layer's kernels, and few tests use all of them.
func newLayer(t testing.TB, dev driver.Device, c moe.Config, opts ...moe.Option) *moe.Layer {
	t.Helper()
	modes := []moe.Option{moe.WithGradients(c.Normal().Type, false), moe.WithGradients(moe.F32, false)}
	return newLayerInModes(t, dev, c, append(modes, opts...)...)
}

// accumulating lets backward passes of a layer also add to the gradients of the experts' weights.
func accumulating(c moe.Config) []moe.Option {
	return []moe.Option{moe.WithGradients(c.Normal().Type, true), moe.WithGradients(moe.F32, true)}
}

// newLayerInModes is newLayer for opts that name all modes of gradients. Without such options the
// layer has all modes.
func newLayerInModes(t testing.TB, dev driver.Device, c moe.Config, opts ...moe.Option) *moe.Layer {
	t.Helper()
	all := []moe.Option{moe.WithoutCache()}
	if testing.Short() {
		all = append(all, moe.WithoutDecode())
	}
	l, err := moe.New(context.Background(), dev, c, append(all, opts...)...)
	require.NoError(t, err)
	return l
}

// tiny is a layer whose experts have partial tiles and blocks.
var tiny = moe.Config{Hidden: 192, Intermediate: 64, NumExperts: 6, TopK: 2}

// timedDevice is a device that completes asynchronous work with a given timing.
type timedDevice struct {
	name string
	dev  driver.Device
}

// timedDevices returns emulated devices with every timing. The late one also detects races. On a
// GPU it returns the GPU.
func timedDevices(t testing.TB) []timedDevice {
	if name := drivertest.Name(); name != "emulated" {
		return []timedDevice{{name, testDevice(t)}}
	}
	var list []timedDevice
	for _, o := range []struct {
		name   string
		timing emu.Timing
		seed   uint64
	}{{"early", emu.Early, 0}, {"late", emu.Late, 0}, {"random 1", emu.Random, 1}, {"random 2", emu.Random, 2}, {"random 3", emu.Random, 3}} {
		if testing.Short() && o.seed > 1 {
			break
		}
		dev, err := emulated.New(emulated.Options{Timing: o.timing, Seed: o.seed, Races: o.timing == emu.Late})
		require.NoError(t, err)
		list = append(list, timedDevice{o.name, dev})
	}
	return list
}

func trialOn(t testing.TB, dev driver.Device, c moe.Config, tokens int, opts ...moe.Option) *trial.Trial {
	tr, err := trial.New(dev, newLayer(t, dev, c, opts...), tokens, 1, 6)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tr.Close()) })
	return tr
}

func testContext(t testing.TB) context.Context { return limited(t, time.Minute) }

// forward runs a forward pass on poisoned outputs.
func forward(t testing.TB, tr *trial.Trial, f moe.ForwardArgs) trial.Results {
	require.NoError(t, tr.Run(testContext(t), f))
	r, err := tr.Results(true)
	require.NoError(t, err)
	return r
}

// sizesOf returns the sizes of a layer's buffers.
func sizesOf(t testing.TB, l *moe.Layer, tokens int) moe.Sizes {
	s, err := l.Sizes(tokens)
	require.NoError(t, err)
	return s
}

// capture captures the work that the functions queue on a stream. The caller closes the graph.
func capture(t testing.TB, s driver.Stream, queue ...func() error) driver.Graph {
	t.Helper()
	require.NoError(t, s.BeginCapture())
	for _, q := range queue {
		require.NoError(t, q())
	}
	g, err := s.EndCapture()
	require.NoError(t, err)
	return g
}

// launches captures queue and returns the number of nodes of the graph.
func launches(t testing.TB, s driver.Stream, queue func() error) (int, error) {
	require.NoError(t, s.BeginCapture())
	err := queue()
	g, captured := s.EndCapture()
	require.NoError(t, captured)
	defer g.Close()
	return g.Nodes(), err
}

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

// hashed returns the hash of the outputs that are now in a trial's memory. If withH is set, H is one
// of them.
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
