package main

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sonicmoe/examples/bench/report"
	"sonicmoe/internal/num"
)

// TestAlone checks that each product of both passes is measured alone, and that energy and time of
// the plans before a product are subtracted.
func TestAlone(t *testing.T) {
	if testing.Short() {
		t.Skip("too long for -short")
	}
	var out bytes.Buffer
	var b *bench
	for span := 80 * time.Millisecond; ; span *= 4 {
		out.Reset()
		b, _ = onDevice(t, &out, "-pass", "both", "-alone", span.String())
		b.meter = &counter{step: time.Nanosecond}
		require.NoError(t, b.measure(smallest(t, 1)))
		if span > 4*time.Second || !strings.Contains(out.String(), "has not advanced twice") {
			break // a busy machine reads the counter too seldom in a short time
		}
	}
	for _, s := range b.report.Sections() {
		row := s.Rows[0]
		require.Empty(t, row.Error)
		measured := map[string]*report.Energy{}
		for _, k := range row.Kernels {
			if k.Alone != nil {
				measured[k.Name] = k.Alone
			}
		}
		for _, p := range map[string][]string{"forward": {"up", "down"}, "backward": {"dh", "dw2", "dw1", "dx"}}[s.Pass] {
			require.Contains(t, measured, p)
			require.Positive(t, measured[p].Passes, p)
		}
	}
	require.Contains(t, out.String(), "alone, steady")
}

// TestIsolate checks that an isolated kernel has its inputs and writes the pass's bits each time it
// runs, and that a number past the last kernel is an error.
func TestIsolate(t *testing.T) {
	var out bytes.Buffer
	b, _ := onDevice(t, &out)
	u := forwardSubject(t, b)
	require.NoError(t, u.queue())
	want, err := u.hash(t.Context())
	require.NoError(t, err)
	const aggregate = 4
	one, err := u.isolate(aggregate)
	require.NoError(t, err)
	require.Len(t, one.plans, 1)
	require.NoError(t, u.poison())
	for range 2 {
		require.NoError(t, one.kernel.Launch(u.Stream()))
		got, err := u.hash(t.Context())
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	require.NoError(t, one.close())
	_, err = u.isolate(aggregate + 1)
	require.ErrorContains(t, err, "the pass has 5 kernels, must have kernel 5")
}

// TestIsolatedProduct checks that a product does its whole work each time its plans run before it.
func TestIsolatedProduct(t *testing.T) {
	b, _ := onDevice(t, io.Discard)
	u := forwardSubject(t, b)
	w := u.Args.Workspace
	const poison = 0xffffffff
	require.NoError(t, u.Stream().Fill32(w.Ptr, poison, w.Bytes/4))
	const down = 3
	one, err := u.isolate(down)
	require.NoError(t, err)
	words := make([]uint32, w.Bytes/4)
	poisoned := func() (n int) {
		require.NoError(t, u.Stream().CopyToHost(num.Bytes(words), w.Ptr))
		for _, v := range words {
			if v == poison {
				n++
			}
		}
		return n
	}
	before := poisoned()
	require.NoError(t, one.plans[0].Launch(u.Stream()))
	require.NoError(t, one.kernel.Launch(u.Stream()))
	row := smallest(t, 1)[0]
	written := row.Tokens * row.Config.TopK * row.Config.Hidden / 2
	require.Equal(t, before-written, poisoned())
	require.NoError(t, one.close())
}

// forwardSubject returns the forward pass of the smallest row. It is closed when the test ends.
func forwardSubject(t *testing.T, b *bench) *subject {
	row := smallest(t, 1)[0]
	b.pass = passes["forward"]
	l, err := b.layer(t.Context(), row.Config)
	require.NoError(t, err)
	u, err := newSubject(t.Context(), b.dev, l, row, b.pass)
	require.NoError(t, err)
	t.Cleanup(func() { u.Close() })
	return u
}
