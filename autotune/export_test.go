package autotune

import "time"

// WithClock makes a session use the clock now.
func (o Options) WithClock(now func() time.Time) Options {
	o.now = now
	return o
}

// ForgetWorkers makes the program behave as if main had not called WorkerMain. restore undoes
// this.
func ForgetWorkers() (restore func()) {
	mayWork.Store(false)
	return func() { mayWork.Store(true) }
}

// Gain returns an estimate of a gain and its noise.
var Gain = gain

// Environment returns the variables that a worker inherits.
var Environment = environment
