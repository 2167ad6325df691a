// Package hostile makes files that a command must refuse without waiting and without reading
// them whole.
package hostile

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Refuses checks that read, which reads the file at a path, refuses a pipe, a device and a file
// of 300 MB, without waiting.
func Refuses(t *testing.T, read func(path string) error) {
	t.Helper()
	pipe, large := filepath.Join(t.TempDir(), "pipe"), filepath.Join(t.TempDir(), "large")
	if out, err := exec.Command("mkfifo", pipe).CombinedOutput(); err != nil {
		t.Skipf("no mkfifo: %v %s", err, out)
	}
	f, err := os.Create(large)
	require.NoError(t, err)
	require.NoError(t, f.Truncate(300<<20))
	require.NoError(t, f.Close())
	for path, want := range map[string]string{pipe: "is a named pipe", "/dev/zero": "is a device", large: "too large"} {
		done := make(chan error, 1)
		go func() { done <- read(path) }()
		select {
		case err := <-done:
			require.ErrorContains(t, err, want)
		case <-time.After(20 * time.Second):
			t.Fatalf("the reader waits for %s, which %s", path, want)
		}
	}
}
