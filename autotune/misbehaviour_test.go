//go:build unix

package autotune_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/autotune"
	"sonicmoe/jit"
	"sonicmoe/ptx"
)

// odd is a point whose bench misbehaves in the way that the point describes.
type odd struct {
	N    int
	What string
}

func (o odd) String() string { return o.What }

// oddBench misbehaves as its points describe. It needs no device.
type oddBench struct{}

var oddities = autotune.NewSubject("autotune test oddities", func(_ context.Context, s autotune.Setting) (autotune.Bench[odd], error) {
	if strings.Contains(string(s.Spec), "half a line") {
		fmt.Print("half a line without an end ")
	}
	return oddBench{}, nil
})

// fakeReply prints a reply in the form of an older protocol, which must be ignored.
func fakeReply(text string) { fmt.Printf("autotune-reply:%s\n%s\n", text, text) }

// big is the number of bytes that a point with much output prints.
const big = 64 << 20

func (oddBench) Verify(_ context.Context, _ string, p odd) error {
	chunk := []byte(strings.Repeat("z", 1<<20))
	switch p.What {
	case "garbage":
		for range 1000 {
			fmt.Println("\x00\xff{]autotune-reply", strings.Repeat("x", 300))
		}
	case "no newline":
		fmt.Print("progress 50%")
	case "a reply of its own", "wrong":
		if p.What != "wrong" {
			fakeReply(`{"N":3,"Error":""}`)
		}
		return errors.New("I am wrong")
	case "ten replies":
		for n := range 10 {
			fakeReply(fmt.Sprintf(`{"N":%d,"Error":""}`, n))
		}
		return errors.New("I am wrong")
	case "writes to the pipe":
		syscall.Write(4, []byte(`{"N":1,"Error":"of another","Time":7}`+"\nno reply\n"+`{"N":99,"Error":""}`+"\n"))
		return errors.New("I am wrong")
	case "broken JSON":
		fakeReply(`{"Error":`)
	case "a line of 3 MiB":
		fmt.Println(strings.Repeat("y", 3<<20))
	case "much output", "much in one line", "much on stderr":
		to := os.Stdout
		if p.What == "much on stderr" {
			to = os.Stderr
		}
		for range big / len(chunk) {
			to.Write(chunk)
			if p.What == "much output" {
				to.WriteString("\n")
			}
		}
	case "an error of 3 MiB":
		return errors.New("wrong " + strings.Repeat("ä", 3<<19))
	case "kill -9 self":
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	case "stop self":
		syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		time.Sleep(time.Hour)
	case "closes stdout":
		os.Stdout.Close()
	case "closes stdin":
		os.Stdin.Close()
	case "closes every pipe":
		for fd := range 10 {
			syscall.Close(fd)
		}
		time.Sleep(time.Hour)
	case "sleeps":
		time.Sleep(time.Hour)
	case "grandchild and exit", "grandchild and hang":
		c := exec.Command("sleep", "5")
		c.Stdout, c.Stderr = os.Stdout, os.Stderr
		if err := c.Start(); err != nil {
			return err
		}
		if p.What == "grandchild and exit" {
			os.Exit(3)
		}
		time.Sleep(time.Hour)
	case "panics":
		panic("boom")
	case "eats memory":
		hold := make([][]byte, 4)
		for i := range hold {
			hold[i] = make([]byte, 64<<20)
		}
		runtime.KeepAlive(hold)
	case "leaks files":
		out, _ := exec.Command("ls", "-l", "/proc/self/fd").Output()
		for _, fd := range []string{"3", "4"} {
			if pipe, err := os.Readlink("/proc/self/fd/" + fd); err == nil && strings.Contains(string(out), pipe) {
				return fmt.Errorf("a process of a candidate has the worker's file %s: %s", fd, out)
			}
		}
	}
	return nil
}

func (oddBench) Time(_ context.Context, _ string, p odd) (time.Duration, error) {
	switch p.What {
	case "a negative time":
		return -time.Second, nil
	case "no time":
		return 0, nil
	}
	return time.Duration(1000+p.N) * time.Microsecond, nil
}

func (oddBench) Close() error { return nil }

func oddSource(p odd) ([]jit.Source, error) {
	k := ptx.NewKernel("k")
	k.SetLaunchBounds(32, 1)
	ptx.StGlobal(k.ParamPtr("out"), ptx.Uint(p.N))
	m, err := k.Build()
	return []jit.Source{{Module: m, Name: "k"}}, err
}

