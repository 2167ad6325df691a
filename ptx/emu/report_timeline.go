package emu

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Timeline shows what the warps of a CTA did, turn by turn. In each turn, every warp that does not
// wait executes one instruction. A timeline shows causes and effects in order, but not time. Copies
// and products complete according to the launch's Timing.
type Timeline struct {
	Turns int
	// Cut reports whether the CTA ran longer than the timeline shows.
	Cut   bool
	Warps []WarpTimeline
}

// WarpTimeline is the timeline of one warp, until it exits.
type WarpTimeline struct {
	Spans []Span
}

// Span is a range of turns in which a warp ran, or waited for one thing.
type Span struct {
	From, To int // turns; To is the first turn after the span
	Line     int // line of the span's first instruction
	Where    string
	Role     string
	// Waits names the thing for which the warp waits. It is "" if the warp runs.
	Waits string
	// Stage is the ring stage whose mbarrier the warp passed last, or -1.
	Stage int
}

// mostTurns is the largest number of turns in a timeline.
const mostTurns = 1 << 18

// noStage is the stage of a warp that has not passed the mbarrier of a ring yet.
const noStage = -1

// passed records that the warp has waited successfully at the mbarrier at a shared address.
func (w *warp) passed(at uint32) {
	if cl := w.cta.cluster; cl.timeline == nil && !cl.traced {
		return
	}
	if n, piece, ok := w.cta.cluster.grid.kernel.region(at); ok && n.Count > 1 {
		w.stage = piece
	}
}

// turn records what a warp is about to do: execute fragment f, or wait if f is stuck or nil.
func (t *Timeline) turn(w *warp, f *frag) {
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
		if last.From == s.From { // under Random, a warp may run twice in a turn, or not at all
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

// awaited names the thing for which fragment f of the warp waits.
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

// endTurn ends a turn after all warps of the CTA have had it.
func (cl *cluster) endTurn() {
	t := cl.timeline
	if t.Turns++; t.Turns == mostTurns {
		t.Cut, cl.timeline = true, nil
	}
}

// explain adds source positions to all spans.
func (t *Timeline) explain(where func(line int) string) {
	for i := range t.Warps {
		for j := range t.Warps[i].Spans {
			s := &t.Warps[i].Spans[j]
			s.Where = where(s.Line)
		}
	}
}

// columns is the number of characters in a line of the picture.
const columns = 96

// write draws a line for each warp, and a legend. A character of a line stands for several turns.
func (t *Timeline) write(b *strings.Builder) {
	per := max((t.Turns+columns-1)/columns, 1)
	fmt.Fprintf(b, "CTA (0,0,0) in %d turns, %d per column; a turn is one instruction of each warp that need not wait\n", t.Turns, per)
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
	b.WriteString("  #: runs; 0 to 9: runs in that stage of a ring, modulo 10; letters: waits, with the sum of turns over all warps\n")
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

// wait is a thing for which warps waited, with the number of turns.
type wait struct {
	what, where string
	turns       int
}

// waits lists what all warps have waited for, the longest waits first.
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

// roles returns the warp's roles, in the order in which it entered them.
func (w *WarpTimeline) roles() (list []string) {
	for _, s := range w.Spans {
		if s.Role != "" && !slices.Contains(list, s.Role) {
			list = append(list, s.Role)
		}
	}
	return list
}

// picture returns a character for each column. Parameter per is the number of turns of a column.
// The character shows what the warp did in most of these turns.
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
