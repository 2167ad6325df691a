package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"sonicmoe/cache"
	"sonicmoe/driver"
	"sonicmoe/examples/bench/report"
	"sonicmoe/examples/internal/setup"
	"sonicmoe/internal/peers"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/moe"
)

// bench is one run of the command. It holds the device and the report of the measurements.
type bench struct {
	options
	ctx    context.Context // its end ends the run
	out    io.Writer       // for text that people read
	stdin  io.Reader       // the requests of -turns
	stdout io.Writer       // for output that programs read
	stderr io.Writer
	log    *slog.Logger
	dev    driver.Device
	gpu    bool
	meter  meter // reads the device's energy; nil if not possible
	report *report.Report
	pass   pass // the pass that is measured at the moment
	host   hostRuns
	// broken is the error after which the device cannot measure any more, or nil.
	broken error
}

// sustained is the time of load before the sustained measurement.
const sustained = 2 * time.Second

// open opens the device and starts the report.
func (b *bench) open() (err error) {
	if b.dev, b.gpu, err = setup.OpenDevice(b.ctx, b.device, b.stderr); err != nil {
		return err
	}
	b.host = hostRuns{batches: 1, batch: 1}
	if b.gpu {
		b.host = hostRuns{batches: 16, batch: 8}
	}
	t := b.dev.Target()
	b.report = &report.Report{
		Schema: report.Schema, Time: time.Now().UTC().Truncate(time.Second),
		Device: t.Name, Driver: b.dev.Producer(), Emulated: !b.gpu, SMs: t.SMs, Section: report.Section{Pass: b.passes[0].name},
		WarmMS: report.Milliseconds(b.warm), Repeats: b.repeats,
		RooflineTFLOPS: spec.H200.FLOPs / 1e12, RooflineTBps: spec.H200.Bytes / 1e12,
	}
	if len(b.passes) > 1 {
		b.report.Backward = &report.Section{Pass: b.passes[1].name}
	}
	if b.withStartup && b.gpu {
		b.report.Warnings = append(b.report.Warnings, driverCache(os.Getenv(noDriverCache))...)
	}
	if free, total, err := b.dev.Memory(); err == nil && b.gpu {
		b.report.Warnings = append(b.report.Warnings, otherProcess(free, total)...)
	}
	b.openMeter()
	return nil
}

// close closes the device. If the device hangs, close leaves it open until the process ends,
// because closing would wait for the device.
func (b *bench) close() error {
	if errors.Is(b.broken, context.DeadlineExceeded) {
		return nil
	}
	jit.Forget(b.dev)
	if b.meter != nil {
		return errors.Join(b.meter.Close(), b.dev.Close())
	}
	return b.dev.Close()
}

// measure measures every row, that is, every size of layer and batch, in each pass.
func (b *bench) measure(rows []peers.Row) error {
	for i, to := range b.report.Sections() {
		b.pass = b.passes[i]
		if len(b.passes) > 1 {
			fmt.Fprintf(b.out, "%s\n\n", strings.ToUpper(to.Pass))
		}
		if err := b.section(rows, to); err != nil {
			return err
		}
	}
	return nil
}

// section measures every row, which is a size of layer and batch, in one pass. If a row fails, the
// next row is still measured. The report's file is written after each row.
func (b *bench) section(rows []peers.Row, to *report.Section) error {
	for _, row := range rows {
		r := report.Row{Name: row.Name, Size: report.SizeOf(row)}
		if err := b.rowSafely(row, &r); err != nil {
			r.Error = err.Error()
		} else if b.withTurns {
			continue // nothing was measured
		}
		if b.gpu {
			r.Warnings = disturbances(r)
		}
		to.Rows = append(to.Rows, r)
		to.Summarize()
		report.PrintRow(b.out, r)
		if b.json != "" && b.json != stdoutName {
			if err := b.report.Write(b.json); err != nil {
				return err
			}
		}
	}
	return nil
}

// rowSafely calls the method row and turns a panic into an error. It opens the device again if the
// device broke.
func (b *bench) rowSafely(row peers.Row, r *report.Row) (err error) {
	if b.broken != nil {
		return fmt.Errorf("not run, the device is broken since an earlier row: %w", b.broken)
	}
	ctx, cancel := context.WithTimeoutCause(b.ctx, b.timeout, fmt.Errorf("the row took longer than %v: %w", b.timeout, context.DeadlineExceeded))
	defer cancel()
	if !b.gpu { // closing the emulated device ends its kernels
		dev := b.dev
		stop := context.AfterFunc(ctx, func() { dev.Close() })
		defer stop()
	}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
		late := err != nil && ctx.Err() != nil
		if late {
			err = context.Cause(ctx)
		}
		switch {
		case late && (b.gpu || b.ctx.Err() != nil):
			b.broken = err // a kernel that hangs blocks every later kernel
		case b.dev.Err() != nil:
			b.broken = b.reopen()
		}
	}()
	return b.row(ctx, row, r)
}

