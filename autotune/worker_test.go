package autotune_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// worker is a worker process that the test talks to itself.
type worker struct {
	*exec.Cmd
	in    interface{ Close() error }
	send  func(any)
	reply func() string
}

func newWorker(t *testing.T) worker {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), "SONICMOE_AUTOTUNE_WORKER=1")
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	lines := bufio.NewScanner(out)
	return worker{cmd, in,
		func(m any) { require.NoError(t, json.NewEncoder(in).Encode(m)) },
		func() string {
			for lines.Scan() {
				if text, ok := strings.CutPrefix(lines.Text(), "autotune-reply:"); ok {
					return text
				}
			}
			return ""
		}}
}

// ended waits for the process.
func (w worker) ended(t *testing.T) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- w.Wait() }()
	select {
	case err := <-done:
		return err
	case <-time.After(5 * time.Second):
		t.Fatal("the worker is still there")
		return nil
	}
}

// A worker whose parent is gone goes too, in the middle of a candidate that
// hangs.
func TestWorkerGoesWithItsParent(t *testing.T) {
	w := newWorker(t)
	w.send(map[string]any{"Subject": "autotune test copiers", "Spec": copySpec{Device: deviceName()}, "CacheDir": t.TempDir()})
	assert.JSONEq(t, `{"Error":"","Broken":false,"Time":0}`, w.reply())
	w.send(map[string]any{"Op": "verify", "Problem": "copy", "Point": base})
	assert.Contains(t, w.reply(), `"Error":""`)
	w.send(map[string]any{"Op": "dance", "Problem": "copy", "Point": base})
	assert.Contains(t, w.reply(), `unknown request`)
	w.send(map[string]any{"Op": "verify", "Problem": "copy", "Point": 7})
	assert.Contains(t, w.reply(), `cannot unmarshal`)
	w.send(map[string]any{"Op": "verify", "Problem": "copy", "Point": point{32, hangs}})
	time.Sleep(100 * time.Millisecond) // it is at it
	require.NoError(t, w.in.Close())
	assert.NoError(t, w.ended(t))
}

// What a worker can't serve it says, and ends.
func TestWorkerRefuses(t *testing.T) {
	w := newWorker(t)
	w.send(map[string]any{"Subject": "nobody's"})
	assert.Contains(t, w.reply(), `no single bench named \"nobody's\"`)
	assert.NoError(t, w.ended(t))

	w = newWorker(t)
	_, err := fmt.Fprintln(w.in.(interface{ Write([]byte) (int, error) }), "no JSON")
	require.NoError(t, err)
	assert.Empty(t, w.reply())
	assert.Error(t, w.ended(t))
}
