package autotune

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"sonicmoe/cache"
	"sonicmoe/driver"
)

// Options say how a Session works. The zero value is good.
type Options struct {
	// Cache gives machine code that is there already and remembers which points
	// were found right. Nil means none. Tuning stores no candidate's machine
	// code in it and no choice: see Report.Record.
	Cache *cache.Cache
	// Budget is the time for one problem; 0 means 20 s. It counts neither the
	// making of the bench nor the default's verification, which come in any case,
	// and a trial under way is not cut short.
	Budget time.Duration
	// Trial is how long one point may take to be verified or timed before it
	// counts as hung; 0 means 20 s. Setup is the same for making a bench; 0
	// means 2 minutes.
	Trial, Setup time.Duration
	// Warm is how long the default runs before measuring starts; 0 means 200 ms.
	Warm time.Duration
	// Rounds is how often the finalists are timed; 0 means 15.
	Rounds int
	// MinGain is the least gain for which the default is left, as a fraction; 0
	// means 0.01.
	MinGain float64
	// Most is how many candidates are tried, the cost model's best ones; 0
	// means all.
	Most int
	// Parallel is how many kernels are compiled at once; 0 means as many as Go
	// uses processors.
	Parallel int
	// InProcess tries points in this process, proven ones only.
	InProcess bool
	// Progress hears of each step, one at a time.
	Progress func(Progress)

	now func() time.Time // a test's clock
}

// Progress is how far a Tune is.
type Progress struct {
	Problem string
	// Stage is "compile", "verify" or "measure".
	Stage string
	// Done of Total steps of the stage are over; Point is the last.
	Done, Total int
	Point       string
	Elapsed     time.Duration
}

// Session tunes problems of one subject, one after another, on the same bench.
type Session[P comparable] struct {
	dev     driver.Device
	subject *Subject[P]
	spec    json.RawMessage
	options Options

	// scratch is the directory that workers take machine code from.
	scratch       string
	removeScratch func() error
	scratchCache  *cache.Cache
	run           runner[P]
	// noWorker says why there is no worker.
	noWorker string
}

// NewSession prepares to tune for a device, which compiles the candidates. spec
// is what the subject's bench is made from; it travels as JSON. Close the
// session in the end.
func NewSession[P comparable](dev driver.Device, s *Subject[P], spec any, o Options) (*Session[P], error) {
	set(&o.Budget, 20*time.Second)
	set(&o.Trial, 20*time.Second)
	set(&o.Setup, 2*time.Minute)
	set(&o.Warm, 200*time.Millisecond)
	set(&o.Rounds, 15)
	set(&o.MinGain, 0.01)
	if o.now == nil {
		o.now = time.Now
	}
	session := &Session[P]{dev: dev, subject: s, options: o}
	switch {
	case o.InProcess:
		session.noWorker = "points are tried in this process, as asked for"
	case !mayWork.Load():
		session.noWorker = "the program's main does not call autotune.WorkerMain"
	}
	var err error
	if session.spec, err = json.Marshal(spec); err != nil {
		return nil, fmt.Errorf("autotune: the spec of %s: %w", s.name, err)
	}
	if session.scratch, session.removeScratch, err = newScratch(); err != nil {
		return nil, err
	}
	session.scratchCache = cache.Open(cache.Options{Dir: session.scratch})
	return session, nil
}

// set gives an option its default.
func set[T time.Duration | int | float64](option *T, value T) {
	if *option <= 0 {
		*option = value
	}
}

// Close ends the worker and removes the candidates' machine code.
func (s *Session[P]) Close() error {
	s.stop()
	return s.removeScratch()
}

// stop ends the runner; the next trial starts another.
func (s *Session[P]) stop() {
	if s.run != nil {
		s.run.close()
		s.run = nil
	}
}

// start makes sure that there is a runner: a worker if possible, else this
// process.
func (s *Session[P]) start(ctx context.Context) error {
	if s.run != nil {
		return nil
	}
	if s.noWorker == "" {
		r, err := startWorker[P](ctx, hello{s.subject.name, s.spec, s.scratch}, s.options.Setup)
		if err == nil {
			s.run = r
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		s.noWorker = "the worker process did not start: " + err.Error()
	}
	bench, err := s.subject.open(ctx, Setting{Spec: s.spec, Cache: s.scratchCache, Device: s.dev})
	if err != nil {
		return fmt.Errorf("autotune: preparing to try points: %w", err)
	}
	s.run = local[P]{bench}
	return nil
}

// try tries a point, in a fresh runner if the last one was lost.
func (s *Session[P]) try(ctx context.Context, op, problem string, p P) (time.Duration, error) {
	if err := s.start(ctx); err != nil {
		return 0, err
	}
	_, here := s.run.(local[P])
	d, err := s.run.try(ctx, op, problem, p, s.options.Trial)
	var f *failure
	if errors.As(err, &f) && f.lost() || ctx.Err() != nil {
		s.stop()
		if here && f != nil {
			return 0, fmt.Errorf("autotune: %s %v, which was right before, in this process: %w", problem, p, f)
		}
	}
	return d, err
}

// SetBudget changes Options.Budget for the problems to come.
func (s *Session[P]) SetBudget(d time.Duration) { s.options.Budget = d }
