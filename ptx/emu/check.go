package emu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Finding is a fault, with the launch options (timing, seed, choices) under which it first
// occurred.
type Finding struct {
	*Fault
	// Timing, Seed and Choices describe the first run with the fault. A launch with the same
	// values, with Races set and Parallel = 1, reproduces the fault.
	Timing  Timing
	Seed    uint64
	Choices string
	// Runs is the number of runs with this fault.
	Runs int
	last int // number of the latest run with this fault
}

// Findings is the error that [Kernel.Check] and [Kernel.Explore] return. errors.As finds the faults
// in it.
type Findings struct {
	List []Finding
	Runs int // Runs is the number of runs that Check or Explore made.
	// Exploration reports how many orders Explore has covered. It is nil for Check.
	Exploration *Exploration
}

// Error returns a text with one paragraph for each finding.
func (f *Findings) Error() string {
	var b strings.Builder
	runs := numbered(f.Runs, "run")
	b.WriteString(numbered(len(f.List), "finding") + " in " + runs)
	for i := range f.List {
		x := &f.List[i]
		fmt.Fprintf(&b, "\n%v (%d of %s, first with timing %v", x.Fault, x.Runs, runs, x.Timing)
		switch x.Timing {
		case Random:
			fmt.Fprintf(&b, ", seed %d", x.Seed)
		case Chosen:
			fmt.Fprintf(&b, ", choices %q", x.Choices)
		}
		b.WriteString(")")
	}
	if f.Exploration != nil {
		fmt.Fprintf(&b, "\n%v", f.Exploration)
	}
	return b.String()
}

// numbered returns a count with its noun, in the plural unless n is 1.
func numbered(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}

// Severity returns the worst severity of the findings.
func (f *Findings) Severity() Severity {
	worst := Note
	for i := range f.List {
		worst = min(worst, f.List[i].Severity)
	}
	return worst
}

// Unwrap returns the faults.
func (f *Findings) Unwrap() []error {
	list := make([]error, len(f.List))
	for i := range f.List {
		list[i] = f.List[i].Fault
	}
	return list
}

