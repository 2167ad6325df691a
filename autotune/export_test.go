package autotune

import "time"

// WithClock makes a session read the time from the function now.
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

// Gain gives tests access to gain.
var Gain = gain

// Environment gives tests access to environment.
var Environment = environment
