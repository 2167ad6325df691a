package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/examples/bench/report"
	"sonicmoe/internal/reference"
	"sonicmoe/jit"
	"sonicmoe/jit/gemm"
	"sonicmoe/jit/tile"
)

// This file measures -causes: the energy of tensor cores, shared memory, the L2 cache, device memory
// and issue, by probes in steady load.

// causesTime is the time of load, and then of measurement, of each probe.
const causesTime = 2 * time.Second

// causes measures each probe.
func (b *bench) causes() error {
	if b.meter == nil {
		return fmt.Errorf("-causes needs a GPU with an energy counter: %s", strings.Join(b.report.Warnings, ", "))
	}
	s, err := b.dev.NewStream()
	if err != nil {
		return err
	}
	defer s.Close()
	t, err := b.timer(b.ctx, s)
	if err != nil {
		return err
	}
	defer t.close()
	bed, err := newProbeBed(b.dev, s, b.gpu)
	if err != nil {
		return err
	}
	defer bed.close()
	w := tabwriter.NewWriter(b.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "probe\tms\tW\tSM GHz\tunits a s\tpJ a unit\tless idle power\tunit")
	var idle float64
	for _, p := range probes {
		e, err := b.cause(t, bed, p)
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		if p.counted == 0 {
			idle = e.Watts
			fmt.Fprintf(w, "%s\t%.4f\t%.0f\t%.3f\n", p.name, e.MS, e.Watts, e.GHz)
			continue
		}
		units := p.counted * float64(bed.kTiles) * float64(b.dev.Target().SMs)
		fmt.Fprintf(w, "%s\t%.4f\t%.0f\t%.3f\t%.4g\t%.4g\t%.4g\t%s\n", p.name, e.MS, e.Watts, e.GHz, 1e3*units/e.MS,
			1e12*e.Joules/units, 1e9*(e.Watts-idle)*e.MS/units, p.unit)
	}
	return w.Flush()
}

// cause measures the energy of one launch of a probe.
func (b *bench) cause(t *timer, bed *probeBed, p probe) (*report.Energy, error) {
	launch, err := bed.load(t.ctx, p)
	if err != nil {
		return nil, err
	}
	span := causesTime
	if !b.gpu {
		span = 100 * time.Millisecond
	}
	return t.energy(b.meter, span, span, launch)
}

// probeBed holds the tensors of the probes.
type probeBed struct {
	dev    driver.Device
	stream driver.Stream
	kTiles int // of a launch
	run    probeRun
}

// newProbeBed allocates tensors for the probes and fills them with random numbers.
func newProbeBed(dev driver.Device, s driver.Stream, gpu bool) (*probeBed, error) {
	bed := &probeBed{dev: dev, stream: s, kTiles: 8}
	if gpu {
		bed.kTiles = 8192
	}
	sms := dev.Target().SMs
	bed.run = probeRun{Rows: sms * gemm.TileM, KTiles: bed.kTiles}
	for _, of := range []struct {
		at    *driver.DevicePtr
		bytes int64
	}{
		{&bed.run.A, int64(bed.run.Rows) * int64(2*bed.columns(manyColumns))},
		{&bed.run.B, probeTilesOfB * probeN * int64(2*bed.columns(fewColumns))},
		{&bed.run.Out, int64(sms) * 4 * gemm.MathThreads},
	} {
		var err error
		if *of.at, err = dev.Alloc(of.bytes); err != nil {
			return nil, errors.Join(err, bed.close())
		}
		if err = fill(s, *of.at, of.bytes/2, repeatAfter, reference.NewNormal(3, 1)); err != nil {
			return nil, errors.Join(err, bed.close())
		}
	}
	return bed, nil
}

// columns returns the number of columns of A for a probe: not more than a launch loads.
func (bed *probeBed) columns(most int) int { return min(most, tile.K*bed.kTiles) }

// load compiles a probe and returns a function that queues a launch.
func (bed *probeBed) load(ctx context.Context, p probe) (func() error, error) {
	k, err := p.build()
	if err != nil {
		return nil, err
	}
	fn, err := jit.Of(bed.dev).Load(ctx, nil, k.Source("probe: "+p.name), gpu.CompileOptions{})
	if err != nil {
		return nil, err
	}
	run, launcher := bed.run, k.Launcher(fn)
	run.Columns = bed.columns(p.columns)
	run.Mask = run.Columns/tile.K - 1
	return func() error { return launcher.Launch(bed.stream, run) }, nil
}

func (bed *probeBed) close() error {
	return errors.Join(bed.dev.Free(bed.run.A), bed.dev.Free(bed.run.B), bed.dev.Free(bed.run.Out))
}
