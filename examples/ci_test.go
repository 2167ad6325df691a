//go:build unix

package examples_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestCIDemandsItsTools checks that CI runs its scripts, and that each script fails if a tool
// that it needs is missing.
func TestCIDemandsItsTools(t *testing.T) {
	ci, err := os.ReadFile("../.ci/run")
	require.NoError(t, err)
	public, err := os.ReadFile("../.github/workflows/ci.yml")
	require.NoError(t, err)
	assert.Regexp(t, `(?m)^ +- run: \.ci/run$`, string(public))

	tools := t.TempDir() // holds the programs that the scripts use and a Python without packages, but no C compiler
	for _, name := range []string{"bash", "dirname", "mktemp", "rm", "ln", "mkdir", "sha256sum", "cut"} {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Skip(err)
		}
		require.NoError(t, os.Symlink(path, filepath.Join(tools, name)))
	}
	bare := filepath.Join(tools, "python3")
	require.NoError(t, os.WriteFile(bare, []byte("#!/bin/sh\necho \"ModuleNotFoundError: $*\" >&2\nexit 1\n"), 0o700))
	for _, tt := range []struct {
		script string
		args   []string
		want   string
	}{
		{"mumax", nil, "no cuda.h or no C compiler"},
		{"python", []string{bare}, "import os, pytest, torch"},
	} {
		assert.Regexp(t, `(?m)^\.ci/`+tt.script+`$`, string(ci))
		script := exec.Command(filepath.Join(tools, "bash"), append([]string{"../.ci/" + tt.script}, tt.args...)...)
		script.Env = []string{"PATH=" + tools, "HOME=" + tools, "TMPDIR=" + t.TempDir()}
		out, err := script.CombinedOutput()
		assert.Error(t, err, tt.script)
		assert.True(t, strings.Contains(string(out), tt.want), "%s: %s", tt.script, out)
	}
}
