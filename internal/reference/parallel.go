package reference

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// each calls do for tasks 0..n-1, each once, on all processors.
func each(n int, do func(task int)) { parallel(n, func() func(int) { return do }) }

// parallel runs tasks 0..n-1, each once, on all processors. Each worker calls start once, and
// then the returned function for each of its tasks. start can therefore allocate memory for one
// worker.
func parallel(n int, start func() func(task int)) {
	workers := min(n, runtime.GOMAXPROCS(0))
	if workers <= 1 {
		do := start()
		for i := range n {
			do(i)
		}
		return
	}
	var next atomic.Int64
	var wait sync.WaitGroup
	for range workers {
		wait.Go(func() {
			do := start()
			for i := int(next.Add(1) - 1); i < n; i = int(next.Add(1) - 1) {
				do(i)
			}
		})
	}
	wait.Wait()
}
