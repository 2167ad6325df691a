package emu

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// A deadlock report shows which fragments (lanes of a warp at one instruction) wait for which
// warps. Fragments that wait at one line for the same thing form a group. Root causes come first:
// groups that wait for exited warps, or for something that no warp can still do. Cycles of waits
// follow.

// need says what a fragment waits for, and what could end the wait.
type need struct {
	what string  // text such as "waits at empty[2] of ring ab …"
	from []*warp // warps that could end the wait
	// how says what the warps in field from should do, and where.
	how string
	// cause is the instruction because of which the wait never ends, if it is known.
	cause arrival
	// phase is the number of the present phase, if the fragment waits at an mbarrier.
	phase uint64
}

// waiter is a fragment that cannot continue.
type waiter struct {
	w *warp
	f *frag
	need
}

// waiters is a group of fragments that wait at one instruction for the same thing.
type waiters struct {
	list   []waiter
	on     []*waiters // groups on which this group waits
	root   bool       // no live warp can end the wait of this group
	shown  bool
	circle bool
}

const maxWaiters = 8 // largest number of groups in one report, each with at most two lines

// deadlock reports that no warp of the cluster can run.
func (cl *cluster) deadlock() { cl.stall("no warp can run") }

// spinning reports a cluster that has run for too long without progress.
func (cl *cluster) spinning() {
	cl.stall(fmt.Sprintf("no store, barrier or copy in %d warp instructions", cl.idle))
}

// cycling reports a cluster whose warps repeat the same instructions for ever.
func (cl *cluster) cycling() {
	cl.stall("each warp repeats the same instructions, and no warp is left that could change what they read")
}

// stall ends the cluster with a fault, which reports what each fragment waits for. Parameter what
// is the first line of the fault's text.
func (cl *cluster) stall(what string) {
	groups := cl.waitGraph()
	text, shown := []string{what}, 0
	for _, g := range order(groups) {
		if shown == maxWaiters {
			text = append(text, fmt.Sprintf("  and %d more", len(groups)-shown))
			break
		}
		shown++
		text = append(text, cl.describe(g)...)
	}
	if gone := cl.gone(); gone != "" {
		text = append(text, "  "+gone+" exited")
	}
	first := order(groups)[0].list[0]
	kind := Deadlock
	if first.f.apart {
		kind = DivergentAligned
	}
	at := &cl.grid.kernel.code[first.f.pc]
	if !first.f.stuck && first.w.polled != nil {
		at = first.w.polled
	}
	if first.cause.in != nil {
		first.cause.warp.fault(first.cause.in, kind, first.f.mask, "%s", strings.Join(text, "\n"))
	}
	first.w.fault(at, kind, first.f.mask, "%s", strings.Join(text, "\n"))
}

// waitGraph forms the groups of waiting fragments, and links each group to the groups for which it
// waits.
func (cl *cluster) waitGraph() []*waiters {
	type key struct {
		pc   int32
		mask bool // the fragment is the whole warp
		need string
	}
	var groups []*waiters
	byKey, of := map[key]*waiters{}, map[*frag]*waiters{}
	for _, w := range cl.warps {
		for _, f := range w.frags {
			x := waiter{w, f, cl.need(w, f)}
			k := key{f.pc, f.mask == fullMask, x.what}
			if byKey[k] == nil {
				byKey[k] = &waiters{}
				groups = append(groups, byKey[k])
			}
			byKey[k].list = append(byKey[k].list, x)
			of[f] = byKey[k]
		}
	}
	for _, g := range groups {
		runs := false
		for _, x := range g.list {
			runs = runs || !x.f.stuck
			for _, w := range x.from {
				for _, f := range w.frags {
					if on := of[f]; f != x.f && !slices.Contains(g.on, on) {
						g.on = append(g.on, on)
					}
				}
			}
		}
		g.root = !runs && (len(g.on) == 0 || g.missesExited())
	}
	return groups
}

// missesExited reports whether one of the warps for which the group waits has exited.
func (g *waiters) missesExited() bool {
	for _, x := range g.list {
		for _, w := range x.from {
			if w.live == 0 {
				return true
			}
		}
	}
	return false
}

// order sorts the groups for the report. Fragments that wait for the rest of their warp come first,
// then roots, then cycles. After each group come the groups that wait for it.
func order(groups []*waiters) []*waiters {
	var out []*waiters
	for _, g := range groups {
		g.shown, g.circle = false, false
	}
	show := func(start ...*waiters) {
		for len(start) > 0 {
			g := start[0]
			start = start[1:]
			if g.shown {
				continue
			}
			g.shown = true
			out = append(out, g)
			for _, other := range groups {
				if slices.Contains(other.on, g) {
					start = append(start, other)
				}
			}
		}
	}
	for _, g := range groups {
		if g.list[0].f.apart {
			show(g)
		}
	}
	roots := slices.DeleteFunc(slices.Clone(groups), func(g *waiters) bool { return !g.root })
	for _, g := range roots {
		show(g)
	}
	for _, g := range groups {
		if g.shown || len(g.on) == 0 {
			continue
		}
		// Following the links from g ends in a cycle, or in a group that runs. Show a cycle from
		// the group that waits for the earliest phase.
		at, seen := g, map[*waiters]bool{}
		for !seen[at] && len(at.on) > 0 {
			seen[at] = true
			at = at.on[0]
		}
		oldest := at
		for x := at; len(at.on) > 0; {
			if x = x.on[0]; x == at {
				oldest.circle = true
				break
			}
			if x.list[0].phase < oldest.list[0].phase {
				oldest = x
			}
		}
		show(oldest)
	}
	show(groups...)
	return out
}

