// Package examples_test runs what has no tests of its own: a module outside
// this one.
package examples_test

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A module that only requires this one builds with its own go.mod and go.sum,
// and its programs run layers through the public packages.
func TestOutside(t *testing.T) {
	bin, err := exec.LookPath("go")
	if err != nil {
		t.Skipf("no go command to build another module with: %v", err)
	}
	if out, err := goCommand(bin, "list", "-mod=readonly", "-deps", "./...").CombinedOutput(); err != nil && unreachable(string(out)) {
		t.Skipf("the other module's requirements can't be resolved here: %v\n%s", err, out)
	}
	programs := t.TempDir()
	out, err := goCommand(bin, "build", "-mod=readonly", "-ldflags=-s -w", "-o", programs, "./service", "./train").CombinedOutput()
	require.NoError(t, err, string(out))
	for program, check := range map[string]func(t *testing.T, out string){
		"service": func(t *testing.T, out string) { require.Contains(t, out, "8 clients; the first got [") },
		"train": func(t *testing.T, out string) {
			losses := regexp.MustCompile(`loss (\d\.\d+)`).FindAllStringSubmatch(out, -1)
			require.NotEmpty(t, losses, out)
			first, err := strconv.ParseFloat(losses[0][1], 64)
			require.NoError(t, err)
			last, err := strconv.ParseFloat(losses[len(losses)-1][1], 64)
			require.NoError(t, err)
			require.Less(t, last, first/2, out)
		},
	} {
		t.Run(program, func(t *testing.T) {
			run := exec.Command(filepath.Join(programs, program))
			run.Env = append(run.Environ(), "SONICMOE_CACHE=off")
			out, err := run.CombinedOutput()
			require.NoError(t, err, string(out))
			check(t, string(out))
		})
	}
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
