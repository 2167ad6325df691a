package tune

import (
	"context"
	"fmt"
	"slices"
	"time"

	"sonicmoe/driver"
	"sonicmoe/jit/gemm"
)

// repeats is the number of runs of which Time returns the median.
const repeats = 3

// span has the events before and after a kernel.
type span [2]driver.Event

// errTimed stops a pass after the timed kernel.
var errTimed = fmt.Errorf("timed")

// Time implements autotune.Bench. It queues its runs without a pause, as in a training step, so
// that the chip does not cool down. On a cool chip other tilings would be fastest.
func (b *bench) Time(ctx context.Context, product string, p gemm.Tiling) (time.Duration, error) {
	a, runs, err := b.problem(ctx, product, p)
	if err != nil {
		return 0, err
	}
	for _, around := range b.spans {
		if err := b.queue(a, runs, around); err != nil {
			return 0, err
		}
	}
	if err := a.layer.Explain(b.trial.Stream().Synchronize(ctx)); err != nil {
		return 0, err
	}
	var times [repeats]time.Duration
	for i, around := range b.spans {
		if times[i], err = around[1].Since(around[0]); err != nil {
			return 0, err
		}
	}
	slices.Sort(times[:])
	return times[repeats/2], nil
}

// queue queues the pass of runs[0] up to and with the product's kernel, and an event before and an
// event after that kernel.
func (b *bench) queue(a *candidate, runs []run, around span) error {
	// The pass may run another kernel of the product than the kernel that the run names. This
	// happens if logits have gradients in addition to the gradients of scores.
	var kernels []string
	for _, r := range runs {
		kernels = append(kernels, r.kernel)
	}
	recorded, r := 0, runs[0]
	a.call.Observe(func(name string, s driver.Stream) error {
		switch {
		case recorded == 0 && slices.Contains(kernels, name):
			recorded = 1
			return around[0].Record(s)
		case recorded == 1:
			recorded = 2
			if err := around[1].Record(s); err != nil {
				return err
			}
			return errTimed
		}
		return nil
	})
	defer a.call.Observe(nil)
	if err := r.do(a.call); err != nil && err != errTimed {
		return err
	}
	switch recorded {
	case 0:
		return fmt.Errorf("the pass has no kernel %q", r.kernel)
	case 1: // the kernel was the last one of its pass
		return around[1].Record(b.trial.Stream())
	}
	return nil
}
