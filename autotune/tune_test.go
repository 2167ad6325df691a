package autotune_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/autotune"
	"sonicmoe/cache"
	"sonicmoe/driver"
	"sonicmoe/driver/open"
	"sonicmoe/internal/drivertest"
	"sonicmoe/internal/faulty"
	"sonicmoe/jit"
)

func newDevice(t testing.TB) *faulty.Device {
	t.Helper()
	dev, err := open.Device(context.Background(), drivertest.Name())
	require.NoError(t, err)
	counted := faulty.Wrap(dev)
	t.Cleanup(func() {
		jit.Forget(counted)
		assert.NoError(t, counted.Close())
	})
	return counted
}

const us = time.Microsecond

// flat holds times without noise for points, by number of threads. 64 threads are the fastest.
var flat = map[int][]time.Duration{32: {120 * us}, 64: {80 * us}, 96: {90 * us}, 128: {100 * us}}

var base = point{Threads: 128}

func candidates(points ...point) []autotune.Candidate[point] {
	var list []autotune.Candidate[point]
	for _, p := range points {
		list = append(list, autotune.Candidate[point]{Point: p, Estimate: time.Duration(p.Threads) * us})
	}
	return list
}

func problem(space []autotune.Candidate[point]) autotune.Problem[point] {
	return autotune.Problem[point]{Name: "copy", Key: autotune.Key{Subject: "copy", GPU: "test", SMs: 4, Bucket: 1},
		Default: base, Space: space, Sources: func(p point) ([]jit.Source, error) {
			s, err := copierSource(p)
			return []jit.Source{s}, err
		}}
}

// quick holds the options of most tests. The copySpec of a test supplies the times, so no
// warm-up is needed.
var quick = autotune.Options{Warm: time.Nanosecond, Rounds: 5}

func tune(t testing.TB, ctx context.Context, dev driver.Device, spec copySpec, o autotune.Options, points ...point) (*autotune.Report[point], error) {
	t.Helper()
	spec.Device = drivertest.Name()
	s, err := autotune.NewSession(dev, copiers, spec, o)
	require.NoError(t, err)
	defer func() { assert.NoError(t, s.Close()) }()
	return s.Tune(ctx, problem(candidates(points...)))
}

// usable fails the test unless the caller's device still works.
func usable(t testing.TB, dev driver.Device) {
	t.Helper()
	require.NoError(t, dev.Err())
	b, err := newCopyBench(t.Context(), autotune.Setting{Spec: []byte("{}"), Device: dev})
	require.NoError(t, err)
	assert.NoError(t, b.Verify(t.Context(), "copy", base))
	assert.NoError(t, b.Close())
}

func TestFastestWins(t *testing.T) {
	dev := newDevice(t)
	var stages []string
	o := quick
	o.Progress = func(p autotune.Progress) { stages = append(stages, p.Stage) }
	r, err := tune(t, t.Context(), dev, copySpec{Times: flat}, o, base, point{Threads: 32}, point{Threads: 64}, point{Threads: 96})
	require.NoError(t, err)
	t.Log("\n" + r.String())
	assert.Equal(t, point{Threads: 64}, r.Chosen)
	assert.InDelta(t, 0.2, r.Row(r.Chosen).Gain, 1e-9)
	assert.Zero(t, r.Row(r.Chosen).Noise)
	assert.Equal(t, 80*us, r.Row(r.Chosen).Median)
	assert.Equal(t, 4, r.Count(autotune.Measured))
	assert.Equal(t, "a worker process", r.Where)
	assert.Equal(t, 4, r.Compiled)
	assert.Zero(t, dev.Count(faulty.Launch), "the caller's device runs no candidate")
	for _, stage := range []string{"compile", "verify", "measure"} {
		assert.Contains(t, stages, stage)
	}
	assert.Equal(t, "measure", stages[len(stages)-1])
}