// reopen opens the device again after an error that broke it.
func (b *bench) reopen() error {
	cause := b.dev.Err()
	jit.Forget(b.dev)
	if err := b.dev.Close(); err != nil {
		fmt.Fprintln(b.stderr, "closing the broken device:", err)
	}
	dev, _, err := setup.OpenDevice(b.ctx, b.device, io.Discard) // open has already printed the device's name
	if err != nil {
		return errors.Join(cause, err)
	}
	b.dev = dev
	return nil
}

// layer compiles a layer for the pass. Every row uses the kernels for large batches; the
// small-batch kernels are measured by -decode. Packed weights have the default kernels, because those
// of package decode also serve their large batches.
func (b *bench) layer(ctx context.Context, c moe.Config, more ...moe.Option) (*moe.Layer, error) {
	opts := []moe.Option{moe.WithLogger(b.log), moe.WithCache(cache.Open(cache.Options{Dir: b.cache, Logger: b.log}))}
	if spec.IsPlain(c) {
		opts = append(opts, moe.WithoutDecode())
	}
	if !b.pass.backward {
		opts = append(opts, moe.WithoutBackward())
	}
	return moe.New(ctx, b.dev, c, append(opts, more...)...)
}

// made records the kernels that moe.New compiled or loaded, and their tilings.
func (b *bench) made(l *moe.Layer, took time.Duration, r *report.Row) {
	r.NewMS, r.New = report.Milliseconds(took), len(l.Kernels())
	for _, origin := range l.LoadedFrom() {
		if origin == jit.Compiled.String() {
			r.Compiled++
		}
	}
	for _, p := range b.pass.products {
		r.Tiles = append(r.Tiles, report.Tiled{Product: p.String(), Tiling: l.Tilings()[p.String()]})
	}
}

// release calls f, which frees a resource, for a function that defers release. It stores f's error
// in *err unless there is an earlier error. After a time-out it does not call f, because f would
// wait for a device that hangs.
func release(ctx context.Context, err *error, f func() error) {
	if ctx.Err() != nil {
		return
	}
	if e := f(); *err == nil {
		*err = e
	}
}

