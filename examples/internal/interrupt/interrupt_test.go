//go:build unix

package interrupt_test

import (
	"bufio"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/examples/internal/interrupt"
)

// child is set in the process that the test starts: a program that says when
// its context has ended, and then hangs.
const child = "SONICMOE_INTERRUPT_TEST"

func TestMain(m *testing.M) {
	if os.Getenv(child) != "" {
		ctx, stop := interrupt.Context()
		defer stop()
		os.Stdout.WriteString("begun\n")
		<-ctx.Done()
		os.Stdout.WriteString("ended\n")
		time.Sleep(time.Minute)
		os.Exit(1) // it must not come to the tests, whose child it is
	}
	os.Exit(m.Run())
}

// The first signal ends the context, the second the process, whichever they are.
func TestSignals(t *testing.T) {
	exe, err := os.Executable()
	require.NoError(t, err)
	for _, c := range [][2]syscall.Signal{{syscall.SIGINT, syscall.SIGINT}, {syscall.SIGTERM, syscall.SIGTERM}, {syscall.SIGTERM, syscall.SIGINT}} {
		if signal.Ignored(c[1]) {
			continue // as in a shell's background: a child inherits that
		}
		cmd := exec.CommandContext(t.Context(), exe)
		cmd.Env = append(os.Environ(), child+"=1")
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
			_ = cmd.Process.Signal(c[1]) // the first may come before its turn
			pid, err = syscall.Wait4(cmd.Process.Pid, &status, syscall.WNOHANG, nil)
			require.NoError(t, err)
		}
		assert.True(t, status.Signaled() && status.Signal() == c[1], "%v: %v", c, status)
	}
}
