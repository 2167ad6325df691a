package autotune_test

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/autotune"
	"sonicmoe/internal/drivertest"
)

// TestLeftOversOfKilledSessions checks that a new session removes the directories of killed
// processes. It must keep new directories, directories of sessions that still exist, and other
// files.
func TestLeftOversOfKilledSessions(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the temporary folder is named by another variable here")
	}
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	session := func() *autotune.Session[point] {
		s, err := autotune.NewSession(newDevice(t), copiers, copySpec{Device: drivertest.Name()}, autotune.Options{})
		require.NoError(t, err)
		return s
	}
	living := session()
	alive, err := filepath.Glob(filepath.Join(tmp, "sonicmoe-autotune-*"))
	require.NoError(t, err)
	require.Len(t, alive, 1)
	outside := t.TempDir()
	link := filepath.Join(tmp, "sonicmoe-autotune-link")
	require.NoError(t, os.Symlink(outside, link))
	make := func(name string, age time.Duration) string {
		dir := filepath.Join(tmp, name)
		require.NoError(t, os.MkdirAll(filepath.Join(dir, "entries"), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "entries", "x"), nil, 0o600))
		then := time.Now().Add(-age)
		require.NoError(t, os.Chtimes(dir, then, then))
		return dir
	}
	dead, fresh, other := make("sonicmoe-autotune-1", 2*time.Hour), make("sonicmoe-autotune-2", 0), make("other-3", 2*time.Hour)
	then := time.Now().Add(-2 * time.Hour)
	require.NoError(t, os.Chtimes(alive[0], then, then))

	next := session()
	assert.NoDirExists(t, dead)
	for _, dir := range []string{alive[0], fresh, other, outside} {
		assert.DirExists(t, dir)
	}
	require.NoError(t, living.Close())
	require.NoError(t, next.Close())
	left, err := filepath.Glob(filepath.Join(tmp, "*"))
	require.NoError(t, err)
	assert.Len(t, left, 3, "the directories to keep")
}
