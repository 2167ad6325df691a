package main

import (
	"fmt"

	"sonicmoe/examples/bench/report"
)

// These are the bounds of a measurement that counts as undisturbed.
const (
	calmSpread = 0.06 // largest accepted (slowest - fastest) / median
	calmClock  = 0.03 // largest relative difference of the GPU's clock between two rounds of a repeated measurement
	lowestGHz  = 1.2  // an H200 at its power limit still has a higher clock
	otherBytes = 4 << 30
)

// disturbances returns a warning for each sign that something disturbed the measurement of a
// row.
func disturbances(r report.Row) (warnings []string) {
	for _, m := range []struct {
		name string
		s    *report.Sample
	}{{"eager", r.Eager}, {"graph", r.Graph}, {"sustained", r.Sustained}} {
		if m.s == nil {
			continue
		}
		if spread := m.s.Spread(); spread > calmSpread {
			warnings = append(warnings, fmt.Sprintf("%s: repeats differ by %.0f %%: another process, or clocks that change", m.name, 100*spread))
		}
		low, high := m.s.Clocks()
		switch {
		case high == 0:
		case high > low*(1+calmClock):
			warnings = append(warnings, fmt.Sprintf("%s: the SM clock went from %.2f to %.2f GHz between parts of the repeats", m.name, low, high))
		case low < lowestGHz:
			warnings = append(warnings, fmt.Sprintf("%s: the SM clock was %.2f GHz: something throttles the chip", m.name, low))
		}
	}
	return warnings
}

// otherProcess returns a warning if much device memory is in use before this program allocates
// any.
func otherProcess(free, total int64) []string {
	if used := total - free; used > otherBytes {
		return []string{fmt.Sprintf("%.1f GiB of the device's memory are in use already: another process may disturb the measurement", float64(used)/(1<<30))}
	}
	return nil
}
