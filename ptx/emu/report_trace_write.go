package emu

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strings"
)

// event is an event of the Trace Event Format, which Perfetto and Chrome read.
type event struct {
	Name  string         `json:"name"`
	Cat   string         `json:"cat,omitempty"`
	Phase string         `json:"ph"`
	At    int            `json:"ts"`
	Turns *int           `json:"dur,omitempty"`
	PID   int            `json:"pid"`
	TID   int            `json:"tid"`
	ID    *localID       `json:"id2,omitempty"`
	Scope string         `json:"s,omitempty"`
	Flow  int            `json:"id,omitempty"` // number of the arrow to which the event belongs
	Bind  string         `json:"bp,omitempty"`
	Args  map[string]any `json:"args,omitempty"`
}

// localID is the number of an asynchronous slice of a process. With a number of the whole file
// instead, Perfetto shows the slice outside the process.
type localID struct {
	Local string `json:"local"`
}

// Phases of events in the format.
const (
	phaseMeta     = "M"
	phaseSlice    = "X"
	phaseBegin    = "b"
	phaseEnd      = "e"
	phaseInstant  = "i"
	instantThread = "t"
	phaseFlow     = "s" // an arrow begins in the slice at this time,
	phaseStep     = "t" // passes the slice at this time,
	phaseArrow    = "f" // and ends there
	bindEnclosing = "e"
)

// firstBarrier is the number of the first track of an mbarrier. Tracks below are warps.
const firstBarrier = 1000

// traceWriter writes the events of a trace, one a line.
type traceWriter struct {
	out   *bufio.Writer
	err   error
	begun bool
	flows int // number of arrows written
}

func (w *traceWriter) event(e event) {
	text, err := json.Marshal(e)
	w.err = cmp.Or(w.err, err)
	if w.begun {
		w.out.WriteString(",\n")
	}
	w.begun = true
	w.out.Write(text)
}

// Write writes the trace in the Trace Event Format (JSON), which Perfetto and Chrome display. Each
// CTA is a process. Each warp and each mbarrier is a track of slices. Copies and groups of products
// are asynchronous slices. Arrows lead from a phase of an mbarrier to the waits that end with it, and
// connect the waits of warps at one barrier. A microsecond stands for a turn.
func (t *Trace) Write(to io.Writer) error {
	w := &traceWriter{out: bufio.NewWriter(to)}
	w.out.WriteString("{\"displayTimeUnit\": \"ns\", \"traceEvents\": [\n")
	for i := range t.CTAs {
		t.CTAs[i].write(w, i+1, t)
	}
	w.out.WriteString("\n]}\n")
	return cmp.Or(w.err, w.out.Flush())
}

func (t *CTATrace) write(w *traceWriter, pid int, of *Trace) {
	meta := func(tid int, name string, args map[string]any) {
		w.event(event{Name: name, Phase: phaseMeta, PID: pid, TID: tid, Args: args})
	}
	meta(0, "process_name", map[string]any{"name": fmt.Sprintf("CTA (%d,%d,%d) of %s", t.CTA[0], t.CTA[1], t.CTA[2], of.Kernel)})
	meta(0, "process_sort_index", map[string]any{"sort_index": pid})
	if t.Timeline.Cut {
		meta(0, "process_labels", map[string]any{"labels": fmt.Sprintf("only the first %d turns", t.Timeline.Turns)})
	}
	for id := range t.Timeline.Warps {
		warp := &t.Timeline.Warps[id]
		meta(1+id, "thread_name", map[string]any{"name": warp.trackName(id)})
		meta(1+id, "thread_sort_index", map[string]any{"sort_index": 1 + id})
		for j := range warp.Spans {
			w.event(warp.Spans[j].event(pid, 1+id))
		}
	}
	if f := of.Fault; f != nil && f.CTA == t.CTA {
		w.event(event{Name: f.Kind.String(), Cat: "fault", Phase: phaseInstant, Scope: instantThread, At: t.Timeline.Turns, PID: pid, TID: 1 + f.Warp,
			Args: positioned(f.Line, f.Where, map[string]any{"text": f.Text})})
	}
	waits := t.pauses()
	t.writeFlights(w, pid, meta, waits)
	w.meetings(pid, waits)
}

