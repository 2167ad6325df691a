//go:build unix

package autotune_test

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/autotune"
	"sonicmoe/internal/child"
)

// tuneOdd tunes two points that do not misbehave.
func tuneOdd(t *testing.T, spec string, o autotune.Options) (*autotune.Report[odd], error) {
	t.Helper()
	o.Rounds, o.Warm = 1, time.Nanosecond
	s, err := autotune.NewSession(newDevice(t), oddities, spec, o)
	require.NoError(t, err)
	r, err := s.Tune(t.Context(), autotune.Problem[odd]{Name: "odd", Default: odd{500, "default"}, Sources: oddSource,
		Space: []autotune.Candidate[odd]{{Point: odd{100, "fine"}, Estimate: 1}}})
	require.NoError(t, s.Close())
	return r, err
}

// TestWorkerOfAReplacedProgram checks that a worker runs the same program as its parent, even
// if an update has replaced the program's file. Otherwise the kernels of another program would
// be tried, and the choice would be stored for this one.
func TestWorkerOfAReplacedProgram(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("a running program's file cannot be opened under another name here")
	}
	exe, err := os.Executable()
	require.NoError(t, err)
	if how := child.Role(); how != "" {
		require.NoError(t, os.Remove(exe))
		if how == "replaced" {
			require.NoError(t, os.WriteFile(exe, []byte("#!/bin/sh\necho the new program is started >&2\n"), 0o700))
		}
		r, err := tuneOdd(t, "", autotune.Options{})
		require.NoError(t, err)
		assert.Equal(t, "a worker process", r.Where)
		assert.Equal(t, 2, r.Count(autotune.Measured), r)
		return
	}
	for _, how := range []string{"replaced", "removed"} {
		again := filepath.Join(t.TempDir(), "program")
		from, err := os.Open(exe)
		require.NoError(t, err)
		to, err := os.OpenFile(again, os.O_WRONLY|os.O_CREATE, 0o700)
		require.NoError(t, err)
		_, err = io.Copy(to, from)
		require.NoError(t, err)
		require.NoError(t, from.Close())
		require.NoError(t, to.Close())
		cmd := exec.CommandContext(t.Context(), again, "-test.run=^TestWorkerOfAReplacedProgram$")
		cmd.Env = child.Env(how)
		out, err := cmd.CombinedOutput()
		assert.NoError(t, err, "%s: %s", how, out)
	}
}

// TestWorkerHasNoSecrets checks that a worker process inherits CUDA_VISIBLE_DEVICES, but not a
// variable that holds a secret.
func TestWorkerHasNoSecrets(t *testing.T) {
	t.Setenv(child.Variable, telling)
	t.Setenv("CUDA_VISIBLE_DEVICES", "a device")
	t.Setenv("HF_TOKEN", "a secret")
	r, err := tuneOdd(t, "", autotune.Options{})
	require.NoError(t, err)
	assert.Contains(t, r.Where, "it said: a device,")
	assert.NotContains(t, r.Where, "secret")
}

// TestWorkerThatReadsNothing checks that a worker that does not read its pipe counts as hung
// after Options.Setup.
func TestWorkerThatReadsNothing(t *testing.T) {
	t.Setenv(child.Variable, stuck)
	done := make(chan *autotune.Report[odd], 1)
	go func() {
		r, err := tuneOdd(t, strings.Repeat("x", 1<<20), autotune.Options{Setup: 200 * time.Millisecond})
		assert.NoError(t, err)
		done <- r
	}()
	select {
	case r := <-done:
		assert.Contains(t, r.Where, "the worker process did not start: hung: no answer in 200ms")
	case <-time.After(30 * time.Second):
		t.Fatal("the search does not end")
	}
}
