package outside_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/outside"
)

// ended is a testing.TB that records whether the test was skipped or has failed.
type ended struct {
	testing.TB
	skipped, failed bool
}

func (e *ended) Helper()               {}
func (e *ended) Skip(...any)           { e.skipped = true; panic(e) }
func (e *ended) Fatalf(string, ...any) { e.failed = true; panic(e) }

func ending(t *testing.T, f func(testing.TB)) (e *ended) {
	e = &ended{TB: t}
	defer func() { _ = recover() }()
	f(e)
	return e
}

// TestMissing checks that every tool is missing if PATH is empty. This skips the test, or fails
// it if the tool is required.
func TestMissing(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv("PTXAS", "relative/ptxas")
	judges := map[string]func(testing.TB){
		"ptxas":   func(t testing.TB) { outside.Ptxas(t) },
		"cuda.h":  func(t testing.TB) { outside.Header(t, "CUDA_ERROR_OF_NO_RELEASE") },
		"cc":      func(t testing.TB) { outside.CC(t) },
		"python3": func(t testing.TB) { outside.Python(t, "numpy") },
	}
	for name, judge := range judges {
		t.Setenv(outside.EnvRequire, "other")
		e := ending(t, judge)
		assert.True(t, e.skipped && !e.failed, name)
		t.Setenv(outside.EnvRequire, "other,"+name)
		e = ending(t, judge)
		assert.True(t, e.failed && !e.skipped, name)
	}
}

// TestFolderIsNoPackage checks that a folder that has the name of a package does not count as
// the package, whatever the test's current folder is.
func TestFolderIsNoPackage(t *testing.T) {
	bin := outside.Python(t, "json", "nopackage|json")
	require.True(t, filepath.IsAbs(bin))
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "nopackage"), 0o700))
	t.Chdir(dir)
	e := ending(t, func(t testing.TB) { outside.Python(t, "nopackage") })
	assert.True(t, e.skipped)
	t.Setenv("PYTHONPATH", dir)
	e = ending(t, func(t testing.TB) { outside.Python(t, "nopackage") })
	assert.True(t, e.skipped, "an empty package of a folder")
}