// Check launches the kernel 2+seeds times on the same memory contents: with Early, with Late, and
// with random orders, whose seeds start at l.Seed. All runs look for races. Afterwards the memory
// holds the result of the Early run. If the kernel broke a rule in any run, the error is *Findings,
// which also has the findings after which a run went on (see Launch.GoOn). Otherwise the error is
// as for [Kernel.Launch]. If l.Report is set, one more run with Early and without race checks fills
// it.
func (k *Kernel) Check(ctx context.Context, mem *Memory, l Launch, seeds int) error {
	l.Races, l.Parallel = true, 1 // one goroutine makes findings reproducible
	found := &Findings{Runs: 2 + seeds}
	err := mem.unchanged(k.module, func(restore func()) error {
		if err := k.report(ctx, mem, &l, restore); err != nil {
			return err
		}
		stream := l.Stream.Clone()
		for i := range found.Runs {
			run := l
			if i > 0 {
				run.Stream, run.Print = stream.Clone(), nil
			}
			switch i {
			case 0:
				run.Timing = Early
			case 1:
				run.Timing = Late
			default:
				run.Timing, run.Seed = Random, l.Seed+uint64(i-2)
			}
			if i > 0 {
				restore()
			}
			if err := found.launch(ctx, k, mem, run, i); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil && len(found.List) > 0 {
		return found
	}
	return err
}

// Once launches the kernel once, with the options of l, for example to replay a finding. The error
// is *Findings if the kernel broke a rule; it also has the findings after which the launch went on.
func (k *Kernel) Once(ctx context.Context, mem *Memory, l Launch) error {
	found := &Findings{Runs: 1}
	if err := found.launch(ctx, k, mem, l, 0); err != nil {
		return err
	}
	if len(found.List) > 0 {
		return found
	}
	return nil
}

// launch runs the kernel and adds the faults of this run to f.
func (f *Findings) launch(ctx context.Context, k *Kernel, mem *Memory, run Launch, number int) error {
	var passed []*Fault
	run.GoOn = keeping(run.GoOn, &passed)
	err := k.Launch(ctx, mem, run)
	if !errors.As(err, new(*Fault)) && err != nil {
		return err
	}
	f.add(run, number, passed, err)
	return nil
}

// report fills l.Report in a separate run without race checks, so that a race cannot end the run
// before everything is counted.
func (k *Kernel) report(ctx context.Context, mem *Memory, l *Launch, restore func()) error {
	if l.Report == nil {
		return nil
	}
	counted := *l
	counted.Races, counted.Timing, counted.Stream, counted.GoOn, counted.Print, l.Report = false, Early, nil, nil, nil, nil
	err := k.Launch(ctx, mem, counted)
	restore()
	if errors.As(err, new(*Fault)) {
		return nil
	}
	return err
}

// unchanged calls runs, and passes a function that restores the memory to its contents before the
// call. At the end unchanged restores the contents that the memory had when runs first called
// restore: the result of the first run.
func (m *Memory) unchanged(of *Module, runs func(restore func()) error) error {
	if m == nil {
		return errors.New("emu: memory is nil")
	}
	if _, err := m.image(of); err != nil { // image allocates the module's variables before the snapshot
		return err
	}
	before := m.snapshot()
	var after *snapshot
	err := runs(func() {
		if after == nil {
			after = m.snapshot()
		}
		m.restore(before)
	})
	if after != nil && err == nil {
		m.restore(after)
	}
	return err
}

// keeping wraps goOn. The wrapper asks goOn whether the launch goes on after a fault. If so, it
// appends the fault to slice passed. If goOn is nil, the launch goes on after notes only.
func keeping(goOn func(*Fault) bool, passed *[]*Fault) func(*Fault) bool {
	return func(f *Fault) bool {
		on := f.Severity == Note
		if goOn != nil {
			on = goOn(f)
		}
		if on {
			*passed = append(*passed, f)
		}
		return on
	}
}

// add records the faults of one run: those in passed, after which the run went on, and err if it is
// the fault that ended the run. Faults of one kind at one line are one finding, and count once per
// run.
func (f *Findings) add(run Launch, number int, passed []*Fault, err error) {
	var last *Fault
	if errors.As(err, &last) {
		passed = append(passed, last)
	}
	for _, fault := range passed {
		i := slices.IndexFunc(f.List, func(x Finding) bool { return x.Kind == fault.Kind && x.Line == fault.Line })
		switch {
		case i < 0:
			f.List = append(f.List, Finding{Fault: fault, Timing: run.Timing, Seed: run.Seed, Choices: run.Choices, Runs: 1, last: number})
		case f.List[i].last != number:
			f.List[i].Runs++
			f.List[i].last = number
		}
	}
}

// snapshot is a copy of the contents of a memory. It has the allocations that kernels made, which the
// next run of a kernel makes or frees anew.
type snapshot struct {
	bytes map[*allocation][]byte
}

func (m *Memory) snapshot() *snapshot {
	s := &snapshot{bytes: map[*allocation][]byte{}}
	for _, a := range *m.allocs.Load() {
		s.bytes[a] = bytes.Clone(a.bytes)
	}
	return s
}

// restore writes the contents of a snapshot back. Allocations that kernels have made or freed since
// then are freed or allocated again.
func (m *Memory) restore(s *snapshot) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, a := range *m.allocs.Load() {
		if _, ok := s.bytes[a]; a.byKernel && !ok {
			m.remove(a)
		}
	}
	for a, b := range s.bytes {
		if a.byKernel && m.find(a.base) != a {
			m.insert(a)
			m.used += int64(len(a.bytes))
		}
		copy(a.bytes, b)
	}
}