// children returns the number of child processes of this process, zombies included.
func children(t *testing.T) (n int) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	require.NoError(t, err)
	for _, file := range stats {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		if f := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:])); len(f) > 1 && f[1] == fmt.Sprint(os.Getpid()) {
			n++
		}
	}
	return n
}

// TestMisbehaviour checks candidates that misbehave in their worker process. Each must get the
// right status, must not affect the default or the next candidate, and must leave no goroutine,
// process or file.
func TestMisbehaviour(t *testing.T) {
	const none, trial = "", 1500 * time.Millisecond
	t.Setenv("TMPDIR", t.TempDir())
	dev := newDevice(t)
	for _, c := range []struct {
		what   string
		status autotune.Status
		says   string
		within time.Duration // the time in which the search must end
	}{
		{"fine", autotune.Measured, none, trial},
		{"garbage", autotune.Measured, none, trial},
		{"no newline", autotune.Measured, none, trial},
		{"wrong", autotune.Wrong, "I am wrong", trial},
		{"a reply of its own", autotune.Wrong, "I am wrong", trial},
		{"ten replies", autotune.Wrong, "I am wrong", trial},
		{"writes to the pipe", autotune.Wrong, "I am wrong", trial},
		{"broken JSON", autotune.Measured, none, trial},
		{"a line of 3 MiB", autotune.Measured, none, trial},
		{"much output", autotune.Measured, none, 2 * trial},
		{"much in one line", autotune.Measured, none, 2 * trial},
		{"much on stderr", autotune.Measured, none, 2 * trial},
		{"an error of 3 MiB", autotune.Wrong, "wrong ää", trial},
		{"kill -9 self", autotune.Died, "killed", trial},
		{"stop self", autotune.Hung, "no answer", 3 * trial},
		{"closes stdout", autotune.Measured, none, trial},
		{"closes stdin", autotune.Measured, none, trial},
		{"closes every pipe", autotune.Died, "the worker process ended", 3 * trial},
		{"sleeps", autotune.Hung, "no answer", 3 * trial},
		{"grandchild and exit", autotune.Died, "exit status 3", trial},
		{"grandchild and hang", autotune.Hung, "no answer", 3 * trial},
		{"panics", autotune.Died, "boom", trial},
		{"eats memory", autotune.Measured, none, trial},
		{"a negative time", autotune.Wrong, "-1s, must be positive", trial},
		{"no time", autotune.Wrong, "0s, must be positive", trial},
		{"half a line", autotune.Measured, none, trial},
		{"leaks files", autotune.Measured, none, trial},
	} {
		t.Run(c.what, func(t *testing.T) {
			goroutines, processes := runtime.NumGoroutine(), children(t)
			s, err := autotune.NewSession(dev, oddities, c.what, autotune.Options{Trial: trial, Setup: 10 * time.Second, Rounds: 5, Warm: time.Nanosecond})
			require.NoError(t, err)
			start := time.Now()
			point, after := odd{100, c.what}, odd{200, "after"}
			r, err := s.Tune(t.Context(), autotune.Problem[odd]{Name: "odd", Default: odd{500, "default"}, Sources: oddSource,
				Space: []autotune.Candidate[odd]{{Point: point, Estimate: 1}, {Point: after, Estimate: 2}}})
			took := time.Since(start)
			require.NoError(t, err)
			require.NoError(t, s.Close())
			row := r.Row(point)
			assert.Equal(t, c.status, row.Status, row.Reason)
			assert.Contains(t, row.Reason, c.says)
			assert.Less(t, len(row.Reason), 64<<10)
			if c.status == autotune.Measured {
				assert.Equal(t, 1100*time.Microsecond, row.Median)
				assert.Equal(t, point, r.Chosen)
			} else {
				assert.Equal(t, after, r.Chosen)
			}
			assert.Equal(t, 1500*time.Microsecond, r.Row(r.Default).Median, "the default's own time")
			assert.Equal(t, 1200*time.Microsecond, r.Row(after).Median)
			assert.Equal(t, "a worker process", r.Where)
			assert.Less(t, took, c.within)
			for end := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > goroutines || children(t) > processes; time.Sleep(5 * time.Millisecond) {
				require.True(t, time.Now().Before(end), "%d goroutines were %d, %d processes were %d", runtime.NumGoroutine(), goroutines, children(t), processes)
			}
		})
	}
	left, err := filepath.Glob(filepath.Join(os.Getenv("TMPDIR"), "sonicmoe-autotune-*"))
	require.NoError(t, err)
	assert.Empty(t, left)
}
