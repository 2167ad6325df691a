// Package examples_test runs what has no tests of its own: a module outside
// this one.
package examples_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A module that only requires this one builds with its own go.mod and go.sum
// and runs a layer through the public packages.
func TestOutside(t *testing.T) {
	bin, err := exec.LookPath("go")
	if err != nil {
		t.Skipf("no go command to build another module with: %v", err)
	}
	if out, err := goCommand(bin, "list", "-mod=readonly", "-deps", ".").CombinedOutput(); err != nil && unreachable(string(out)) {
		t.Skipf("the other module's requirements can't be resolved here: %v\n%s", err, out)
	}
	out, err := goCommand(bin, "run", "-mod=readonly", ".").CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "emulated H200: T=5 d=128 n=64 E=4 K=2")
	require.Contains(t, string(out), "every O is 1.462 within bf16")
}

func goCommand(bin string, args ...string) *exec.Cmd {
	c := exec.Command(bin, args...)
	c.Dir = "outside"
	c.Env = append(c.Environ(), "GOWORK=off", "SONICMOE_CACHE=off")
	return c
}

// unreachable reports whether the go command failed because of a module
// that is neither in the module cache nor to be had, and not of this project.
func unreachable(out string) bool {
	for _, text := range []string{"module lookup disabled", "dial tcp", "no such host", "i/o timeout", "connection refused"} {
		if strings.Contains(out, text) {
			return true
		}
	}
	return false
}
