package autotune_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/autotune"
	"sonicmoe/internal/drivertest"
)

// worker is a worker process to which the test itself sends messages.
type worker struct {
	*exec.Cmd
	in    *os.File
	send  func(any)
	reply func() string
}

func newWorker(t *testing.T) worker {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("handles are inherited differently here")
	}
	exe, err := os.Executable()
	require.NoError(t, err)
	theirIn, in, err := os.Pipe()
	require.NoError(t, err)
	out, theirOut, err := os.Pipe()
	require.NoError(t, err)
	cmd := exec.Command(exe)
	cmd.ExtraFiles = []*os.File{theirIn, theirOut}
	cmd.Env = append(os.Environ(), "SONICMOE_AUTOTUNE_WORKER=3,4")
	require.NoError(t, cmd.Start())
	require.NoError(t, theirIn.Close())
	require.NoError(t, theirOut.Close())
	t.Cleanup(func() { _ = cmd.Process.Kill(); in.Close(); out.Close() })
	lines := bufio.NewScanner(out)
	return worker{cmd, in,
		func(m any) { require.NoError(t, json.NewEncoder(in).Encode(m)) },
		func() string {
			if lines.Scan() {
				return lines.Text()
			}
			return ""
		}}
}

// ended waits for the end of the process.
func (w worker) ended(t *testing.T) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- w.Wait() }()
	select {
	case err := <-done:
		return err
	case <-time.After(5 * time.Second):
		t.Fatal("the worker still runs")
		return nil
	}
}

// TestWorkerGoesWithItsParent checks that a worker ends when its parent ends, even while a
// candidate hangs.
func TestWorkerGoesWithItsParent(t *testing.T) {
	w := newWorker(t)
	w.send(map[string]any{"Subject": "autotune test copiers", "Spec": copySpec{Device: drivertest.Name()}, "CacheDir": t.TempDir()})
	assert.JSONEq(t, `{"N":0,"Error":"","Broken":false,"Time":0}`, w.reply())
	w.send(map[string]any{"N": 7, "Op": "verify", "Problem": "copy", "Point": base})
	assert.JSONEq(t, `{"N":7,"Error":"","Broken":false,"Time":0}`, w.reply())
	w.send(map[string]any{"Op": "dance", "Problem": "copy", "Point": base})
	assert.Contains(t, w.reply(), `unknown request`)
	w.send(map[string]any{"Op": "verify", "Problem": "copy", "Point": 7})
	assert.Contains(t, w.reply(), `cannot unmarshal`)
	w.send(map[string]any{"Op": "verify", "Problem": "copy", "Point": point{32, hangs}})
	time.Sleep(100 * time.Millisecond) // until the candidate hangs
	require.NoError(t, w.in.Close())
	assert.NoError(t, w.ended(t))
}

// TestWorkerRefuses checks that a worker replies with an error to a hello that it cannot serve,
// and then ends.
func TestWorkerRefuses(t *testing.T) {
	w := newWorker(t)
	w.send(map[string]any{"Subject": "nobody's"})
	assert.Contains(t, w.reply(), `no single bench named \"nobody's\"`)
	assert.NoError(t, w.ended(t))

	w = newWorker(t)
	_, err := fmt.Fprintln(w.in, "no JSON")
	require.NoError(t, err)
	assert.Empty(t, w.reply())
	assert.Error(t, w.ended(t))
}

// TestMarkOfWorkersByHand checks that a program reports an error if the worker's variable is
// set but names no pipes.
func TestMarkOfWorkersByHand(t *testing.T) {
	exe, err := os.Executable()
	require.NoError(t, err)
	for _, mark := range []string{"1", "3", "x,y", "3,"} {
		c := exec.Command(exe)
		c.Env = append(os.Environ(), "SONICMOE_AUTOTUNE_WORKER="+mark)
		out, err := c.CombinedOutput()
		assert.Error(t, err, mark)
		assert.Contains(t, string(out), "it is set in worker processes only", mark)
	}
}

// TestEnvironmentOfWorkers checks that a worker inherits the variables that CUDA and the
// library read, and no others, which may hold secrets of the program.
func TestEnvironmentOfWorkers(t *testing.T) {
	kept := []string{"PATH=/bin", "TMPDIR=/t", "CUDA_VISIBLE_DEVICES=1", "SONICMOE_CACHE=off", "GOMAXPROCS=3"}
	dropped := []string{"HF_TOKEN=secret", "AWS_SECRET_ACCESS_KEY=secret", "MY_PATH=secret", "GOOGLE_API_KEY=secret", "HOMEPAGE_TOKEN=secret"}
	for _, v := range slices.Concat(kept, dropped) {
		name, value, _ := strings.Cut(v, "=")
		t.Setenv(name, value)
	}
	got := autotune.Environment()
	assert.Subset(t, got, kept)
	assert.NotContains(t, strings.Join(got, "\n"), "secret")
}
