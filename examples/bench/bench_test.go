package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/emulated"
	"sonicmoe/examples/bench/report"
	"sonicmoe/internal/faulty"
	"sonicmoe/internal/peers"
	"sonicmoe/internal/reference"
)

// onDevice returns a bench on an emulated device that can be made to fail. The bench
// treats it as a GPU: it reads clocks and flushes the cache.
func onDevice(t *testing.T, out io.Writer, args ...string) (*bench, *faulty.Device) {
	t.Helper()
	b := &bench{options: parsed(t, append([]string{"-device", "emulated", "-cache", "off", "-warm", "0", "-repeats", "1"}, args...)...),
		ctx: t.Context(), out: out, stderr: io.Discard, stdout: io.Discard, log: slog.New(slog.DiscardHandler)}
	require.NoError(t, b.open())
	require.NoError(t, b.dev.Close())
	inner, err := emulated.New(emulated.Options{})
	require.NoError(t, err)
	dev := faulty.Wrap(inner)
	b.dev, b.gpu = dev, true
	t.Cleanup(func() { b.close() })
	return b, dev
}

func smallest(t *testing.T, n int) (rows []peers.Row) {
	t.Helper()
	for range n {
		r, err := report.Size{Shape: "128,64,2,1", Tokens: 8}.Row()
		require.NoError(t, err)
		rows = append(rows, r)
	}
	return rows
}

// TestCallFails lets each kind of driver call fail. The report's row must have the failure, nothing
// of this measurement may stay on the device, and the next row must be measured.
func TestCallFails(t *testing.T) {
	if testing.Short() {
		t.Skip("too long for -short")
	}
	for _, op := range []faulty.Op{faulty.Alloc, faulty.NewStream, faulty.NewEvent, faulty.Launch, faulty.Record, faulty.EndCapture, faulty.GraphLaunch, faulty.StreamSynchronize} {
		t.Run(op.String(), func(t *testing.T) {
			b, dev := onDevice(t, io.Discard)
			dev.Arm(faulty.Fault{Op: op, N: 1})
			require.NoError(t, b.measure(smallest(t, 2)))
			require.True(t, dev.Disarm())
			require.Contains(t, b.report.Rows[0].Error, "made to fail")
			require.Empty(t, b.report.Rows[1].Error)
			live := dev.Live()
			live.Modules = 0 // loaded modules stay, for later layers
			require.Equal(t, faulty.Live{}, live)
		})
	}
}

// TestDeviceBreaks checks that a device that broke is opened again for the next benchmark row.
func TestDeviceBreaks(t *testing.T) {
	var out bytes.Buffer
	b, dev := onDevice(t, &out)
	dev.Arm(faulty.Fault{Op: faulty.Launch, N: 7, Break: true})
	require.NoError(t, b.measure(smallest(t, 2)))
	require.Contains(t, b.report.Rows[0].Error, "broke the device")
	require.Empty(t, b.report.Rows[1].Error)
	require.NotSame(t, dev, b.dev)
	require.Equal(t, 1, b.report.Failed())
}

// TestTimeout checks that a benchmark row that takes too long ends the measurements, but that the
// run still ends in an orderly way.
func TestTimeout(t *testing.T) {
	var out bytes.Buffer
	b, _ := onDevice(t, &out)
	b.timeout = time.Nanosecond
	require.NoError(t, b.measure(smallest(t, 2)))
	require.ErrorIs(t, b.broken, context.DeadlineExceeded)
	require.Contains(t, b.report.Rows[0].Error, "the row took longer than 1ns")
	require.Contains(t, b.report.Rows[1].Error, "not run, the device is broken since an earlier row")
	require.Equal(t, 2, strings.Count(out.String(), "ERROR"))
	require.NoError(t, b.close())
}

// TestEmulatedTimeout checks that on the emulated device a benchmark row that takes too long is
// stopped, and that the next row runs.
func TestEmulatedTimeout(t *testing.T) {
	b := &bench{options: parsed(t, "-device", "emulated", "-cache", "off", "-warm", "0", "-repeats", "1", "-timeout", "200ms"),
		ctx: t.Context(), out: io.Discard, stderr: io.Discard, stdout: io.Discard, log: slog.New(slog.DiscardHandler)}
	require.NoError(t, b.open())
	defer func() { require.NoError(t, b.close()) }()
	long := smallest(t, 1)[0]
	long.Tokens = 1 << 16
	start := time.Now()
	require.NoError(t, b.measure([]peers.Row{long}))
	require.Less(t, time.Since(start), 20*time.Second)
	require.Contains(t, b.report.Rows[0].Error, "the row took longer than 200ms")
	b.timeout = time.Minute
	require.NoError(t, b.measure(smallest(t, 1)))
	require.Empty(t, b.report.Rows[1].Error)
}

// TestPanic checks that a panic during the measurement of a row becomes the error of the row.
func TestPanic(t *testing.T) {
	b, _ := onDevice(t, io.Discard)
	b.passes[0].work = nil
	require.NoError(t, b.measure(smallest(t, 1)))
	require.Contains(t, b.report.Rows[0].Error, "panic: ")
}

