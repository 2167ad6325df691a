// Package overlaytest runs Go code of this module with some files added or replaced. Tests use
// it to show what a change of these files affects.
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

// Go runs a go command, such as "run" with its arguments, in the module's root and returns its
// output. files has the files, by path from the root, that are added to the module or replace
// its own.
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
