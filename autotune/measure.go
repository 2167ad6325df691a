package autotune

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"
)

// Measuring has two parts. The first part times each point a few times and drops points that
// are clearly slower. The second part times the remaining points, and only its times decide.
// Otherwise the point with the luckiest times of the first part would have an advantage.
const (
	screenRounds = 3
	// A point stays after the first part if its time is less than the fastest time multiplied by
	// hopeless. At most finalists points stay, not counting the default.
	hopeless  = 1.10
	finalists = 4
	// leastRounds is the least number of rounds of the second part. With fewer rounds the
	// default stays.
	leastRounds = 5
)

// measure times the points that were found right, in turns.
func (t *tuning[P]) measure(ctx context.Context) error {
	if err := t.warm(ctx); err != nil {
		return err
	}
	total := screenRounds*len(t.trials) + t.options.Rounds*min(len(t.trials), finalists+1)
	done := 0
	if err := t.rounds(ctx, screenRounds, &done, total); err != nil {
		return err
	}
	t.screen()
	if len(t.trials) > 1 {
		for _, c := range t.trials {
			c.times = nil
		}
		if err := t.rounds(ctx, t.options.Rounds, &done, total); err != nil {
			return err
		}
	}
	for _, c := range t.trials {
		t.summarize(c)
	}
	return nil
}

// warm runs the default until the chip is warm.
func (t *tuning[P]) warm(ctx context.Context) error {
	for start := t.options.now(); t.options.now().Sub(start) < t.options.Warm && t.trials[0].Status == Untried && !t.late(1); {
		if _, err := t.attempt(ctx, opTime, t.trials[0]); err != nil {
			return err
		}
	}
	return t.defaultLost()
}

// defaultLost returns an error if the default point has failed.
func (t *tuning[P]) defaultLost() error {
	if c := t.trials[0]; c.Status != Untried {
		return fmt.Errorf("autotune: the default %s %v was verified, but failed when it was timed: %s", t.problem.Name, c.Point, c.Reason)
	}
	return nil
}

// rounds times every trial once in each round. Each round starts with another trial, so that
// changes of the chip's speed affect all trials equally. It stops when the budget is used up.
func (t *tuning[P]) rounds(ctx context.Context, n int, done *int, total int) error {
	for round := range n {
		// A round counts only if it is complete, so that the trials' times can be compared
		// round by round. The first two rounds always run, so that the report has times.
		if round > 1 && t.late(1) {
			return nil
		}
		for i := range t.trials {
			c := t.trials[(i+round)%len(t.trials)]
			d, err := t.attempt(ctx, opTime, c)
			if err != nil {
				return err
			}
			c.times = append(c.times, d.Seconds())
			*done++
			t.say("measure", *done, total, c.Point)
		}
		t.dropFailed()
		if err := t.defaultLost(); err != nil {
			return err
		}
	}
	return nil
}

// dropFailed is like drop, but keeps the default. If the default has failed, [tuning.defaultLost]
// returns an error with the reason.
func (t *tuning[P]) dropFailed() {
	t.trials = slices.DeleteFunc(t.trials, func(c *trial[P]) bool { return c.Status != Untried && c != t.trials[0] })
}

// screen keeps the default and the fastest of the other trials.
func (t *tuning[P]) screen() {
	others := slices.Clone(t.trials[1:])
	slices.SortStableFunc(others, func(a, b *trial[P]) int {
		if median(a.times) < median(b.times) {
			return -1
		}
		return 1
	})
	fastest := median(t.trials[0].times)
	if len(others) > 0 {
		fastest = min(fastest, median(others[0].times))
	}
	keep := map[*trial[P]]bool{}
	for i, c := range others {
		if i < finalists && median(c.times) <= hopeless*fastest {
			keep[c] = true
		} else {
			t.summarize(c)
		}
	}
	t.trials = slices.DeleteFunc(t.trials, func(c *trial[P]) bool { return c != t.trials[0] && !keep[c] })
}

// summarize writes the median of a trial's times to the trial's row of the report.
func (t *tuning[P]) summarize(c *trial[P]) {
	c.Status, c.Rounds = Measured, len(c.times)
	c.Median = time.Duration(median(c.times) * float64(time.Second))
	c.Gain, c.Noise = gain(t.trials[0].times, c.times)
}

// gain returns how much faster another point is, as a fraction of the default's time, and the
// noise of this figure. Each round gives the ratio of the two times, and the gain follows from
// the median of the ratios. The noise is twice the standard error of the median, which is
// estimated from the quartiles.
func gain(base, other []float64) (gain, noise float64) {
	n := min(len(base), len(other))
	if n == 0 {
		return 0, math.Inf(1)
	}
	ratios := make([]float64, n)
	for i := range n {
		ratios[i] = other[i] / base[i]
	}
	slices.Sort(ratios)
	// For a normal distribution the standard deviation is the distance between the quartiles
	// divided by 1.349, and the standard error of the median is 1.253 times the standard error of
	// the mean.
	spread := (quantile(ratios, 0.75) - quantile(ratios, 0.25)) / 1.349
	return 1 - quantile(ratios, 0.5), 2 * 1.253 * spread / math.Sqrt(float64(n))
}

func median(x []float64) float64 {
	if len(x) == 0 {
		return math.Inf(1)
	}
	return quantile(slices.Sorted(slices.Values(x)), 0.5)
}

// quantile returns a quantile of sorted values, interpolated between neighbours.
func quantile(sorted []float64, q float64) float64 {
	at := q * float64(len(sorted)-1)
	low := int(at)
	high := min(low+1, len(sorted)-1)
	return sorted[low] + (at-float64(low))*(sorted[high]-sorted[low])
}

// decide chooses the point with the largest gain if its gain exceeds the noise and MinGain. It
// records the reason.
func (t *tuning[P]) decide() {
	r := t.report
	base := t.trials[0]
	best := base
	for _, c := range t.trials {
		if c.Gain > best.Gain {
			best = c
		}
	}
	r.PTX = base.digest
	switch {
	case len(t.trials) == 1:
		r.Why = "the default stays: no other point is nearly as fast"
	case best == base:
		r.Why = "the default stays: it is the fastest"
	case best.Rounds < leastRounds:
		r.Why = fmt.Sprintf("the default stays: %d rounds were measured, %d are needed to leave it", best.Rounds, leastRounds)
	case best.Gain <= max(best.Noise, t.options.MinGain):
		r.Why = fmt.Sprintf("the default stays: %v is faster by %.1f %%, which does not exceed the noise (%.1f %%) or the required gain (%.1f %%)",
			best.Point, 100*best.Gain, 100*best.Noise, 100*t.options.MinGain)
	default:
		r.Chosen, r.PTX = best.Point, best.digest
		r.Why = fmt.Sprintf("faster than the default by %.1f %%, noise %.1f %%", 100*best.Gain, 100*best.Noise)
	}
}
