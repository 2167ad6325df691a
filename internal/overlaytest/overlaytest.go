// Package overlaytest runs Go code of this module with other files in it, for tests that
// show what a change touches.
package overlaytest

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Go runs the go command, such as "run" and its arguments, in the module's root and
// returns its output. The module has these files, by their paths from the root, in
// addition to its own or in place of them.
func Go(t testing.TB, root string, files map[string][]byte, command string, args ...string) string {
	t.Helper()
	root, err := filepath.Abs(root)
	require.NoError(t, err)
	dir, replaced := t.TempDir(), map[string]string{}
	for path, text := range files {
		to := filepath.Join(dir, strings.ReplaceAll(path, "/", "-"))
		require.NoError(t, os.WriteFile(to, text, 0o644))
		replaced[filepath.Join(root, path)] = to
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replaced})
	require.NoError(t, err)
	file := filepath.Join(dir, "overlay.json")
	require.NoError(t, os.WriteFile(file, overlay, 0o644))
	run := exec.CommandContext(t.Context(), "go", append([]string{command, "-overlay", file}, args...)...)
	run.Dir, run.Env = root, append(os.Environ(), "SONICMOE_CACHE="+t.TempDir())
	out, err := run.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}
