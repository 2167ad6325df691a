package autotune

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"sonicmoe/jit"
)

// tuning is the state of a running Session.Tune.
type tuning[P comparable] struct {
	*Session[P]
	problem Problem[P]
	report  *Report[P]
	// trials holds the candidates that are still being tried, the default first.
	trials []*trial[P]
	proven *proven
	start  time.Time
	// waited is the time spent waiting for the bench. It does not count towards the budget.
	waited time.Duration
	saying sync.Mutex
}

// trial is a candidate that is being tried.
type trial[P comparable] struct {
	*Row[P]
	digest string
	// code is the digest of the compiled machine code.
	code  [sha256.Size]byte
	times []float64 // in seconds, one for each round
}

// verifyShare is the share of the budget after which no more points are compiled or verified.
const verifyShare = 0.6

// Tune searches the problem's space and returns a report. It stores only the records of points that
// were found right. It returns an error if ctx ends, if the bench cannot be made, or if the default
// has wrong results. The report then explains the wrong results. Bad candidates are not errors.
func (s *Session[P]) Tune(ctx context.Context, p Problem[P]) (*Report[P], error) {
	t := &tuning[P]{Session: s, problem: p, start: s.options.now(),
		report: &Report[P]{Problem: p.Name, Key: p.Key, Default: p.Default, Chosen: p.Default}}
	err := t.search(ctx)
	t.report.Took = t.elapsed()
	t.report.Where = "a worker process"
	if s.noWorker != "" {
		t.report.Where = "this process, points found right before only: " + s.noWorker
	}
	return t.report, err
}

func (t *tuning[P]) search(ctx context.Context) error {
	t.enumerate()
	// The bench is made while the candidates are compiled.
	ready := make(chan error, 1)
	go func() { ready <- t.Session.start(ctx) }()
	err := t.compile(ctx)
	compiled := t.options.now()
	if e := <-ready; err == nil {
		err = e
	}
	if err != nil {
		return err
	}
	t.waited = t.options.now().Sub(compiled)
	t.dropDuplicates()
	if err := t.verify(ctx); err != nil {
		return err
	}
	if err := t.measure(ctx); err != nil {
		return err
	}
	t.decide()
	return nil
}

func (t *tuning[P]) elapsed() time.Duration { return t.options.now().Sub(t.start) }

// late reports whether the given share of the budget is used up.
func (t *tuning[P]) late(share float64) bool {
	return (t.elapsed() - t.waited).Seconds() >= share*t.options.Budget.Seconds()
}

func (t *tuning[P]) say(stage string, done, total int, p P) {
	if t.options.Progress == nil {
		return
	}
	t.saying.Lock()
	defer t.saying.Unlock()
	t.options.Progress(Progress{t.problem.Name, stage, done, total, fmt.Sprint(p), t.elapsed()})
}

// enumerate makes a row of the report for each candidate: first the default, then the others in
// the order of their estimates, and rejected ones last.
func (t *tuning[P]) enumerate() {
	rows := []*Row[P]{{Point: t.problem.Default}}
	for _, c := range t.problem.Space {
		if c.Point == t.problem.Default {
			rows[0].Estimate = c.Estimate
			continue
		}
		row := &Row[P]{Point: c.Point, Estimate: c.Estimate}
		if c.Rejected != "" {
			row.Status, row.Reason = Rejected, c.Rejected
		}
		rows = append(rows, row)
	}
	slices.SortStableFunc(rows[1:], func(a, b *Row[P]) int {
		return cmp.Or(cmp.Compare(a.Status, b.Status), cmp.Compare(a.Estimate, b.Estimate))
	})
	for _, row := range rows {
		if row.Status != Rejected {
			if most := t.options.Most; most > 0 && len(t.trials) >= most {
				row.Status, row.Reason = Skipped, fmt.Sprintf("not among the %d candidates with the best estimates", most)
			} else {
				t.trials = append(t.trials, &trial[P]{Row: row})
			}
		}
	}
	t.report.Rows = rows
}

// drop removes the trials that already have a result, such as Wrong or Duplicate.
func (t *tuning[P]) drop() {
	t.trials = slices.DeleteFunc(t.trials, func(c *trial[P]) bool { return c.Status != Untried })
}

