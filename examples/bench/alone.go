package main

import (
	"errors"
	"fmt"
	"strings"

	"sonicmoe/driver"
	"sonicmoe/examples/bench/report"
	"sonicmoe/moe/tools"
)

// This file measures -alone: the energy of each large kernel of a pass in steady load, without the
// pass's other kernels.

const (
	// largeKernel is the share of a pass from which a kernel counts as large. Smaller kernels take
	// less time than their launch, and all their data fits in the L2 cache.
	largeKernel = 0.02
	// leastAlone and mostAlone bound the time of a kernel alone, divided by its time in the pass. A
	// kernel that takes less time has not done its work. If it takes more time, the device has waited
	// for the host.
	leastAlone, mostAlone = 0.5, 1.3
	// batchMS is the milliseconds of repeats that are queued at once, so that the host never lets
	// the device wait.
	batchMS = 4.0
	// planMS is about the time of a plan with the pause before its launch.
	planMS = 0.02
)

// single is one kernel of a pass. plans has the kernels that must run before each repeat of the
// kernel, because they set the counters from which CTAs draw tiles to 0.
type single struct {
	kernel driver.Graph
	plans  []driver.Graph
}

func (s single) close() error {
	var errs []error
	for _, g := range append(s.plans, s.kernel) {
		if g != nil {
			errs = append(errs, g.Close())
		}
	}
	return errors.Join(errs...)
}

// errIsolated stops a pass after the isolated kernel.
var errIsolated = errors.New("isolated")

// isolate returns the kernel with the given number in the order of the pass. It runs the pass up
// to this kernel, so that the kernel's inputs are in place.
func (u *subject) isolate(number int) (of single, err error) {
	at, capturing := -1, false
	end := func() error {
		if !capturing {
			return nil
		}
		capturing = false
		g, err := u.Stream().EndCapture()
		switch {
		case err != nil:
			return err
		case at == number:
			of.kernel = g
			return nil
		}
		of.plans = append(of.plans, g)
		return g.Launch(u.Stream())
	}
	u.Call().Observe(func(name string, s driver.Stream) error {
		if err := end(); err != nil {
			return err
		}
		if at++; at > number {
			return errIsolated
		}
		if at == number || strings.HasPrefix(name, "plan") {
			capturing = true
			return s.BeginCapture()
		}
		return nil
	})
	defer u.Call().Observe(nil)
	if err = u.queue(); err == errIsolated {
		err = nil
	}
	if err = errors.Join(err, end()); err == nil && of.kernel == nil {
		err = fmt.Errorf("the pass has %d kernels, must have kernel %d", at+1, number)
	}
	if err != nil {
		return single{}, errors.Join(err, of.close())
	}
	return of, nil
}

// byEnergy measures the energy of each large kernel that the roofline counts.
func (b *bench) byEnergy(t *timer, u *subject, r *report.Row) error {
	if b.alone == 0 || b.meter == nil {
		return nil
	}
	planning := map[int]*report.Energy{} // energy of the plans, by their number
	for i := range r.Kernels {
		k := &r.Kernels[i]
		if k.RooflineMS == 0 || k.MedianMS < largeKernel*r.KernelSumMS {
			continue
		}
		if err := b.kernelEnergy(t, u, k, i, planning); err != nil {
			return fmt.Errorf("%s alone: %w", k.Name, err)
		}
		if r := k.Alone.MS / k.MedianMS; !b.report.Emulated && (r < leastAlone || r > mostAlone) {
			return fmt.Errorf("%s alone takes %.4f ms, and %.4f ms in the pass: it has not done the same work without pauses", k.Name, k.Alone.MS, k.MedianMS)
		}
	}
	return nil
}

// kernelEnergy measures the energy of one kernel. For a product, it measures the product with the
// plans, and subtracts the plans.
func (b *bench) kernelEnergy(t *timer, u *subject, k *report.Kernel, number int, planning map[int]*report.Energy) (err error) {
	one, err := u.isolate(number)
	if err != nil {
		return err
	}
	defer release(t.ctx, &err, one.close)
	if tools.ProductOf(k.Name) == nil {
		k.Alone, err = b.repeat(t, k.MedianMS, one.kernel)
		return err
	}
	n := len(one.plans)
	if planning[n] == nil {
		if planning[n], err = b.repeat(t, planMS, one.plans...); err != nil {
			return err
		}
	}
	e, err := b.repeat(t, k.MedianMS, append(one.plans, one.kernel)...)
	if err != nil {
		return err
	}
	e.MS -= planning[n].MS
	e.Joules -= planning[n].Joules
	e.Watts = 1e3 * e.Joules / e.MS
	if w, _, ok := workOf(k.Name, u.row.Config, u.row.Tokens); ok && w.FLOPs > 0 {
		e.PicojoulesPerFLOP = 1e12 * e.Joules / w.FLOPs
	}
	k.Alone = e
	return nil
}

// repeat measures the energy of graphs that are launched one after another, again and again. ms is
// the approximate time of one repeat.
func (b *bench) repeat(t *timer, ms float64, list ...driver.Graph) (*report.Energy, error) {
	batch := max(1, int(batchMS/ms))
	e, err := t.energy(b.meter, b.alone, b.alone, func() error {
		for i := range batch * len(list) {
			if err := list[i%len(list)].Launch(t.s); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	e.Passes *= batch
	e.MS /= float64(batch)
	e.Joules /= float64(batch)
	return e, nil
}
