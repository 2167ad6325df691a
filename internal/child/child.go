// Package child lets a test run part of its test binary in another process.
package child

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// Variable is the environment variable that holds the role of a process that a test started.
const Variable = "SONICMOE_TEST_CHILD"

// Role returns the role that a test gave to this process, or "" if no test started it.
func Role() string { return os.Getenv(Variable) }

// Env returns the environment for a child process with the role.
func Env(role string) []string { return append(os.Environ(), Variable+"="+role) }

// Command returns a command that runs one test of this binary in a child process with the role.
// The process ends at the latest with t.
func Command(t testing.TB, test, role string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var pattern []string
	for _, part := range strings.Split(test, "/") {
		pattern = append(pattern, "^"+regexp.QuoteMeta(part)+"$")
	}
	cmd := exec.CommandContext(t.Context(), self, "-test.run", strings.Join(pattern, "/"), "-test.v", "-test.count=1")
	cmd.Env = Env(role)
	return cmd
}
