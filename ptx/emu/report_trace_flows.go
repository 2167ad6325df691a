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
}

// pauses returns the waits of the CTA's warps by what they wait for, in the order of their begin.
func (t *CTATrace) pauses() map[string][]pause {
	list := map[string][]pause{}
	for id := range t.Timeline.Warps {
		spans := t.Timeline.Warps[id].Spans
		for i := range spans {
			if s := &spans[i]; s.Waits != "" && s.To > s.From {
				list[s.Waits] = append(list[s.Waits], pause{id, s})
			}
		}
	}
	for _, of := range list {
		slices.SortStableFunc(of, func(a, b pause) int { return cmp.Compare(a.From, b.From) })
	}
	return list
}

// arrow is an end of an arrow: a turn on a track.
type arrow struct{ tid, at int }

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
		w.event(e)
	}
}

// releases writes arrows from a phase of an mbarrier, whose track is tid, to the waits during which
// the phase ended.
func (w *traceWriter) releases(pid, tid int, phase *Flight, waits []pause) {
	if phase.Unfinished {
		return
	}
	for _, x := range waits {
		if x.From < phase.To && x.To >= phase.To {
			w.flow(pid, phase.Name, arrow{tid, max(phase.From, phase.To-1)}, arrow{1 + x.warp, x.To - 1})
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
			met[x.To] = append(met[x.To], arrow{1 + x.warp, x.From})
		}
		for _, end := range slices.Sorted(maps.Keys(met)) {
			if len(met[end]) > 1 {
				w.flow(pid, name, met[end]...)
			}
		}
	}
}
