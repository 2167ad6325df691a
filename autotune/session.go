package autotune

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"sonicmoe/cache"
	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
)

// Options configure a Session. The zero value is a good default.
type Options struct {
	// Cache supplies machine code of earlier compilations. Tuning records in it which points
	// were found right, but stores neither choices (see Report.Record) nor machine code of
	// candidates. Nil means no cache.
	Cache *cache.Cache
	// Budget is the time for one problem; 0 means 20 s. Making the bench and verifying the
	// default always happen and do not count. A trial that has started when the time is up is
	// completed.
	Budget time.Duration
	// Trial is the longest time in which one point may be verified or timed; after it the point
	// counts as hung. 0 means 20 s. Setup is the longest time in which a bench may be made; 0
	// means 2 minutes.
	Trial, Setup time.Duration
	// Warm is the time for which the default runs before points are measured; 0 means 2 s, after
	// which a GPU at its power limit has its steady clock.
	Warm time.Duration
	// Rounds is the number of times that each finalist is timed; 0 means 15.
	Rounds int
	// MinGain is the smallest gain, as a fraction of the default's time, with which another
	// point replaces the default; 0 means 0.01.
	MinGain float64
	// Most is the largest number of candidates to try. The candidates with the smallest
	// estimates are tried. 0 means all.
	Most int
	// Parallel is the number of kernels that are compiled at once; 0 means GOMAXPROCS.
	Parallel int
	// InProcess tries points in this process, without a worker. Only points that are already
	// proven right are then tried.
	InProcess bool
	// Progress is called after each step. Calls do not overlap.
	Progress func(Progress)

	now func() time.Time // the clock, which tests replace
}

// Progress describes how far Session.Tune has come.
type Progress struct {
	Problem string
	// Stage is "compile", "verify" or "measure".
	Stage string
	// Done is the number of finished steps of the stage, and Total is the number of all its steps.
	// Point is the point of the last step.
	Done, Total int
	Point       string
	Elapsed     time.Duration
}

// Session tunes problems of one subject, one after another, with the same bench.
type Session[P comparable] struct {
	dev     gpu.Device
	subject *Subject[P]
	spec    json.RawMessage
	options Options

	// scratch is the directory from which workers load machine code.
	scratch       string
	removeScratch func() error
	scratchCache  *cache.Cache
	run           runner[P]
	// noWorker is the reason why no worker can be used, or "".
	noWorker string
}

// NewSession prepares to tune for a device, which compiles the candidates. spec is the input
// for the subject's bench, and is sent to workers as JSON. Close the session after use.
func NewSession[P comparable](dev driver.Device, s *Subject[P], spec any, o Options) (*Session[P], error) {
	set(&o.Budget, 20*time.Second)
	set(&o.Trial, 20*time.Second)
	set(&o.Setup, 2*time.Minute)
	set(&o.Warm, 2*time.Second)
	set(&o.Rounds, 15)
	set(&o.MinGain, 0.01)
	if o.now == nil {
		o.now = time.Now
	}
	runs, err := gpu.Of(dev)
	if err != nil {
		return nil, err
	}
	session := &Session[P]{dev: runs, subject: s, options: o}
	switch {
	case o.InProcess:
		session.noWorker = "points are tried in this process, as requested"
	case !mayWork.Load():
		session.noWorker = "the program's main does not call autotune.WorkerMain"
	}
	if session.spec, err = json.Marshal(spec); err != nil {
		return nil, fmt.Errorf("autotune: the spec of %s: %w", s.name, err)
	}
	if session.scratch, session.removeScratch, err = newScratch(); err != nil {
		return nil, err
	}
	session.scratchCache = cache.Open(cache.Options{Dir: session.scratch})
	return session, nil
}

// set sets an option to its default value if the option is not above 0.
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

// stop ends the runner. The next trial starts another one.
func (s *Session[P]) stop() {
	if s.run != nil {
		s.run.close()
		s.run = nil
	}
}

// start ensures that there is a runner. It starts a worker if possible, and otherwise uses this
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

// try tries a point. If the previous runner was lost, it first starts a new one.
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
			return 0, fmt.Errorf("autotune: %s %v was verified before, but failed in this process: %w", problem, p, f)
		}
	}
	return d, err
}

// SetBudget changes Options.Budget for later problems.
func (s *Session[P]) SetBudget(d time.Duration) { s.options.Budget = d }