// row measures one size of layer and batch.
func (b *bench) row(ctx context.Context, row peers.Row, r *report.Row) (err error) {
	c := row.Config
	roofline := spec.H200.Roofline(b.pass.work(c, row.Tokens))
	r.RooflineMS = report.Milliseconds(roofline)
	r.Roofline = spec.TFLOPS(b.pass.flops(c, row.Tokens), roofline)
	start := time.Now()
	l, err := b.layer(ctx, c)
	if err != nil {
		return err
	}
	b.made(l, time.Since(start), r)
	u, err := newSubject(ctx, b.dev, l, row, b.pass)
	if err != nil {
		return err
	}
	defer release(ctx, &err, u.Close)
	t, err := b.timer(ctx, u.Stream())
	if err != nil {
		return err
	}
	defer release(ctx, &err, t.close)
	if b.withTurns {
		return turns(ctx, u.Stream(), b.stdin, b.stdout, u.queue)
	}
	for _, step := range []func(*timer, *subject, *report.Row) error{b.whole, b.byKernel, b.byEnergy, b.routings, b.points, b.startups} {
		if err := step(t, u, r); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) timer(ctx context.Context, s driver.Stream) (*timer, error) {
	t := &timer{ctx: ctx, dev: b.dev, s: s, warm: b.warm, pause: b.pause, repeats: b.repeats}
	if b.full {
		t.flushBytes = 4 * int64(b.dev.Target().L2Bytes)
		if !b.gpu {
			t.flushBytes = 1 << 16 // the emulated device has no L2 cache that a measurement must flush
		}
		var err error
		if t.flush, err = b.dev.Alloc(t.flushBytes); err != nil {
			return nil, err
		}
	}
	if b.gpu {
		t.cooling = coolPause
		var err error
		if t.clock, err = newClockProbe(ctx, b.dev, 2*rounds); err != nil {
			return nil, errors.Join(err, t.close())
		}
	}
	return t, nil
}

// whole measures the pass as a whole: single passes, graph replays, and the host's time. It
// checks that all of them give the same bits of the outputs.
func (b *bench) whole(t *timer, u *subject, r *report.Row) (err error) {
	eager := u.queue
	if err := errors.Join(u.poison(), eager()); err != nil {
		return err
	}
	first, err := u.hash(t.ctx)
	if err != nil {
		return err
	}
	if r.Eager, err = t.measureRested(eager); err != nil {
		return err
	}
	b.speeds(u, r)
	g, err := capture(t.s, eager)
	if err != nil {
		return err
	}
	defer release(t.ctx, &err, g.Close)
	replay := func() error { return g.Launch(t.s) }
	if r.Graph, err = t.measureRested(replay); err != nil {
		return err
	}
	b.speeds(u, r)
	last, err := u.hash(t.ctx)
	if err != nil {
		return err
	}
	if last != first {
		return errors.New("the outputs after back-to-back passes have other bits than after a single one")
	}
	if r.Host, err = host(t.ctx, t.s, b.host, eager, replay); err != nil || !b.full {
		return err
	}
	return b.thorough(t, u, r)
}

// capture returns a graph of the work that a function queues.
func capture(s driver.Stream, work func() error) (driver.Graph, error) {
	if err := s.BeginCapture(); err != nil {
		return nil, err
	}
	failed := work()
	g, err := s.EndCapture()
	if failed == nil || err != nil {
		return g, errors.Join(failed, err)
	}
	return nil, errors.Join(failed, g.Close())
}

// thorough adds the measurements of -full: passes with a cold L2 cache, on a rested chip, and
// under sustained load, and the energy of a pass.
func (b *bench) thorough(t *timer, u *subject, r *report.Row) (err error) {
	eager := u.queue
	if r.Flushed, err = t.cold(eager); err != nil {
		return err
	}
	long, pause, times := sustained, coolPause, coolRounds
	if !b.gpu {
		long, pause, times = t.warm, 0, 1
	}
	if r.Cool, err = t.cool(times, pause, eager); err != nil {
		return err
	}
	if r.Sustained, err = t.measure(long, eager); err != nil || b.meter == nil {
		return err
	}
	if r.Energy, err = t.energy(b.meter, energyLoad, energyTime, eager); err != nil {
		return err
	}
	r.Energy.PicojoulesPerFLOP = 1e12 * r.Energy.Joules / b.pass.flops(u.row.Config, u.row.Tokens)
	return nil
}

// speeds computes speeds and ratios from the times measured so far.
func (b *bench) speeds(u *subject, r *report.Row) {
	ms := r.Eager.MedianMS
	if r.Graph != nil {
		ms = min(ms, r.Graph.MedianMS)
	}
	r.TFLOPS = b.pass.flops(u.row.Config, u.row.Tokens) / ms / 1e9
	r.Peers = peersOf(u.row, b.pass)
	for i := range r.Peers {
		r.Peers[i].Ratio = r.TFLOPS / r.Peers[i].TFLOPS
	}
}

// byKernel measures each kernel of the pass, in a run of the whole pass.
func (b *bench) byKernel(t *timer, u *subject, r *report.Row) (err error) {
	if r.Kernels, err = t.kernels(u.Call(), u.queue); err != nil {
		return err
	}
	r.KernelSumMS = 0
	for i := range r.Kernels {
		k := &r.Kernels[i]
		r.KernelSumMS += k.MedianMS
		if w, ms, ok := workOf(k.Name, u.row.Config, u.row.Tokens); ok {
			k.RooflineMS, k.TFLOPS, k.TBps = ms, w.FLOPs/k.MedianMS/1e9, w.Bytes/k.MedianMS/1e9
		}
	}
	return nil
}

// routings measures the experts with each distribution of rows over experts.
func (b *bench) routings(t *timer, u *subject, r *report.Row) error {
	for _, kind := range b.kinds {
		ids, err := route(kind, u.row.Config, u.row.Tokens)
		if err != nil {
			return err
		}
		if err := u.setRouting(ids); err != nil {
			return err
		}
		sample, err := t.measureRested(u.queueExperts)
		if err != nil {
			return err
		}
		v := report.Routing{Kind: kind, Sample: *sample, RowsPerSecond: float64(len(ids)) / sample.MedianMS * 1e3}
		v.Largest, v.Empty = load(ids, u.row.Config.NumExperts)
		v.Uniform = 1
		if len(r.Routing) > 0 {
			v.Uniform = v.RowsPerSecond / r.Routing[0].RowsPerSecond
		}
		r.Routing = append(r.Routing, v)
	}
	return nil
}
