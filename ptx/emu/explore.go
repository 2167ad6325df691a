package emu

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// Exploration reports how many of the possible orders of a launch [Kernel.Explore] has run.
type Exploration struct {
	Orders int // number of orders that Explore has run
	// Different is the number of run orders that some warp could tell apart from all earlier ones.
	Different int
	// All reports whether every possible order looks to all warps like one of the run orders.
	All bool
	// Turned is the largest n for which Explore has run every order that differs from the first
	// order by at most n swapped pairs of steps. It is -1 if the first order has not run.
	Turned int
	// Known is the number of orders with Turned+1 swapped pairs that Explore has found so far. Next
	// is the number of these that have run.
	Next, Known int
}

// String describes the exploration in one sentence.
func (e Exploration) String() string {
	s := fmt.Sprintf("%d orders run, %d of them different:  ", e.Orders, e.Different)
	switch {
	case e.All && e.Different == 1:
		return "one order run: there is no other"
	case e.All:
		return s + "there is no other"
	}
	return s + fmt.Sprintf("all that swap at most %d pairs of the first order's steps, and %d %% of those that swap %d (%d of %d)",
		e.Turned, 100*e.Next/max(e.Known, 1), e.Turned+1, e.Next, e.Known)
}

// exploration is the state of the search. Each run yields new orders to try. For each pair of steps
// of the run that depend on each other and that nothing else orders, a new order takes the second
// step before the first: after the common beginning it runs only the steps that do not depend on
// the first step, up to the second one. Any order can be reached from any other in this way
// (Abdulla and others, Optimal Dynamic Partial Order Reduction).
type exploration struct {
	Exploration
	now, later [][]choice      // now has the orders to run with the present number of swapped pairs, later those with one more
	seen       map[uint64]bool // hashes of the beginnings of all orders that were found
	marks      map[uint64]bool // hashes of the orders that have run; orders that no warp can tell apart have equal hashes
}

func newExploration() *exploration {
	e := &exploration{now: [][]choice{nil}, seen: map[uint64]bool{}, marks: map[uint64]bool{}}
	e.Turned, e.Known = -1, 1
	return e
}

// Explore runs a kernel in different orders of its steps, in at most the given number of orders. It
// starts with the order in which each warp runs until it waits. It continues with the orders that
// swap one pair of steps, then with those that swap two, and so on, until no other order is left.
//
// Orders count as one if they differ only in the sequence of independent steps. A kernel that uses
// only barriers and waits therefore has one order for any number of warps. All runs look for races
// and start with the same memory contents; afterwards the memory holds the result of the first run.
// If the kernel broke a rule in any run, the error is *Findings, otherwise it is as for
// [Kernel.Launch].
//
// Explore is meant for small launches: each order runs from the beginning, with all clusters
// together. It assumes that races between two steps' ordinary accesses show in any order, and that
// a polling loop has no effect besides polling.
func (k *Kernel) Explore(ctx context.Context, mem *Memory, l Launch, orders int) (Exploration, error) {
	e := newExploration()
	err := e.run(ctx, k, mem, l, orders)
	return e.Exploration, err
}

func (e *exploration) run(ctx context.Context, k *Kernel, mem *Memory, l Launch, orders int) error {
	if l.SpinLimit == 0 {
		l.SpinLimit = 1 << 18
	}
	found := &Findings{Exploration: &e.Exploration}
	err := mem.unchanged(k.module, func(restore func()) error {
		if err := k.report(ctx, mem, &l, restore); err != nil {
			return err
		}
		l.Timing = Chosen
		stream := l.Stream.Clone()
		for !e.All && e.Orders < orders {
			choices := e.now[0]
			e.now = e.now[1:]
			if e.Orders > 0 {
				restore()
				l.Stream, l.Print = stream.Clone(), nil
			}
			var passed []*Fault
			run := l
			run.GoOn = keeping(l.GoOn, &passed)
			s, err := k.follow(ctx, mem, run, choices)
			if s == nil {
				return err
			}
			run.Choices = choicesText(s.made)
			switch {
			case s.wrong != nil: // the actor polls and would find the same value, so this order does not exist
				e.Known--
			case err != nil && !errors.As(err, new(*Fault)):
				return err
			default:
				found.add(run, e.Orders, passed, err)
			}
			if s.wrong == nil {
				e.Orders++
				e.Next++
			}
			if s.wrong == nil && !e.marks[s.mark] {
				e.marks[s.mark] = true
				e.Different++
				e.turn(s)
			}
			if len(e.now) == 0 {
				e.now, e.later = e.later, nil
				e.Turned++
				e.Next, e.Known, e.All = 0, len(e.now), len(e.now) == 0
			}
		}
		return nil
	})
	if found.Runs = e.Orders; err == nil && len(found.List) > 0 {
		return found
	}
	return err
}

// turn adds, for each pair of dependent steps of a run that can be swapped, the order in which the
// second step of the pair comes first.
func (e *exploration) turn(s *schedule) {
	for _, r := range s.races {
		first, second := r[0], r[1]
		mark, list := uint64(0), []choice(nil)
		for i := range second + 1 {
			x := &s.steps[i]
			switch {
			case i < second && x.clock.At(s.steps[first].actor) > first:
				continue // skips the first step and every step that depends on it
			case i < second:
				mark += x.mark
			}
			if i > first {
				list = append(list, choice{first + len(list), s.actors[x.actor].name})
			}
		}
		if mark = mix(mark, uint64(list[len(list)-1].actor)); !e.seen[mark] {
			e.seen[mark] = true
			same, _ := slices.BinarySearchFunc(s.made, first, func(c choice, at int) int { return c.step - at })
			e.later = append(e.later, slices.Concat(s.made[:same], list))
		}
	}
}