// trackName returns the name of a warp's track: its roles, or else the number of its warpgroup.
func (w *WarpTimeline) trackName(id int) string {
	if roles := w.roles(); len(roles) > 0 {
		return fmt.Sprintf("warp %d %s", id, strings.Join(roles, ", "))
	}
	return fmt.Sprintf("warp %d (warpgroup %d)", id, id/4)
}

// event returns the slice of a span.
func (s *Span) event(pid, tid int) event {
	turns := s.To - s.From
	e := event{Name: "runs", Cat: "runs", Phase: phaseSlice, At: s.From, Turns: &turns, PID: pid, TID: tid}
	args := map[string]any{}
	switch {
	case s.Waits != "":
		e.Name, e.Cat = "waits: "+s.Waits, "waits"
	case s.Stage != noStage:
		e.Name = fmt.Sprintf("stage %d", s.Stage)
	case s.Role != "":
		e.Name = s.Role
	}
	if s.Role != "" {
		args["role"] = s.Role
	}
	e.Args = positioned(s.Line, s.Where, args)
	return e
}

// positioned adds a line of the PTX and its source position to the arguments of an event.
func positioned(line int, where string, args map[string]any) map[string]any {
	args["line of the PTX"] = line
	if where != "" {
		args["source"] = where
	}
	return args
}

var flightKinds = [...]string{BulkLoad: "load", BulkStore: "store", ProductGroup: "wgmma", BarrierPhase: "mbarrier"}

// String returns the kind's name.
func (k FlightKind) String() string { return flightKinds[k] }

func (t *CTATrace) writeFlights(w *traceWriter, pid int, meta func(tid int, name string, args map[string]any), waits map[string][]pause) {
	tracks := map[string]int{}
	for i := range t.Flights {
		f := &t.Flights[i]
		args := map[string]any{}
		if f.Unfinished {
			args["unfinished"] = true
		}
		if f.Kind == BarrierPhase {
			tid, ok := tracks[f.Name]
			if !ok {
				tid = firstBarrier + len(tracks)
				tracks[f.Name] = tid
				meta(tid, "thread_name", map[string]any{"name": f.Name})
				meta(tid, "thread_sort_index", map[string]any{"sort_index": tid})
			}
			turns := f.To - f.From
			w.event(event{Name: fmt.Sprintf("phase %d", f.Count), Cat: f.Kind.String(), Phase: phaseSlice, At: f.From, Turns: &turns, PID: pid, TID: tid, Args: args})
			w.releases(pid, tid, f, waits[f.Name])
			continue
		}
		switch args = positioned(f.Line, f.Where, args); f.Kind {
		case ProductGroup:
			args["products"] = f.Count
		default:
			args["bytes"] = f.Bytes
		}
		id := &localID{fmt.Sprintf("%d.%d", pid, i)}
		name := trackOrder(f.Name)
		w.event(event{Name: name, Cat: f.Kind.String(), Phase: phaseBegin, At: f.From, PID: pid, ID: id, Args: args})
		w.event(event{Name: name, Cat: f.Kind.String(), Phase: phaseEnd, At: f.To, PID: pid, ID: id})
	}
}

var offset = regexp.MustCompile(` \+ (\d+)`)

// trackOrder pads the offset in the name of a copy with zeros. Viewers sort the tracks of
// asynchronous slices by the text of their names.
func trackOrder(name string) string {
	return offset.ReplaceAllStringFunc(name, func(at string) string { return fmt.Sprintf(" + %06s", at[len(" + "):]) })
}
