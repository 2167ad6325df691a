package reference

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// parallel does tasks 0..n-1, each once, on all processors. start is called
// once a worker and gives the function that does a task: what it allocates is
// that worker's own.
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
