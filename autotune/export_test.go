package autotune

import "time"

// WithClock runs a session on a test's clock.
func (o Options) WithClock(now func() time.Time) Options {
	o.now = now
	return o
}

// ForgetWorkers makes the program one whose main does not call WorkerMain,
// until the function that it returns is called.
func ForgetWorkers() (restore func()) {
	mayWork.Store(false)
	return func() { mayWork.Store(true) }
}

// Gain is the estimate of a gain and its noise.
var Gain = gain