// TestPlantedMistakes checks that each planted mistake gets its status, and that the caller's
// device still works. Run it with SONICMOE_DEVICE=cuda, too.
func TestPlantedMistakes(t *testing.T) {
	dev := newDevice(t)
	o := quick
	o.Trial = time.Second
	good := point{Threads: 64}
	r, err := tune(t, t.Context(), dev, copySpec{Times: flat}, o, base,
		point{32, swapped}, point{32, hangs}, point{32, illegal}, point{32, spoils}, point{160, exits}, point{32, refused}, good, point{64, alias}, point{96, unstable})
	require.NoError(t, err)
	t.Log("\n" + r.String())
	for _, c := range []struct {
		point  point
		status autotune.Status
		says   string
	}{
		{point{32, swapped}, autotune.Wrong, "output's row 0"},
		{point{32, hangs}, autotune.Hung, "killed"},
		{point{32, illegal}, autotune.Faulted, ""},
		{point{32, spoils}, autotune.Wrong, "input"},
		{point{160, exits}, autotune.Died, "last words"},
		{point{32, refused}, autotune.Unbuilt, "no such kernel"},
		{point{64, alias}, autotune.Duplicate, good.String()},
		{point{96, unstable}, autotune.Wrong, "right before"},
		{good, autotune.Measured, ""},
		{base, autotune.Measured, ""},
	} {
		row := r.Row(c.point)
		require.NotNil(t, row, c.point)
		assert.Equal(t, c.status, row.Status, "%v: %s", c.point, row.Reason)
		assert.Contains(t, row.Reason, c.says)
		if c.status != autotune.Measured {
			assert.Contains(t, r.String(), c.point.String()+" ", "the report names it")
		}
	}
	assert.Equal(t, good, r.Chosen)
	usable(t, dev)
}

// TestWithoutWorker checks that without WorkerMain only points are tried that were found right
// before.
func TestWithoutWorker(t *testing.T) {
	dev, c := newDevice(t), cache.Open(cache.Options{Dir: t.TempDir()})
	good, other := point{Threads: 64}, point{Threads: 96}
	o := quick
	o.Cache = c
	defer autotune.ForgetWorkers()()
	r, err := tune(t, t.Context(), dev, copySpec{Times: flat}, o, base, good)
	require.NoError(t, err)
	assert.Equal(t, base, r.Chosen)
	assert.Equal(t, autotune.Unproven, r.Row(good).Status)
	assert.Contains(t, r.String(), "WorkerMain")

	restore := autotune.ForgetWorkers()
	restore()
	_, err = tune(t, t.Context(), dev, copySpec{Times: flat}, o, base, good)
	require.NoError(t, err)

	autotune.ForgetWorkers()
	r, err = tune(t, t.Context(), dev, copySpec{Times: flat}, o, base, good, other)
	require.NoError(t, err)
	assert.Equal(t, good, r.Chosen, "verified by the worker, measured in this process")
	assert.Equal(t, autotune.Unproven, r.Row(other).Status)
	assert.NotZero(t, dev.Count(faulty.Launch))
}

// TestWorkerThatDoesNotStart checks that candidates that are not yet proven stay untried if no
// worker can start, and that all others are tried.
func TestWorkerThatDoesNotStart(t *testing.T) {
	dev := newDevice(t)
	o := quick
	o.Setup = 200 * time.Millisecond
	s, err := autotune.NewSession(dev, copiers, copySpec{Device: "no such device", Times: flat}, o)
	require.NoError(t, err)
	defer s.Close()
	r, err := s.Tune(t.Context(), problem(candidates(base, point{Threads: 64})))
	require.NoError(t, err)
	assert.Contains(t, r.Where, "no such device")
	assert.Equal(t, base, r.Chosen)
	assert.Equal(t, autotune.Unproven, r.Row(point{Threads: 64}).Status)

	_, err = tune(t, t.Context(), dev, copySpec{Refuse: "out of device memory"}, o, base)
	assert.ErrorContains(t, err, "out of device memory")
	_, err = tune(t, t.Context(), dev, copySpec{SleepSetup: time.Second, Times: flat}, o, base)
	require.NoError(t, err)
}

