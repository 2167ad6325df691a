package moe_test

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/internal/trial"
)

// timedPass is a pass of a trial's that is timed beside others.
type timedPass struct {
	of  *trial.Trial
	run func() error
}

// rest is a pause between passes in which the chip cools: it neither gets hotter nor
// lowers its clock, as it does under load, by more than most of what is compared.
const rest = 25 * time.Millisecond

// inTurns times passes beside each other, turn by turn, and gives each one's
// milliseconds: behind a pause it runs twice, the second time between events.
func inTurns(t *testing.T, turns int, pause time.Duration, passes []timedPass) [][]float64 {
	begin, end := newEvent(t), newEvent(t)
	times := make([][]float64, len(passes))
	eachTurn(t, turns, pause, passes, func(i int) {
		p := passes[i]
		require.NoError(t, begin.Record(p.of.Stream()))
		require.NoError(t, p.run())
		require.NoError(t, end.Record(p.of.Stream()))
		require.NoError(t, p.of.Stream().Synchronize(testContext(t)))
		d, err := end.Since(begin)
		require.NoError(t, err)
		times[i] = append(times[i], float64(d)/1e6)
	})
	return times
}

// kernelsInTurns are rested inTurns of the passes' kernels, each in its place.
func kernelsInTurns(t *testing.T, turns int, passes []timedPass) []map[string][]float64 {
	var names []string
	var events []driver.Event // as many as the longest pass has marks
	mark := func(name string, s driver.Stream) error {
		if len(names) == len(events) {
			events = append(events, newEvent(t))
		}
		names = append(names, name)
		return events[len(names)-1].Record(s)
	}
	times := make([]map[string][]float64, len(passes))
	eachTurn(t, turns, rest, passes, func(i int) {
		p := passes[i]
		names = names[:0]
		p.of.Call().Observe(mark)
		require.NoError(t, p.run())
		p.of.Call().Observe(nil)
		require.NoError(t, mark("", p.of.Stream()))
		require.NoError(t, p.of.Stream().Synchronize(testContext(t)))
		took := map[string]float64{}
		for j, name := range names[:len(names)-1] {
			d, err := events[j+1].Since(events[j])
			require.NoError(t, err)
			took[name] += float64(d) / 1e6
		}
		if times[i] == nil {
			times[i] = map[string][]float64{}
		}
		for name, ms := range took {
			times[i][name] = append(times[i][name], ms)
		}
	})
	return times
}

// eachTurn runs each pass, and then timed for it, behind a pause: through the list
// and back again.
func eachTurn(t *testing.T, turns int, pause time.Duration, passes []timedPass, timed func(i int)) {
	for turn := range turns {
		for i := range passes {
			if turn%2 == 1 {
				i = len(passes) - 1 - i
			}
			time.Sleep(pause)
			require.NoError(t, passes[i].run())
			timed(i)
		}
	}
}

func newEvent(t *testing.T) driver.Event {
	e, err := testDevice(t).NewEvent()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	return e
}

// more is how much longer than before it took after, in percent of the same turn.
type more struct {
	// Median is between Low and High with a confidence of 95 %, by the signs of the
	// turns; the middle half of the turns is between Lower and Upper.
	Median, Low, High, Lower, Upper float64
}

func moreThan(before, after []float64) more {
	var list []float64
	for i := range before {
		list = append(list, 100*after[i]/before[i]-100)
	}
	slices.Sort(list)
	n := len(list)
	off := int(math.Ceil(0.98 * math.Sqrt(float64(n))))
	return more{list[n/2], list[max(0, n/2-off)], list[min(n-1, n/2+off)], list[n/4], list[3*n/4]}
}

func (m more) String() string {
	return fmt.Sprintf("%+.2f %% (%+.2f to %+.2f; half of the turns %+.2f to %+.2f)", m.Median, m.Low, m.High, m.Lower, m.Upper)
}

func middle(list []float64) float64 {
	list = slices.Sorted(slices.Values(list))
	return list[len(list)/2]
}
