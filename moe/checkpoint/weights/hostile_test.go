//go:build unix

package weights

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestHostileFiles checks that Open does not wait for a pipe or a device in place of a file, does
// not read a file above its limit of bytes, and returns when its context ends.
func TestHostileFiles(t *testing.T) {
	const index = "model.safetensors.index.json"
	good := func() string {
		return write(t, mixtral, append(experts(block3, "w1", "w3", "w2"), bf16(block3+".gate.weight", e, d))...)
	}
	pipe := func(path string) error { return syscall.Mkfifo(path, 0o600) }
	endless := func(path string) error { return os.Symlink("/dev/zero", path) }
	long := func(path string) error {
		f, err := os.Create(path)
		require.NoError(t, err)
		require.NoError(t, f.Truncate(300<<20))
		return f.Close()
	}
	for _, file := range []string{"config.json", index, "model-0.safetensors"} {
		for want, replace := range map[string]func(string) error{"is a named pipe": pipe, "is a device": endless, "too large": long} {
			if file == "model-0.safetensors" && want == "too large" {
				continue // files of weights have no limit
			}
			dir := good()
			path := filepath.Join(dir, file)
			require.NoError(t, os.Remove(path))
			require.NoError(t, replace(path))
			done := make(chan error, 1)
			go func() { done <- load(t, dir) }()
			select {
			case err := <-done:
				require.ErrorContains(t, err, want)
				require.ErrorContains(t, err, path)
			case <-time.After(10 * time.Second):
				t.Fatalf("%s: Open waits", file)
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Open(ctx, good(), 3)
	require.ErrorIs(t, err, context.Canceled)
}
