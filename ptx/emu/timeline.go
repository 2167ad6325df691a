package emu

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Timeline is what the warps of a CTA did in turns, of which each executes one
// instruction of each warp that has no need to wait: an order with causes and
// effects, not time. Copies and products end as the launch's Timing says.
type Timeline struct {
	Turns int
	// Cut: the CTA ran longer than this tells.
	Cut   bool
	Warps []WarpTimeline
}

// WarpTimeline is that of one warp, until it exits.
type WarpTimeline struct {
	Spans []Span
}

// Span is some turns of a warp in which it did one thing.
type Span struct {
	From, To int // turns, To not among them
	Line     int // of the first instruction
	Where    string
	Role     string
	// Waits is what it waits for, "" when it runs.
	Waits string
	// Stage is that of the ring whose barrier let the warp pass last, -1 if none has.
	Stage int
}

// mostTurns bounds a timeline.
const mostTurns = 1 << 18

// noStage is the stage of a warp that no barrier of a ring has let pass.
const noStage = -1

// passed notes that a phase of the mbarrier at a shared address let the warp go on.
func (w *warp) passed(at uint32) {
	if w.cta.cluster.timeline == nil {
		return
	}
	if n, piece, ok := w.cta.cluster.grid.kernel.region(at); ok && n.Count > 1 {
		w.stage = piece
	}
}

// turn notes what a warp is about to do: to run f, or nothing where f waits or is
// nil.
func (t *Timeline) turn(w *warp, f *frag) {
	if w.cta.rank != 0 {
		return
	}
	if f == nil {
		f = w.frags[0]
	}
	in := &w.cta.cluster.grid.kernel.code[f.pc]
	s := Span{From: t.Turns, To: t.Turns + 1, Line: in.line, Role: in.role, Stage: w.stage}
	x := &t.Warps[w.id]
	if n := len(x.Spans); n > 0 {
		last := &x.Spans[n-1]
		waits := last.Waits != ""
		if f.stuck == waits && (waits && last.Line == s.Line || !waits && last.Role == s.Role && last.Stage == s.Stage) {
			last.To = s.To
			return
		}
		if last.From == s.From { // a random order has warps twice in a turn, or not at all
			return
		}
		last.To = s.From
	} else {
		s.From = 0
	}
	if f.stuck {
		s.Waits = w.awaited(f)
	}
	x.Spans = append(x.Spans, s)
}

// awaited names what a stuck fragment waits at.
func (w *warp) awaited(f *frag) string {
	in := &w.cta.cluster.grid.kernel.code[f.pc]
	switch at := forms[in.form.ID].at; {
	case f.apart:
		return "the rest of the warp"
	case at != nil:
		return at(w, f, in)
	}
	return in.form.Op
}

// endTurn ends a turn of all warps.
func (cl *cluster) endTurn() {
	t := cl.timeline
	if t.Turns++; t.Turns == mostTurns {
		t.Cut, cl.timeline = true, nil
	}
}

// explain adds source lines.
func (t *Timeline) explain(where func(line int) string) {
	for i := range t.Warps {
		for j := range t.Warps[i].Spans {
			s := &t.Warps[i].Spans[j]
			s.Where = where(s.Line)
		}
	}
}

// columns is the width of the picture.
const columns = 96

// write draws the warps' turns, a column for several, and says what the letters
// are.
func (t *Timeline) write(b *strings.Builder) {
	per := max((t.Turns+columns-1)/columns, 1)
	fmt.Fprintf(b, "CTA (0,0,0) in %d turns, %d a column: one instruction of each warp that need not wait\n", t.Turns, per)
	waits := t.waits()
	letter := map[string]byte{}
	for i := range waits {
		letter[waits[i].what] = '.'
		if i < 26 {
			letter[waits[i].what] = 'a' + byte(i)
		}
	}
	for id := range t.Warps {
		w := &t.Warps[id]
		fmt.Fprintf(b, "  warp %-3d|%s|", id, w.picture(t.Turns, per, letter))
		if roles := w.roles(); len(roles) > 0 {
			b.WriteString(" " + strings.Join(roles, ", "))
		}
		b.WriteString("\n")
	}
	b.WriteString("  #: runs; 0 to 9: in that stage of a ring, modulo 10; letters: waits, in turns of all warps\n")
	for i, x := range waits {
		if i == 26 {
			fmt.Fprintf(b, "  .  %d others\n", len(waits)-i)
			break
		}
		fmt.Fprintf(b, "  %c  %s: %d (%s)\n", letter[x.what], x.what, x.turns, x.where)
	}
	if t.Cut {
		fmt.Fprintf(b, "  the CTA ran longer than these %d turns\n", t.Turns)
	}
}

// wait is what warps waited for, and for how many turns.
type wait struct {
	what, where string
	turns       int
}

// waits are those of all warps, the longest first.
func (t *Timeline) waits() []wait {
	var list []wait
	for _, w := range t.Warps {
		for _, s := range w.Spans {
			if s.Waits == "" {
				continue
			}
			i := slices.IndexFunc(list, func(x wait) bool { return x.what == s.Waits })
			if i < 0 {
				i = len(list)
				where := fmt.Sprintf("line %d", s.Line)
				if s.Where != "" {
					where += " = " + s.Where
				}
				list = append(list, wait{what: s.Waits, where: where})
			}
			list[i].turns += s.To - s.From
		}
	}
	slices.SortStableFunc(list, func(x, y wait) int { return cmp.Compare(y.turns, x.turns) })
	return list
}

// roles are the warp's, in the order in which it takes them.
func (w *WarpTimeline) roles() (list []string) {
	for _, s := range w.Spans {
		if s.Role != "" && !slices.Contains(list, s.Role) {
			list = append(list, s.Role)
		}
	}
	return list
}

// picture has in each column what the warp did in most of its turns.
func (w *WarpTimeline) picture(turns, per int, letter map[string]byte) string {
	out := make([]byte, (turns+per-1)/per)
	spans := w.Spans
	for i := range out {
		count := map[byte]int{' ': min(per, turns-i*per)}
		best := byte(' ')
		for from, end := i*per, (i+1)*per; len(spans) > 0; spans = spans[1:] {
			s := &spans[0]
			n := min(end, s.To) - max(from, s.From)
			if n > 0 {
				c := s.symbol(letter)
				count[c] += n
				if count[' '] -= n; count[c] > count[best] || best == ' ' {
					best = c
				}
			}
			if s.To > end {
				break
			}
		}
		if out[i] = best; count[' '] > count[best] {
			out[i] = ' '
		}
	}
	return string(out)
}

func (s *Span) symbol(letter map[string]byte) byte {
	switch {
	case s.Waits != "":
		return letter[s.Waits]
	case s.Stage != noStage:
		return '0' + byte(s.Stage%10)
	}
	return '#'
}
