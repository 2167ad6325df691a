package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/internal/outside"
)

// TestPython runs the Python package's tests on the emulated device.
func TestPython(t *testing.T) {
	python := outside.Python(t, "torch", "pytest")
	lib := library(t)
	tests := exec.CommandContext(t.Context(), python, "-m", "pytest", "-q", "-p", "no:cacheprovider")
	tests.Dir = "python"
	tests.Env = append(os.Environ(), "PYTHONPATH=.", "PYTHONDONTWRITEBYTECODE=1", "SONICMOE_DEVICE=emulated", "SONICMOE_GO_LIBRARY="+lib,
		"SONICMOE_CACHE="+filepath.Join(t.TempDir(), "cache"))
	out, err := tests.CombinedOutput()
	require.NoError(t, err, "%s", out)
	t.Logf("%s", out)
}