// TestSubject checks that random expert weights repeat after their period, and that a wrong
// output is found.
func TestSubject(t *testing.T) {
	b, _ := onDevice(t, io.Discard)
	row := smallest(t, 1)[0]
	l, err := b.layer(context.Background(), row.Config)
	require.NoError(t, err)
	u, err := newSubject(context.Background(), b.dev, l, row, passes["forward"])
	require.NoError(t, err)
	s := u.Stream()
	defer u.Close()
	const n, period = 1000, 64 + 8
	p := u.Memory().Buffer(2 * n).Ptr
	require.NoError(t, u.Memory().Err())
	require.NoError(t, fill(u.Stream(), p, n, period, reference.NewNormal(1, 1)))
	got := make([]byte, 2*n)
	require.NoError(t, s.CopyToHost(got, p))
	require.Equal(t, got[:2*(n-period)], got[2*period:])
	require.NotEqual(t, got[:64], got[64:128])

	require.NoError(t, u.poison())
	_, err = u.hash(context.Background())
	require.ErrorContains(t, err, "O, row 0, column 0 has the bits 0xffff")
	require.NoError(t, u.queue())
	_, err = u.hash(context.Background())
	require.NoError(t, err)
}

// TestBackwardSubject checks that all outputs of a backward pass are checked (gradients of
// weights in sampled rows) and that the workspace is large enough for every layer.
func TestBackwardSubject(t *testing.T) {
	b, dev := onDevice(t, io.Discard, "-pass", "backward")
	b.pass = b.passes[0]
	row := smallest(t, 1)[0]
	ctx := context.Background()
	l, err := b.layer(ctx, row.Config)
	require.NoError(t, err)
	idle := dev.Live()
	u, err := newSubject(ctx, b.dev, l, row, b.pass)
	require.NoError(t, err)
	s := u.Stream()
	sizes, err := l.Sizes(row.Tokens)
	require.NoError(t, err)
	require.Equal(t, sizes.BackwardWorkspace, u.Back.Workspace.Bytes)
	for _, want := range []string{"DX, row 0", "DRouter, row 0", "DW1, row 0", "DW2, row 0"} {
		require.NoError(t, u.queue())
		first, err := u.hash(ctx)
		require.NoError(t, err)
		require.NoError(t, u.Stream().Fill32(u.outputs[0].Ptr, 0x3f803f80, 1))
		other, err := u.hash(ctx)
		require.NoError(t, err)
		require.NotEqual(t, first, other)
		name, _, _ := strings.Cut(want, ",")
		for _, o := range u.outputs {
			if o.name == name {
				require.NoError(t, s.Fill32(o.Ptr, 0xffffffff, 1))
			}
		}
		_, err = u.hash(ctx)
		require.ErrorContains(t, err, want+", column 0 has the bits 0xffff")
	}
	last := u.outputs[3]
	require.Equal(t, "DW2", last.name)
	require.NoError(t, u.queue())
	at := last.sample[len(last.sample)-1]
	require.NoError(t, s.Fill32(last.Ptr+driver.DevicePtr(2*at*last.width()), 0xffffffff, 1))
	_, err = u.hash(ctx)
	require.ErrorContains(t, err, fmt.Sprintf("DW2, row %d, column 0", at))
	require.NoError(t, u.Close())
	require.Equal(t, idle, dev.Live())
}

// TestSubjectOutOfMemory checks that if any allocation fails, nothing stays on the
// device.
func TestSubjectOutOfMemory(t *testing.T) {
	b, dev := onDevice(t, io.Discard, "-pass", "backward")
	b.pass = b.passes[0]
	row := smallest(t, 1)[0]
	l, err := b.layer(context.Background(), row.Config)
	require.NoError(t, err)
	idle := dev.Live()
	const buffers = 15 // 8 buffers of the forward pass, 6 of the backward pass, and the workspace
	for n := range int64(buffers) {
		dev.Arm(faulty.Fault{Op: faulty.Alloc, N: n + 1})
		_, err := newSubject(context.Background(), b.dev, l, row, b.pass)
		require.ErrorContains(t, err, "made to fail")
		require.True(t, dev.Disarm())
		require.Equal(t, idle, dev.Live())
	}
}

// TestSameBits checks that the error names the tilings whose outputs differ.
func TestSameBits(t *testing.T) {
	sums := map[string]string{"dx 128x128 s4": "1", "dx 128x128 s5": "1"}
	require.NoError(t, sameBits(sums))
	sums["dx 128x128 s5"] = "2"
	require.ErrorContains(t, sameBits(sums), "dx 128x128 s5 and with dx 128x128 s4")
}

// TestHostTimes checks that each call is timed by itself, and that the times are sorted.
func TestHostTimes(t *testing.T) {
	b, _ := onDevice(t, io.Discard)
	s, err := b.dev.NewStream()
	require.NoError(t, err)
	calls := 0
	call := func() error {
		calls++
		if calls == 5 {
			time.Sleep(20 * time.Millisecond)
		}
		return nil
	}
	runs := hostRuns{batches: 3, batch: 4}
	all, err := runs.times(context.Background(), s, call)
	require.NoError(t, err)
	require.Len(t, all, 12)
	require.Equal(t, 12, calls)
	require.True(t, sort.Float64sAreSorted(all))
	require.Greater(t, all[11], 2e4, "the slow one, in microseconds")
	var answers strings.Builder
	require.NoError(t, turns(context.Background(), s, strings.NewReader("2\n3\n"), &answers, call))
	require.Equal(t, 17, calls)
	for i, line := range strings.Split(strings.TrimSpace(answers.String()), "\n") {
		var of []float64
		require.NoError(t, json.Unmarshal([]byte(line), &of))
		require.Len(t, of, 2+i)
	}
	for _, wrong := range []string{"0\n", "many\n", "\n"} {
		require.ErrorContains(t, turns(context.Background(), s, strings.NewReader(wrong), io.Discard, call), "must have a number of calls")
	}
	h, err := host(context.Background(), s, runs, call, call)
	require.NoError(t, err)
	require.Less(t, h.EagerUS, 1e4)
	require.LessOrEqual(t, h.EagerLowUS, h.EagerUS)
	require.LessOrEqual(t, h.EagerUS, h.EagerHighUS)
	require.Zero(t, h.GraphAllocs)
}
