package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"aead.dev/minisign"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/cache"
	"sonicmoe/driver/open"
	"sonicmoe/examples/internal/command"
)

// TestReadme runs the commands of the README's section "Warm a fleet", word for word, in a
// directory with the project's examples.
func TestReadme(t *testing.T) {
	if _, err := open.Device(t.Context(), "cuda"); err != nil {
		for _, name := range []string{"PTXAS", "PATH", "VIRTUAL_ENV", "CUDA_HOME", "CUDA_PATH"} {
			t.Setenv(name, "") // makes sure that no GPU and no ptxas is found
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
	public, key, err := minisign.GenerateKey(nil)
	require.NoError(t, err)
	for line := range strings.Lines(section) {
		line, _, _ = strings.Cut(line, "#")
		switch words := strings.Fields(line); {
		case strings.HasPrefix(line, "go run ./examples/warmup "):
			warmup(t, command.Done, words[3:]...)
		case strings.HasPrefix(line, "mkdir -p "):
			require.NoError(t, os.MkdirAll(words[2], 0o700))
		case strings.HasPrefix(line, "minisign -G"):
			text, err := public.MarshalText()
			require.NoError(t, err)
			require.NoError(t, os.WriteFile("minisign.pub", text, 0o600))
		case strings.HasPrefix(line, "minisign -Sm"):
			signAs(t, key, words[2], time.Now())
		default:
			continue
		}
		ran++
	}
	assert.Equal(t, 9, ran)
	assert.Contains(t, section, "SONICMOE_CACHE=:warm.tar")
	c := cache.Open(cache.Options{Dir: "warm.tar", ReadOnly: true})
	require.NoError(t, c.Err())
	infos, err := c.List(t.Context())
	require.NoError(t, err)
	assert.Greater(t, len(infos), 6)
}
