//go:build unix

package command

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/child"
)

// TestMain runs a program in the child processes that the tests start. The role of a child is
// the path of a pipe that the program opens. The role "sleep" makes the program run for a
// minute after the end of its context.
func TestMain(m *testing.M) {
	how := child.Role()
	if how == "" {
		os.Exit(m.Run())
	}
	p := Program{Name: "child"}
	if how == "sleep" {
		p.Drain = time.Minute
	}
	p.Main(func(ctx context.Context, _ []string, stdout, _ io.Writer) error {
		io.WriteString(stdout, "begun\n")
		if how != "sleep" {
			_, err := os.Open(how)
			return err
		}
		<-ctx.Done()
		io.WriteString(stdout, "ended\n")
		time.Sleep(time.Minute)
		return nil
	})
}

// deadline returns a context that ends after some time, which kills a child process that a
// signal has not ended.
func deadline(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// TestSignalWhileOpeningAPipe checks that a program that waits for a pipe ends soon
// after the signal.
func TestSignalWhileOpeningAPipe(t *testing.T) {
	exe, err := os.Executable()
	require.NoError(t, err)
	pipe := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	cmd := exec.CommandContext(deadline(t), exe)
	cmd.Env = child.Env(pipe)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	require.True(t, bufio.NewScanner(out).Scan())
	time.Sleep(50 * time.Millisecond) // until the program waits for the pipe
	start := time.Now()
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.Error(t, cmd.Wait())
	assert.Less(t, time.Since(start), 5*time.Second)
	assert.Equal(t, Failed, cmd.ProcessState.ExitCode())
	assert.Equal(t, "child: ended by a signal in the middle of its work\n", errs.String())
}

// TestSignals checks that the first signal ends the context and the second ends the
// process, for SIGINT and SIGTERM in any order.
func TestSignals(t *testing.T) {
	exe, err := os.Executable()
	require.NoError(t, err)
	for _, c := range [][2]syscall.Signal{{syscall.SIGINT, syscall.SIGINT}, {syscall.SIGTERM, syscall.SIGTERM}, {syscall.SIGTERM, syscall.SIGINT}} {
		if signal.Ignored(c[1]) {
			continue // a shell's background job ignores SIGINT, and so does its child
		}
		cmd := exec.CommandContext(deadline(t), exe)
		cmd.Env = child.Env("sleep")
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		lines := bufio.NewScanner(out)
		require.True(t, lines.Scan())
		require.Equal(t, "begun", lines.Text())
		require.NoError(t, cmd.Process.Signal(c[0]))
		require.True(t, lines.Scan())
		require.Equal(t, "ended", lines.Text())
		var status syscall.WaitStatus
		for pid := 0; pid == 0; time.Sleep(time.Millisecond) {
			_ = cmd.Process.Signal(c[1]) // the second signal may arrive before the first has ended the context
			pid, err = syscall.Wait4(cmd.Process.Pid, &status, syscall.WNOHANG, nil)
			require.NoError(t, err)
		}
		assert.True(t, status.Signaled() && status.Signal() == c[1], "%v: %v", c, status)
	}
}
