//go:build cgo

package main

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/emulated"
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
)

// replayed is a call on an emulated device. queued is the number of passes that were queued, on a
// stream or into a capture, and not launched as a graph.
type replayed struct {
	*testing.T
	dev driver.Device
	of  *trial.Trial
	call
	queued int
}

func newReplayed(t *testing.T) *replayed {
	t.Helper()
	dev, err := emulated.New(emulated.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	l, err := moe.New(t.Context(), dev, moe.Config{Hidden: 64, Intermediate: 32, NumExperts: 4, TopK: 2}, moe.WithoutBackward(), moe.WithoutCache())
	require.NoError(t, err)
	of, err := trial.New(dev, l, 5, 1, 1)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, of.Close()) })
	return &replayed{T: t, dev: dev, of: of, call: call{Call: l.NewCall()}}
}

// pass runs a pass on a stream, on poisoned outputs, and returns O. Passes with the same kind and
// key count as equal.
func (r *replayed) pass(s driver.Stream, kind passKind, key string, f moe.ForwardArgs) []uint16 {
	r.Helper()
	require.NoError(r, r.of.Poison())
	require.NoError(r, r.launch(r.dev, s, kind, []byte(key), func(s driver.Stream) error {
		r.queued++
		return r.Forward(s, f)
	}))
	require.NoError(r, s.Synchronize(r.Context()))
	got, err := r.of.Results(false)
	require.NoError(r, err)
	return got.O
}

// TestReplay checks that a call captures a pass that has run three times, and that the graph gives
// the same bits. Passes with other arguments or of other kinds have separate graphs.
func TestReplay(t *testing.T) {
	r := newReplayed(t)
	f := r.of.Inference()
	want := r.pass(r.of.Stream(), forwardPass, "a", f)
	for i, queued := range []int{2, 3, 4, 4, 4} { // the fourth pass is queued into the capture
		require.Equal(t, want, r.pass(r.of.Stream(), forwardPass, "a", f), "pass %d", i+2)
		require.Equal(t, queued, r.queued, "pass %d", i+2)
	}
	other, err := f.Tokens(3)
	require.NoError(t, err)
	require.NotEqual(t, want, r.pass(r.of.Stream(), forwardPass, "b", other))
	require.Equal(t, want, r.pass(r.of.Stream(), expertsPass, "a", f))
	require.Equal(t, 6, r.queued)
	require.Equal(t, want, r.pass(r.of.Stream(), forwardPass, "a", f))
	require.Equal(t, 6, r.queued)
	second, err := r.dev.NewStream()
	require.NoError(t, err)
	defer second.Close()
	require.Equal(t, want, r.pass(second, forwardPass, "a", f))
	require.Equal(t, 6, r.queued, "a graph runs on any stream")
}

// TestReplayWithinACapture checks that a graph that the caller captures gets kernels and no graph
// of the library.
func TestReplayWithinACapture(t *testing.T) {
	r := newReplayed(t)
	f := r.of.Inference()
	for range sightings + 1 {
		r.pass(r.of.Stream(), forwardPass, "a", f)
	}
	require.NoError(t, r.of.Stream().BeginCapture())
	require.NoError(t, r.launch(r.dev, r.of.Stream(), forwardPass, []byte("a"), func(s driver.Stream) error {
		require.Same(t, r.of.Stream(), s)
		r.queued++
		return r.Forward(s, f)
	}))
	g, err := r.of.Stream().EndCapture()
	require.NoError(t, err)
	require.Equal(t, sightings+2, r.queued)
	require.Greater(t, g.Nodes(), 1)
	require.NoError(t, g.Close())
}

// TestReplayOfNothing checks that a pass that fails returns its error each time, and that a pass
// without kernels gets no graph.
func TestReplayOfNothing(t *testing.T) {
	r := newReplayed(t)
	failure := errors.New("no")
	queued := 0
	for range 2 * sightings {
		err := r.launch(r.dev, r.of.Stream(), forwardPass, []byte("a"), func(driver.Stream) error { queued++; return failure })
		require.ErrorIs(t, err, failure)
	}
	require.Equal(t, 2*sightings, queued)
	for range 2 * sightings {
		require.NoError(t, r.launch(r.dev, r.of.Stream(), backwardPass, []byte("a"), func(driver.Stream) error { queued++; return nil }))
	}
	require.Equal(t, 4*sightings+1, queued, "one more for the attempt to capture")
	require.NoError(t, r.launch(r.dev, r.of.Stream(), neverReplayed, []byte("a"), func(driver.Stream) error { return nil }))
}

// TestReplaysAreBounded checks that a new graph replaces the least recently used one, and that
// closeReplays closes the graphs of idle calls.
func TestReplaysAreBounded(t *testing.T) {
	r := newReplayed(t)
	f := r.of.Inference()
	graphs := map[string]driver.Graph{}
	for _, key := range []string{"a", "b", "c", "d", "a", "e"} {
		for range sightings + 1 {
			r.pass(r.of.Stream(), forwardPass, key, f)
		}
		graphs[key] = r.replays[0].graph
	}
	assert.ErrorContains(t, graphs["b"].Launch(r.of.Stream()), "the graph is closed")
	for _, key := range []string{"a", "c", "d", "e"} {
		assert.NoError(t, graphs[key].Launch(r.of.Stream()), key)
	}
	l := &layer{idle: []idleCall{{1, &r.call}}}
	l.closeReplays()
	assert.ErrorContains(t, graphs["a"].Launch(r.of.Stream()), "the graph is closed")
}
