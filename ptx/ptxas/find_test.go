package ptxas

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestFoundByPath checks that Find uses Python's packages only while Python is in PATH, even if an
// earlier call has found them.
func TestFoundByPath(t *testing.T) {
	for _, name := range []string{"PTXAS", "CUDA_HOME"} {
		t.Setenv(name, "")
	}
	if _, err := os.Stat("/usr/local/cuda"); err == nil {
		t.Skip("the toolkit in /usr/local/cuda needs no PATH")
	}
	before, _ := Find()
	t.Run("no PATH", func(t *testing.T) {
		t.Setenv("PATH", "")
		_, err := Find()
		require.ErrorIs(t, err, ErrNotFound)
	})
	again, _ := Find()
	assert.Equal(t, before, again)
}

// TestNothingOfTheCurrentFolderRuns puts fakes of everything that the search looks for into the
// current folder. None of these packages and programs may run, even if PYTHONPATH or PATH names the
// folder.
func TestNothingOfTheCurrentFolderRuns(t *testing.T) {
	dir := t.TempDir()
	ran := filepath.Join(dir, "ran")
	write := func(name, text string) {
		p := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(p), 0o700))
		require.NoError(t, os.WriteFile(p, []byte(text), 0o700))
	}
	for _, module := range []string{"nvidia/__init__.py", "site.py", "sitecustomize.py", "usercustomize.py"} {
		write(module, "open('"+ran+"', 'w').write('x')\n")
	}
	for _, program := range []string{"ptxas", "bin/ptxas", "python3", "nvidia/cu13/bin/ptxas"} {
		write(program, "#!/bin/sh\ntouch "+ran+"\n")
	}
	t.Chdir(dir)
	t.Setenv("PYTHONPATH", dir)
	t.Setenv("PATH", "."+string(os.PathListSeparator)+os.Getenv("PATH")+string(os.PathListSeparator))
	t.Setenv("PTXAS", "")
	for _, folder := range askPython() {
		assert.True(t, filepath.IsAbs(folder), folder)
		assert.False(t, strings.HasPrefix(folder, dir), folder)
	}
	if found, err := Find(); err == nil {
		assert.True(t, filepath.IsAbs(found), found)
		assert.False(t, strings.HasPrefix(found, dir), found)
	}
	t.Setenv("CUDA_HOME", ".")
	for _, file := range Installed("bin/ptxas") {
		assert.False(t, strings.HasPrefix(file, dir), file)
		assert.True(t, filepath.IsAbs(file), file)
	}
	assert.NoFileExists(t, ran)
	t.Setenv("PTXAS", "./ptxas")
	_, err := Find()
	assert.ErrorContains(t, err, "must be an absolute path")
}
