// Package examples_test has tests of a module that uses sonicmoe, and of CI.
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

// TestOutside checks that a module that only requires sonicmoe builds with its own go.mod and
// go.sum, and that its program trains a layer with only public packages.
func TestOutside(t *testing.T) {
	bin, err := exec.LookPath("go")
	if err != nil {
		t.Skipf("no go command to build another module with: %v", err)
	}
	if out, err := goCommand(bin, "list", "-mod=readonly", "-deps", "./...").CombinedOutput(); err != nil && unreachable(string(out)) {
		t.Skipf("the other module's requirements can't be resolved here: %v\n%s", err, out)
	}
	program := filepath.Join(t.TempDir(), "outside")
	out, err := goCommand(bin, "build", "-mod=readonly", "-ldflags=-s -w", "-o", program, ".").CombinedOutput()
	require.NoError(t, err, string(out))
	out, err = goCommand(bin, "version", "-m", program).CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "github.com/ebitengine/purego")
	for _, name := range []string{"mumax", "gonum", "plot", "progressbar", "testify", "prometheus"} {
		require.NotContains(t, string(out), name, "what the program is built from")
	}
	run := exec.Command(program)
	run.Env = append(run.Environ(), "SONICMOE_CACHE=off")
	out, err = run.CombinedOutput()
	require.NoError(t, err, string(out))
	losses := regexp.MustCompile(`loss (\d\.\d+)`).FindAllStringSubmatch(string(out), -1)
	require.NotEmpty(t, losses, string(out))
	first, err := strconv.ParseFloat(losses[0][1], 64)
	require.NoError(t, err)
	last, err := strconv.ParseFloat(losses[len(losses)-1][1], 64)
	require.NoError(t, err)
	require.Less(t, last, first/2, string(out))
}

// TestOutsidePlumbing checks that a program needs at most ten lines to allocate, describe and
// free the memory of its calls.
func TestOutsidePlumbing(t *testing.T) {
	plumbing := regexp.MustCompile(`\bmemory\.|moe\.(NewArena|Dense|Tensor\{|Buffer\{|Shape\{)|\.Alloc\(|\.Free\(`)
	text, err := os.ReadFile(filepath.Join("outside", "main.go"))
	require.NoError(t, err)
	var lines []string
	for line := range strings.Lines(string(text)) {
		if plumbing.MatchString(line) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	require.NotEmpty(t, lines)
	require.LessOrEqual(t, len(lines), 10, strings.Join(lines, "\n"))
}

func goCommand(bin string, args ...string) *exec.Cmd {
	c := exec.Command(bin, args...)
	c.Dir = "outside"
	c.Env = append(c.Environ(), "GOWORK=off", "SONICMOE_CACHE=off")
	return c
}

// unreachable reports whether the go command failed because it could not download a module,
// which is no fault of this project.
func unreachable(out string) bool {
	for _, text := range []string{"module lookup disabled", "dial tcp", "no such host", "i/o timeout", "connection refused"} {
		if strings.Contains(out, text) {
			return true
		}
	}
	return false
}
