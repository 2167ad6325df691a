package main

import (
	"errors"
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
	if !b.gpu || !b.full && !b.withCauses && b.alone == 0 && b.other == "" {
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

// energyLoad and energyTime are the times of load and of measurement for a whole pass.
const (
	energyLoad = 2 * time.Second
	energyTime = 3 * time.Second
)

// gauge computes the mean power from the readings of a meter. The device's counter advances in
// steps, up to 100 ms apart. The gauge therefore counts only the time between the first and the last
// step that it sees.
type gauge struct {
	read        time.Time // time of the latest reading
	latest      float64   // joules of the latest reading
	first, last struct {
		at     time.Time
		joules float64
	}
}

// readingPause is the time between two readings. A reading takes some milliseconds on some machines.
const readingPause = 2 * time.Millisecond

// watch reads a meter in a goroutine of its own, so that the goroutine that queues work never waits
// for a reading. The result ends the readings and returns the mean power.
func watch(m meter) (end func() (watts float64, err error)) {
	var g gauge
	stop, failed := make(chan struct{}), make(chan error)
	go func() {
		for {
			j, err := m.Joules()
			if err != nil {
				<-stop
				failed <- err
				return
			}
			g.note(time.Now(), j)
			select {
			case <-stop:
				failed <- nil
				return
			case <-time.After(readingPause):
			}
		}
	}()
	return func() (float64, error) {
		close(stop)
		if err := <-failed; err != nil {
			return 0, err
		}
		return g.watts()
	}
}

// note takes in a reading.
func (g *gauge) note(now time.Time, joules float64) {
	if !g.read.IsZero() && joules != g.latest {
		g.last.at, g.last.joules = now, joules
		if g.first.at.IsZero() {
			g.first = g.last
		}
	}
	g.read, g.latest = now, joules
}

// watts returns the mean power.
func (g *gauge) watts() (float64, error) {
	seconds := g.last.at.Sub(g.first.at).Seconds()
	if seconds == 0 {
		return 0, errors.New("the energy counter has not advanced twice during the measurement: measure for a longer time")
	}
	return (g.last.joules - g.first.joules) / seconds, nil
}

// energy measures the energy of work that is repeated back to back, after a load. The time is
// the host's, from one moment at which the stream is idle to another.
func (t *timer) energy(m meter, load, span time.Duration, work func() error) (*report.Energy, error) {
	if err := t.load(load, work); err != nil {
		return nil, err
	}
	if err := errors.Join(t.readClock(0), t.s.Synchronize(t.ctx)); err != nil {
		return nil, err
	}
	start, passes, end := time.Now(), 0, watch(m)
	err := errors.Join(t.load(span, func() error {
		passes++
		return work()
	}), t.s.Synchronize(t.ctx))
	seconds := time.Since(start).Seconds()
	watts, noWatts := end()
	if err = errors.Join(err, noWatts); err != nil {
		return nil, err
	}
	e := &report.Energy{Passes: passes, MS: 1e3 * seconds / float64(passes), Joules: watts * seconds / float64(passes), Watts: watts}
	if t.clock == nil {
		return e, nil
	}
	if err := errors.Join(t.readClock(1), t.s.Synchronize(t.ctx)); err != nil {
		return nil, err
	}
	e.GHz, err = t.clock.gigahertz(t.s, 0, 1)
	return e, err
}
