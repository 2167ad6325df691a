// Package examples_test runs what has no tests of its own: a module outside
// this one.
package examples_test

import (
	"os"
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
	out, err = goCommand(bin, "test", "-mod=readonly", "./service").CombinedOutput()
	require.NoError(t, err, string(out))
	out, err = goCommand(bin, "version", "-m", programs).CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "github.com/ebitengine/purego")
	for _, name := range []string{"mumax", "gonum", "plot", "progressbar", "testify"} {
		require.NotContains(t, string(out), name, "what the programs are built from")
	}
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

// What the memory of calls costs a program is at most ten lines: to allocate,
// to describe and to free it.
func TestOutsidePlumbing(t *testing.T) {
	plumbing := regexp.MustCompile(`\bmemory\.|moe\.(NewArena|Dense|Tensor\{|Buffer\{|Shape\{)|\.Alloc\(|\.Free\(`)
	for _, program := range []string{"service", "train"} {
		text, err := os.ReadFile(filepath.Join("outside", program, "main.go"))
		require.NoError(t, err)
		var lines []string
		for line := range strings.Lines(string(text)) {
			if plumbing.MatchString(line) {
				lines = append(lines, strings.TrimSpace(line))
			}
		}
		require.NotEmpty(t, lines, program)
		require.LessOrEqual(t, len(lines), 10, "%s:\n%s", program, strings.Join(lines, "\n"))
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