// compile emits and compiles the candidates, several at once, and stores the machine code
// for the runner.
func (t *tuning[P]) compile(ctx context.Context) error {
	parallel := t.options.Parallel
	if parallel <= 0 {
		parallel = runtime.GOMAXPROCS(0)
	}
	var g errgroup.Group
	g.SetLimit(parallel)
	var mu sync.Mutex
	done := 0
	for i, c := range t.trials {
		g.Go(func() error {
			if i > 0 && t.late(verifyShare) || ctx.Err() != nil {
				return nil
			}
			origins, err := t.build(ctx, c)
			mu.Lock()
			done++
			for _, o := range origins {
				if o == jit.Compiled {
					t.report.Compiled++
				}
			}
			if err != nil {
				c.Status, c.Reason = Unbuilt, err.Error()
			}
			n := done
			mu.Unlock()
			t.say("compile", n, len(t.trials), c.Point)
			return nil
		})
	}
	_ = g.Wait() // the goroutines return no errors
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("autotune: compiling %s: %w", t.problem.Name, err)
	}
	if c := t.trials[0]; c.Status == Unbuilt {
		return fmt.Errorf("autotune: the default %s %v can't be built: %s", t.problem.Name, c.Point, c.Reason)
	}
	for _, c := range t.trials {
		if c.Status == Untried && c.digest == "" {
			c.Status, c.Reason = Skipped, outOfTime
		}
	}
	t.drop()
	return nil
}

const outOfTime = "the time budget was used up"

// build compiles one candidate.
func (t *tuning[P]) build(ctx context.Context, c *trial[P]) ([]jit.Origin, error) {
	sources, err := t.problem.Sources(c.Point)
	if err != nil {
		return nil, err
	}
	var origins []jit.Origin
	h := sha256.New()
	for _, source := range sources {
		b, err := jit.Build(ctx, t.options.Cache, t.dev.Target().Arch, t.dev, source, t.problem.Compile)
		if err != nil {
			return origins, err
		}
		origins = append(origins, b.Origin)
		sum := sha256.Sum256(b.Code())
		fmt.Fprintf(h, "%x %d\n", sum, source.SharedBytes)
		b.Put(t.scratchCache)
	}
	h.Sum(c.code[:0])
	c.digest = Digest(sources)
	return origins, nil
}

// dropDuplicates keeps the first of the candidates that compiled to the same bytes.
func (t *tuning[P]) dropDuplicates() {
	first := map[[sha256.Size]byte]*trial[P]{}
	for _, c := range t.trials {
		if of := first[c.code]; of != nil {
			c.Status, c.Reason = Duplicate, fmt.Sprintf("compiles to the bytes of %v", of.Point)
		} else {
			first[c.code] = c
		}
	}
	t.drop()
}

// verify checks the results of every candidate.
func (t *tuning[P]) verify(ctx context.Context) error {
	t.proven = readProven(t.options.Cache, t.problem.Key, t.dev.Producer())
	defer func() { t.proven.write(t.options.Cache) }()
	total := len(t.trials)
	for i, c := range t.trials {
		if i > 0 && t.late(verifyShare) {
			c.Status, c.Reason = Skipped, outOfTime
			continue
		}
		// The default needs no proof, because the caller uses it anyway.
		if i > 0 && t.noWorker != "" && !t.proven.has(c.digest) {
			c.Status, c.Reason = Unproven, "no worker has verified it on this GPU yet"
		} else {
			at := t.options.now()
			if err := t.verifyOne(ctx, c); err != nil {
				return err
			}
			if i == 0 {
				t.waited += t.options.now().Sub(at)
			}
		}
		if i == 0 && c.Status != Untried {
			return fmt.Errorf("autotune: the default %s %v is not right: %s", t.problem.Name, c.Point, c.Reason)
		}
		t.say("verify", i+1, total, c.Point)
	}
	t.drop()
	return nil
}

// verifyOne verifies one candidate. A wrong candidate may have damaged the bench's data.
// verifyOne then verifies the default again, and ends the runner if the default is wrong, too.
// The next trial makes a new bench.
func (t *tuning[P]) verifyOne(ctx context.Context, c *trial[P]) error {
	if _, err := t.attempt(ctx, opVerify, c); err != nil {
		return err
	}
	switch {
	case c.Status == Untried:
		t.proven.add(c.digest)
	case c.Status == Wrong && c != t.trials[0] && t.trials[0].Status == Untried:
		if _, err := t.try(ctx, opVerify, t.problem.Name, t.problem.Default); ctx.Err() != nil {
			return ctx.Err()
		} else if err != nil {
			t.stop()
		}
	}
	return nil
}

// attempt tries a candidate and records its status. A failure of the candidate is recorded as
// its status. attempt returns an error only if tuning cannot continue.
func (t *tuning[P]) attempt(ctx context.Context, op string, c *trial[P]) (time.Duration, error) {
	d, err := t.try(ctx, op, t.problem.Name, c.Point)
	if f, ok := err.(*failure); ok { // the failure of a candidate is never wrapped; a wrapped failure ends tuning
		c.Status, c.Reason = f.status, f.reason
		return 0, nil
	}
	return d, err
}
