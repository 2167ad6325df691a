//go:build unix

package safetensors_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/moe/checkpoint/safetensors"
)

// TestOpenNeverWaits checks that Open does not wait for pipes or devices, and returns when its
// context ends.
func TestOpenNeverWaits(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe.safetensors")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	for _, path := range []string{pipe, "/dev/zero"} {
		_, err := safetensors.Open(t.Context(), path)
		require.ErrorContains(t, err, "must be a regular file")
	}
	path := filepath.Join(t.TempDir(), "long.safetensors")
	require.NoError(t, os.WriteFile(path, file("{"+strings.Repeat(" ", 1<<20)+"}", 0), 0o600))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := safetensors.Open(ctx, path)
	require.ErrorIs(t, err, context.Canceled)
}
