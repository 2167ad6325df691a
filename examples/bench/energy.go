package main

import (
	"fmt"
	"time"

	"sonicmoe/driver/cuda"
	"sonicmoe/examples/bench/report"
	"sonicmoe/examples/internal/nvml"
)

// meter reads the energy in joules that the device has used so far.
type meter interface {
	Joules() (float64, error)
	Close() error
}

// openMeter opens the device's energy meter. If there is none, the report has a warning with
// the reason, and no energy.
func (b *bench) openMeter() {
	if !b.full || !b.gpu {
		return
	}
	bus, err := cuda.PCIBusID(b.dev)
	if err == nil {
		var m *nvml.Meter
		if m, err = nvml.Open(bus); err == nil {
			b.meter = m
			return
		}
	}
	b.report.Warnings = append(b.report.Warnings, fmt.Sprintf("no energy is measured: %v", err))
}

// Energy is measured over a long time of work, because the device's counter advances in steps
// of up to 100 ms.
const (
	energyLoad = 2 * time.Second
	energyTime = 3 * time.Second
)

// energy measures the energy of work that is repeated back to back, after a load. The time is
// the host's, from one moment at which the stream is idle to another.
func (t *timer) energy(m meter, load, span time.Duration, work func() error) (*report.Energy, error) {
	if err := t.load(load, work); err != nil {
		return nil, err
	}
	if err := t.s.Synchronize(t.ctx); err != nil {
		return nil, err
	}
	before, err := m.Joules()
	if err != nil {
		return nil, err
	}
	start, passes := time.Now(), 0
	if err := t.load(span, func() error {
		passes++
		return work()
	}); err != nil {
		return nil, err
	}
	if err := t.s.Synchronize(t.ctx); err != nil {
		return nil, err
	}
	seconds := time.Since(start).Seconds()
	after, err := m.Joules()
	if err != nil {
		return nil, err
	}
	n := float64(passes)
	return &report.Energy{Passes: passes, MS: 1e3 * seconds / n, Joules: (after - before) / n, Watts: (after - before) / seconds}, nil
}
