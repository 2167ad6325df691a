package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/cache"
	"sonicmoe/driver/open"
	"sonicmoe/examples/internal/command"
)

// TestReadme runs README's section "Warm a fleet", word for word, in a directory with
// the project's examples.
func TestReadme(t *testing.T) {
	if _, err := open.Device(t.Context(), "cuda"); err != nil {
		for _, name := range []string{"PTXAS", "PATH", "VIRTUAL_ENV", "CUDA_HOME", "CUDA_PATH"} {
			t.Setenv(name, "") // no GPU and no ptxas
		}
	}
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	require.NoError(t, err)
	_, section, ok := strings.Cut(string(readme), "\n## Warm a fleet\n")
	require.True(t, ok)
	section, _, _ = strings.Cut(section, "\n## ")

	t.Chdir(t.TempDir())
	require.NoError(t, os.Symlink(filepath.Join(root, "examples"), "examples"))
	t.Setenv("SONICMOE_CACHE", filepath.Join(t.TempDir(), "own"))
	ran := 0
	for line := range strings.Lines(section) {
		words, ok := strings.CutPrefix(strings.TrimSpace(line), "go run ./examples/warmup ")
		if !ok {
			continue
		}
		ran++
		warmup(t, command.Done, strings.Fields(words)...)
	}
	assert.Equal(t, 4, ran)
	assert.Contains(t, section, "SONICMOE_CACHE=:warm.tar")
	c := cache.Open(cache.Options{Dir: "warm.tar", ReadOnly: true})
	require.NoError(t, c.Err())
	infos, err := c.List(t.Context())
	require.NoError(t, err)
	assert.Greater(t, len(infos), 6)
}
