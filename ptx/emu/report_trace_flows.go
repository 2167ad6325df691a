package emu

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// pause is a wait of a warp.
type pause struct {
	warp int
	*Span
	last bool // no span of the warp follows
}

// pauses returns the waits of the CTA's warps by what they wait for, in the order of their begin.
func (t *CTATrace) pauses() map[string][]pause {
	list := map[string][]pause{}
	for id := range t.Timeline.Warps {
		spans := t.Timeline.Warps[id].Spans
		for i := range spans {
			if s := &spans[i]; s.Waits != "" && s.To > s.From {
				list[s.Waits] = append(list[s.Waits], pause{id, s, i == len(spans)-1})
			}
		}
	}
	for _, of := range list {
		slices.SortStableFunc(of, func(a, b pause) int { return cmp.Compare(a.From, b.From) })
	}
	return list
}

// arrow is an end of an arrow: a turn on a track. If next is true, the arrow leads to the begin of the
// first slice after the turn, otherwise to the slice that has the turn.
type arrow struct {
	tid, at int
	next    bool
}

// flow writes an arrow through places on tracks.
func (w *traceWriter) flow(pid int, name string, through ...arrow) {
	w.flows++
	for i, a := range through {
		e := event{Name: name, Cat: "order", Phase: phaseStep, At: a.at, PID: pid, TID: a.tid, Flow: w.flows, Bind: bindEnclosing}
		switch i {
		case 0:
			e.Phase = phaseFlow
		case len(through) - 1:
			e.Phase = phaseArrow
		}
		if a.next {
			e.Bind = ""
		}
		w.event(e)
	}
}

// releases writes arrows from a phase of an mbarrier, whose track is tid, to the ends of the waits
// during which the phase ended. A viewer draws an arrow to the begin of a slice, so the arrow leads to
// the slice after the wait, if there is one.
func (w *traceWriter) releases(pid, tid int, phase *Flight, waits []pause) {
	if phase.Unfinished {
		return
	}
	for _, x := range waits {
		if x.From < phase.To && x.To >= phase.To {
			w.flow(pid, phase.Name, arrow{tid: tid, at: max(phase.From, phase.To-1)}, arrow{1 + x.warp, x.To - 1, !x.last})
		}
	}
}

// meetings writes an arrow through the waits at each barrier that ended in the same turn, in the
// order of the arrivals. The warp that came last did not wait.
func (w *traceWriter) meetings(pid int, all map[string][]pause) {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if !strings.HasPrefix(name, "named barrier ") && name != "barrier.cluster.wait" {
			continue
		}
		met := map[int][]arrow{}
		for _, x := range all[name] {
			met[x.To] = append(met[x.To], arrow{tid: 1 + x.warp, at: x.From})
		}
		for _, end := range slices.Sorted(maps.Keys(met)) {
			if len(met[end]) > 1 {
				w.flow(pid, name, met[end]...)
			}
		}
	}
}