// need returns what a fragment waits for.
func (cl *cluster) need(w *warp, f *frag) need {
	in := &cl.grid.kernel.code[f.pc]
	switch {
	case f.apart:
		return need{what: "waits at " + in.form.Op + " for the rest of its warp", from: []*warp{w}}
	case !f.stuck && w.polled != nil:
		return need{what: fmt.Sprintf("polls with %s (%s)", w.polled.form.Op, cl.place(w.polled))}
	case !f.stuck:
		return need{what: "is at " + in.form.Op}
	}
	if h := forms[in.form.ID].waits; h != nil {
		return h(w, f, in)
	}
	return need{what: "waits at " + in.form.Op}
}

// describe returns the lines of the report about one group.
func (cl *cluster) describe(g *waiters) []string {
	x := g.list[0]
	in := &cl.grid.kernel.code[x.f.pc]
	lines := []string{fmt.Sprintf("  %s (%s) %s", cl.warpsAt(g.list), cl.place(in), x.what)}
	if x.how != "" {
		lines = append(lines, "    "+x.how)
	}
	if g.circle {
		lines[0] += ", in a cycle:"
	}
	return lines
}

// place returns an instruction's line, with its source position if known.
func (cl *cluster) place(in *inst) string { return cl.grid.place(in) }

func (g *grid) place(in *inst) string {
	text := fmt.Sprintf("line %d", in.line)
	if g := g.where(in.line); g != "" {
		text += " = " + g
	}
	return text
}

// warpsAt names waiting fragments by role, warps, lanes and CTAs.
func (cl *cluster) warpsAt(list []waiter) string {
	warps := make([]*warp, len(list))
	lanes, same := list[0].f.mask, true
	for i, x := range list {
		warps[i] = x.w
		same = same && x.f.mask == lanes
	}
	text := cl.warpNames(warps)
	if role := cl.grid.kernel.code[list[0].f.pc].role; role != "" {
		text = role + " " + text
	}
	switch {
	case !same:
		text += ", some lanes of each"
	case lanes != fullMask:
		text += " " + laneList(lanes)
	}
	return text
}

// warpNames names warps, for example "warp 4", "warpgroup 1 (warps 4-7)" or "warps 0-3 of CTAs
// 0-1".
func (cl *cluster) warpNames(warps []*warp) string {
	byCTA := map[int][]int{}
	for _, w := range warps {
		if !slices.Contains(byCTA[w.cta.rank], w.id) {
			byCTA[w.cta.rank] = append(byCTA[w.cta.rank], w.id)
		}
	}
	ctas := map[string][]int{}
	for _, rank := range slices.Sorted(maps.Keys(byCTA)) {
		ids := byCTA[rank]
		slices.Sort(ids)
		name := plural("warp", ids)
		if len(ids) == 4 && ids[0]%4 == 0 && ids[3] == ids[0]+3 {
			name = fmt.Sprintf("warpgroup %d (%s)", ids[0]/4, name)
		}
		ctas[name] = append(ctas[name], rank)
	}
	var parts []string
	for _, name := range slices.SortedFunc(maps.Keys(ctas), func(a, b string) int { return cmp.Compare(ctas[a][0], ctas[b][0]) }) {
		if len(cl.ctas) > 1 {
			name += " of " + plural("CTA", ctas[name])
		}
		parts = append(parts, name)
	}
	return strings.Join(parts, ", ")
}

// gone names the warps of the cluster that have exited.
func (cl *cluster) gone() string {
	var warps []*warp
	for _, w := range cl.warps {
		if w.live == 0 {
			warps = append(warps, w)
		}
	}
	switch len(warps) {
	case 0:
		return ""
	case 1:
		return cl.warpNames(warps) + " has"
	}
	return cl.warpNames(warps) + " have"
}

// whereabouts names warps, and says which of them have exited.
func (cl *cluster) whereabouts(warps []*warp) string {
	var live, gone []*warp
	for _, w := range warps {
		if w.live != 0 {
			live = append(live, w)
		} else {
			gone = append(gone, w)
		}
	}
	var parts []string
	if len(live) > 0 {
		parts = append(parts, cl.warpNames(live))
	}
	if len(gone) == 1 {
		parts = append(parts, cl.warpNames(gone)+", which has exited,")
	} else if len(gone) > 1 {
		parts = append(parts, cl.warpNames(gone)+", which have exited,")
	}
	return strings.Join(parts, " and ")
}
