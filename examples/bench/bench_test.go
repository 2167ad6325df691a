package main

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver/emulated"
	"sonicmoe/driver/faulty"
	"sonicmoe/moe/reference"
	"sonicmoe/moe/spec"
)

// onDevice is a bench on an emulated device that can be made to fail, treated
// as a GPU: clocks are read, the cache flushed.
func onDevice(t *testing.T, out io.Writer, args ...string) (*bench, *faulty.Device) {
	t.Helper()
	b := &bench{options: parsed(t, append([]string{"-device", "emulated", "-cache", "off", "-warm", "0", "-repeats", "1"}, args...)...),
		out: out, stderr: io.Discard, stdout: io.Discard, log: slog.New(slog.DiscardHandler)}
	require.NoError(t, b.open())
	require.NoError(t, b.dev.Close())
	inner, err := emulated.New(emulated.Options{})
	require.NoError(t, err)
	dev := faulty.Wrap(inner)
	b.dev, b.gpu = dev, true
	t.Cleanup(func() { b.close() })
	return b, dev
}

func smallest(t *testing.T, n int) (rows []spec.Row) {
	t.Helper()
	for range n {
		r, err := parseShape("8,128,64,2,1")
		require.NoError(t, err)
		rows = append(rows, r)
	}
	return rows
}

// Whichever call fails, the row says so, nothing of it stays on the device, and
// the next row runs.
func TestCallFails(t *testing.T) {
	for _, op := range []faulty.Op{faulty.Alloc, faulty.NewStream, faulty.NewEvent, faulty.Launch, faulty.Record, faulty.EndCapture, faulty.GraphLaunch, faulty.StreamSynchronize} {
		t.Run(op.String(), func(t *testing.T) {
			b, dev := onDevice(t, io.Discard)
			dev.Arm(faulty.Fault{Op: op, N: 1})
			require.NoError(t, b.measure(smallest(t, 2)))
			require.True(t, dev.Disarm())
			require.Contains(t, b.report.Rows[0].Error, "made to fail")
			require.Empty(t, b.report.Rows[1].Error)
			live := dev.Live()
			live.Modules = 0 // are kept for later layers
			require.Equal(t, faulty.Live{}, live)
		})
	}
}

// A broken device is opened again for the next row.
func TestDeviceBreaks(t *testing.T) {
	var out bytes.Buffer
	b, dev := onDevice(t, &out)
	dev.Arm(faulty.Fault{Op: faulty.Launch, N: 7, Break: true})
	require.NoError(t, b.measure(smallest(t, 2)))
	require.Contains(t, b.report.Rows[0].Error, "broke the device")
	require.Empty(t, b.report.Rows[1].Error)
	require.NotSame(t, dev, b.dev)
	require.Equal(t, 1, b.report.failed())
}

// A row that takes too long ends the run's measuring, not the run.
func TestTimeout(t *testing.T) {
	var out bytes.Buffer
	b, _ := onDevice(t, &out)
	b.timeout = time.Nanosecond
	require.NoError(t, b.measure(smallest(t, 2)))
	require.ErrorIs(t, b.broken, context.DeadlineExceeded)
	require.Contains(t, b.report.Rows[1].Error, "not run, the device is broken since an earlier row")
	require.Equal(t, 2, strings.Count(out.String(), "ERROR"))
	require.NoError(t, b.close())
}

// A panic is a row's error.
func TestPanic(t *testing.T) {
	b, _ := onDevice(t, io.Discard)
	b.pass.work = nil
	require.NoError(t, b.measure(smallest(t, 1)))
	require.Contains(t, b.report.Rows[0].Error, "panic: ")
}

// Expert weights that repeat are as long as they must be, and everything is
// random where it counts.
func TestSubject(t *testing.T) {
	b, _ := onDevice(t, io.Discard)
	row := smallest(t, 1)[0]
	l, err := b.layer(context.Background(), row.Config)
	require.NoError(t, err)
	s, err := b.dev.NewStream()
	require.NoError(t, err)
	u, err := newSubject(b.dev, s, l, row)
	require.NoError(t, err)
	defer u.close()
	const n, period = 1000, 64 + 8
	p, err := u.alloc(2 * n)
	require.NoError(t, err)
	require.NoError(t, u.fill(p, n, period, reference.NewNormal(1, 1)))
	got := make([]byte, 2*n)
	require.NoError(t, s.CopyToHost(got, p))
	require.Equal(t, got[:2*(n-period)], got[2*period:])
	require.NotEqual(t, got[:64], got[64:128])

	require.NoError(t, u.poisonO())
	_, err = u.hashO(context.Background())
	require.ErrorContains(t, err, "O of token 0, column 0 has the bits 0xffff")
	require.NoError(t, u.queue(b.pass)())
	_, err = u.hashO(context.Background())
	require.NoError(t, err)
}