// TestWrongDefault checks that a wrong default is an error.
func TestWrongDefault(t *testing.T) {
	p := problem(candidates(point{Threads: 64}))
	p.Default = point{32, swapped}
	s, err := autotune.NewSession(newDevice(t), copiers, copySpec{Device: drivertest.Name(), Times: flat}, quick)
	require.NoError(t, err)
	defer s.Close()
	_, err = s.Tune(t.Context(), p)
	assert.ErrorContains(t, err, "default copy 32 threads swapped swizzle is not right")
	p.Default.Mistake = refused
	_, err = s.Tune(t.Context(), p)
	assert.ErrorContains(t, err, "can't be built: no such kernel")
	p.Default.Mistake = hangs
}

func TestCandidatesCompileInParallel(t *testing.T) {
	dev := newDevice(t)
	var running, most atomic.Int64
	dev.Before(func(op faulty.Op) error {
		if op == faulty.Compile {
			n := running.Add(1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			time.Sleep(20 * time.Millisecond)
			running.Add(-1)
		}
		return nil
	})
	o := quick
	o.Parallel = 4
	_, err := tune(t, t.Context(), dev, copySpec{Times: flat}, o, base, point{Threads: 32}, point{Threads: 64}, point{Threads: 96})
	require.NoError(t, err)
	assert.EqualValues(t, 4, most.Load())
}

func TestCompileErrorsAreNamed(t *testing.T) {
	dev := newDevice(t)
	dev.Arm(faulty.Fault{Op: faulty.Compile, N: 2})
	o := quick
	o.Parallel = 1
	r, err := tune(t, t.Context(), dev, copySpec{Times: flat}, o, base, point{Threads: 64})
	require.NoError(t, err)
	assert.Equal(t, autotune.Unbuilt, r.Row(point{Threads: 64}).Status)
	assert.Contains(t, r.Row(point{Threads: 64}).Reason, "injected fault")
}

func TestCancellation(t *testing.T) {
	for _, stage := range []string{"compile", "verify", "measure"} {
		t.Run(stage, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			o := quick
			o.Progress = func(p autotune.Progress) {
				if p.Stage == stage {
					cancel()
				}
			}
			dev := newDevice(t)
			start := time.Now()
			_, err := tune(t, ctx, dev, copySpec{Times: flat}, o, base, point{Threads: 64})
			require.ErrorIs(t, err, context.Canceled)
			assert.Less(t, time.Since(start), 5*time.Second)
			usable(t, dev)
		})
	}
	// The context ends while a candidate hangs.
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	_, err := tune(t, ctx, newDevice(t), copySpec{Times: flat}, quick, base, point{32, hangs})
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

// ticking returns a clock that advances by step at each call.
func ticking(step time.Duration) func() time.Time {
	var n atomic.Int64
	return func() time.Time { return time.Unix(0, 0).Add(time.Duration(n.Add(1)) * step) }
}

// TestLeastRounds checks the least number of rounds with which another point can replace the
// default.
func TestLeastRounds(t *testing.T) {
	for rounds, want := range map[int]point{4: base, 5: {Threads: 64}} {
		o := quick
		o.Rounds = rounds
		r, err := tune(t, t.Context(), newDevice(t), copySpec{Times: flat}, o, base, point{Threads: 64})
		require.NoError(t, err)
		assert.Equal(t, want, r.Chosen, "%d rounds: %s", rounds, r.Why)
	}
}

func TestBudget(t *testing.T) {
	o := quick
	o.Budget, o.Parallel = 10*time.Second, 1
	points := []point{base}
	for n := 1; n <= 20; n++ {
		points = append(points, point{Threads: 32 * n})
	}
	r, err := tune(t, t.Context(), newDevice(t), copySpec{Times: flat}, o.WithClock(ticking(time.Second)), points...)
	require.NoError(t, err)
	assert.NotZero(t, r.Count(autotune.Skipped))
	assert.Less(t, r.Compiled, len(r.Rows), "late candidates are not compiled")
	assert.Equal(t, autotune.Measured, r.Row(base).Status, "the default is always there")
	assert.Contains(t, r.String(), "the time budget was used up")
	assert.Equal(t, base, r.Chosen, "too few rounds to leave the default")

	o.Most = 3
	r, err = tune(t, t.Context(), newDevice(t), copySpec{Times: flat}, o, base, point{Threads: 96}, point{Threads: 32}, point{Threads: 64})
	require.NoError(t, err)
	assert.Equal(t, autotune.Skipped, r.Row(point{Threads: 96}).Status, "the best estimates are tried")
	assert.Equal(t, 3, r.Tried())
	assert.Contains(t, r.String(), "3 candidates tried")
	assert.Contains(t, r.String(), fmt.Sprintf("%d more skipped: not among the 3 candidates with the best estimates", r.Count(autotune.Skipped)))
	assert.Equal(t, autotune.Measured, r.Row(point{Threads: 64}).Status)
}

// TestNoiseKeepsTheDefault checks that the default stays if a gain is too small or within the
// noise.
func TestNoiseKeepsTheDefault(t *testing.T) {
	other := point{Threads: 64}
	for name, c := range map[string]struct {
		base, other []time.Duration
		want        point
	}{
		"gain above the noise":    {[]time.Duration{100 * us, 101 * us, 99 * us}, []time.Duration{90 * us, 91 * us, 89 * us}, other},
		"faster within the noise": {[]time.Duration{100 * us, 140 * us, 60 * us, 120 * us, 80 * us}, []time.Duration{97 * us}, base},
		"hardly faster":           {[]time.Duration{1000 * us}, []time.Duration{993 * us}, base},
		"slower":                  {[]time.Duration{100 * us}, []time.Duration{104 * us}, base},
		"one lucky time":          {[]time.Duration{100 * us}, []time.Duration{101 * us, 20 * us, 101 * us, 101 * us, 101 * us}, base},
	} {
		t.Run(name, func(t *testing.T) {
			o := quick
			o.Rounds = 15
			r, err := tune(t, t.Context(), newDevice(t), copySpec{Times: map[int][]time.Duration{128: c.base, 64: c.other}}, o, base, other)
			require.NoError(t, err)
			assert.Equal(t, c.want, r.Chosen, r)
			if c.want == base {
				assert.Contains(t, r.Why, "the default stays")
			}
		})
	}
}

func TestSpaceAndRejections(t *testing.T) {
	p := problem([]autotune.Candidate[point]{
		{Point: point{Threads: 96}, Estimate: 2}, {Point: point{Threads: 64}, Estimate: 1},
		{Point: point{Threads: 4096}, Rejected: "a CTA has 1024 threads at most"},
		{Point: point{Threads: 8192}, Rejected: "a CTA has 1024 threads at most"},
	})
	s, err := autotune.NewSession(newDevice(t), copiers, copySpec{Device: drivertest.Name(), Times: flat}, quick)
	require.NoError(t, err)
	defer s.Close()
	first, err := s.Tune(t.Context(), p)
	require.NoError(t, err)
	var order []int
	for _, row := range first.Rows {
		order = append(order, row.Point.Threads)
	}
	assert.Equal(t, []int{128, 64, 96, 4096, 8192}, order, "default, then by rising estimate, then rejected")
	assert.Contains(t, first.String(), "2 more rejected: a CTA has 1024 threads at most")
	assert.Equal(t, 2, first.Count(autotune.Rejected))

	// The same times give the same choice and the same record.
	again, err := s.Tune(t.Context(), p)
	require.NoError(t, err)
	assert.Equal(t, first.Chosen, again.Chosen)
	a, err := first.Record()
	require.NoError(t, err)
	b, err := again.Record()
	require.NoError(t, err)
	assert.Equal(t, string(a), string(b))
	assert.True(t, strings.Contains(string(a), `"Threads":64`), string(a))
}
