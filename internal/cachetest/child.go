package cachetest

import (
	"errors"
	"io/fs"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"sonicmoe/internal/child"
)

// inChild reports whether this process is the child process of the test.
func inChild(t testing.TB) bool { return child.Role() == t.Name() }

// again runs the test in a child process with the attributes attr, and ends this test with the
// result of the child.
func again(t testing.TB, attr *syscall.SysProcAttr) {
	t.Helper()
	cmd := child.Command(t, t.Name(), t.Name())
	cmd.Args = append(cmd.Args, "-test.timeout=60s")
	cmd.SysProcAttr = attr
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case errors.Is(err, fs.ErrPermission):
		t.Skipf("this user may not make namespaces: %v", err)
	case err != nil && !errors.As(err, &exit):
		t.Skipf("such a child process cannot be started here: %v", err)
	case err != nil:
		t.Fatalf("in the child process: %v\n%s", err, out)
	case strings.Contains(string(out), "--- SKIP: "+t.Name()+" "):
		t.Skipf("the child process skipped:\n%s", out)
	case !strings.Contains(string(out), "--- PASS: "+t.Name()+" "):
		t.Fatalf("the child process ran no such test:\n%s", out)
	}
}
