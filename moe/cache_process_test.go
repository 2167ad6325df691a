package moe_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/cache"
	"sonicmoe/internal/attack"
	"sonicmoe/internal/child"
	"sonicmoe/internal/faulty"
	"sonicmoe/jit"
	"sonicmoe/moe"
)

// compileTime is the time of a compilation in a child process. A driver needs a similar time.
const compileTime = 20 * time.Millisecond

// TestStartAsChild is the body of a child process. It starts a layer when its input closes, and
// reports the result. Its role is the cache directory.
func TestStartAsChild(t *testing.T) {
	dir := child.Role()
	if dir == "" {
		t.Skip("other tests run this in processes of its own")
	}
	dev, w := newCounted(t), &warnings{}
	dev.Before(func(op faulty.Op) error {
		if op == faulty.Compile {
			time.Sleep(compileTime)
		}
		return nil
	})
	fmt.Println("ready")
	_, err := io.Copy(io.Discard, os.Stdin)
	require.NoError(t, err)
	l, err := moe.New(context.Background(), dev, smallConfig, moe.WithoutBackward(), moe.WithoutDecode(),
		moe.WithCache(cache.Open(cache.Options{Dir: dir, Logger: newLogger(w)})), moe.WithLogger(newLogger(w)))
	require.NoError(t, err)
	dev.Before(nil)
	fmt.Println(report(int(dev.Count(faulty.Compile)), len(w.said), forwardOn(t, dev, l)))
}

func report(compiled, warned int, results any) string {
	return fmt.Sprintf("compiled %d warned %d results %x", compiled, warned, sha256.Sum256(fmt.Appendf(nil, "%v", results)))
}

// starting is a process that waits to start a layer.
type starting struct {
	cmd  *exec.Cmd
	in   io.Closer
	out  bytes.Buffer
	errs bytes.Buffer
}

func newStarting(t *testing.T, dir string) *starting {
	t.Helper()
	c := &starting{cmd: child.Command(t, "TestStartAsChild", dir)}
	c.cmd.Stdout, c.cmd.Stderr = &c.out, &c.errs
	var err error
	c.in, err = c.cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, c.cmd.Start())
	return c
}

// TestSixteenProcesses checks that sixteen processes (six with -short) that start at once on one
// empty cache leave one valid entry for each key. There are hardly any double compilations and no
// errors.
func TestSixteenProcesses(t *testing.T) {
	f, dir := fill(t), t.TempDir()
	processes := 16
	if testing.Short() {
		processes = 6
	}
	var children []*starting
	for range processes {
		children = append(children, newStarting(t, dir))
	}
	for _, c := range children {
		require.NoError(t, c.in.Close())
	}
	compiled := 0
	for _, c := range children {
		require.NoError(t, c.cmd.Wait(), "%s%s", &c.out, &c.errs)
		_, line, ok := strings.Cut(c.out.String(), "compiled ")
		require.True(t, ok, c.out.String())
		var n int
		_, err := fmt.Sscanf(line, "%d", &n)
		require.NoError(t, err)
		compiled += n
		assert.Contains(t, c.out.String(), report(n, 0, f.want))
	}
	assert.GreaterOrEqual(t, compiled, f.kernels)
	assert.LessOrEqual(t, compiled, f.kernels+2, "at most two double compilations")
	checkClean(t, f, dir)
}

// checkClean fails unless a cache holds one valid entry for each kernel, and a
// start from it compiles nothing.
func checkClean(t *testing.T, f filled, dir string) {
	t.Helper()
	r, err := cache.Open(cache.Options{Dir: dir}).Verify(context.Background())
	require.NoError(t, err)
	assert.Equal(t, f.kernels, r.Sound)
	assert.Empty(t, r.Damaged)
	assert.Empty(t, r.Unreadable)
	dev := newCounted(t)
	s := start(t, dev, cache.Options{Dir: dir})
	assert.Zero(t, s.compiled)
	assert.Empty(t, s.warnings)
	assert.Equal(t, f.want, forwardOn(t, dev, s.layer))
}

// TestKilledStarts checks that a start that is killed at any time leaves no partial entries, and
// that the next start completes the cache.
func TestKilledStarts(t *testing.T) {
	f := fill(t)
	for i := range attack.Rounds(10, 150) {
		dir := t.TempDir()
		c := newStarting(t, dir)
		require.NoError(t, c.in.Close())
		// A start takes about as long as the start of a process and one compilation.
		time.Sleep(time.Duration(i%10) * compileTime / 2)
		require.NoError(t, c.cmd.Process.Kill())
		_ = c.cmd.Wait() // killed, or finished before
		dev := newCounted(t)
		s := start(t, dev, cache.Options{Dir: dir})
		assert.LessOrEqual(t, s.compiled, f.kernels)
		assert.Empty(t, s.warnings)
		jit.Forget(dev)
		checkClean(t, f, dir)
	}
}
