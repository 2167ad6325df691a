package emu

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// Exploration is how much of the orders of a launch [Kernel.Explore] has run.
type Exploration struct {
	Orders int // that ran
	// Different are those of them that differ in something a warp could see.
	Different int
	// All: there is no other that differs from each of them.
	All bool
	// Turned is how many pairs of steps may come the other way round than in the first
	// order for all such orders to have run: -1 where not even the first did.
	Turned int
	// Next and Known are, of the orders with one pair more, those that ran and all.
	Next, Known int
}

// String says it in words.
func (e Exploration) String() string {
	s := fmt.Sprintf("%d orders run, %d of them different: ", e.Orders, e.Different)
	switch {
	case e.All && e.Different == 1:
		return "one order run, which is all there is"
	case e.All:
		return s + "there is no other"
	}
	return s + fmt.Sprintf("all that turn at most %d pairs of the first one's steps, and %d %% of those that turn %d (%d of %d)",
		e.Turned, 100*e.Next/max(e.Known, 1), e.Turned+1, e.Next, e.Known)
}

// exploration is the search under way. Each order that differs from those before it
// gives others: for each two of its steps that depend on each other with nothing else
// that orders them, the second comes before the first, behind all that does not follow
// the first. From any order these lead to every other one (Abdulla and others, Optimal
// Dynamic Partial Order Reduction).
type exploration struct {
	Exploration
	now, later [][]choice      // orders with as many pairs turned as are looked at, and with one more
	seen       map[uint64]bool // their beginnings
	marks      map[uint64]bool // of orders that differ
}

func newExploration() *exploration {
	e := &exploration{now: [][]choice{nil}, seen: map[uint64]bool{}, marks: map[uint64]bool{}}
	e.Turned, e.Known = -1, 1
	return e
}

// Explore runs a kernel in one order after the other until there is no other one, or
// so many have run: the one in which each warp runs until it waits, those in which two
// steps that could come in either order do so the other way round, then those in which two such
// pairs do, and so on.
// Of orders that differ only in the turns of steps that do not depend on each other,
// one is enough: with barriers and waits alone there is one order, however many the
// warps. All runs look for races and find memory as it was; it then holds what the
// first one left. The error is *Findings when the kernel broke a rule in any of them,
// else as [Kernel.Launch]'s.
//
// It is meant for small launches: each order runs anew, all its clusters together.
// What it takes for granted: that accesses between such steps race in whatever order,
// and that a loop which polls has no other business.
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
				l.Stream = stream.Clone()
			}
			s, err := k.follow(ctx, mem, l, choices)
			if s == nil {
				return err
			}
			run := l
			run.Choices = choicesText(s.made)
			var fault *Fault
			switch {
			case s.wrong != nil: // it polls, and would not see a difference
				e.Known--
			case errors.As(err, &fault):
				found.add(fault, run)
			case err != nil:
				return err
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

// turn adds the orders in which two steps that a run took come the other way round.
func (e *exploration) turn(s *schedule) {
	for _, r := range s.races {
		first, second := r[0], r[1]
		mark, list := uint64(0), []choice(nil)
		for i := range second + 1 {
			x := &s.steps[i]
			switch {
			case i < second && x.clock.at(s.steps[first].actor) > first:
				continue // the first, or behind it
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
