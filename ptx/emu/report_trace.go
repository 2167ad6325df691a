package emu

import "fmt"

// Trace records what the warps of a grid's first CTAs did, and the copies, products and phases of
// mbarriers between them. [Trace.Write] writes a trace for a trace viewer. All times are turns, as
// in [Timeline]. Each cluster counts its own turns. Cut timelines also end the list of flights.
type Trace struct {
	// Most is the largest number of CTAs to record; 0 means 1. The caller sets it.
	Most int
	// Kernel is the name of the kernel. Grid is the number of CTAs of the launch.
	Kernel string
	Grid   int
	// CTAs lists the recorded CTAs, cluster by cluster.
	CTAs []CTATrace
	// Fault is the fault that ended the launch, or nil.
	Fault *Fault
}

// CTATrace is the part of a [Trace] that belongs to one CTA.
type CTATrace struct {
	CTA      [3]int
	Timeline Timeline
	Flights  []Flight

	began bool // the CTA has started
	open  map[any]int
	// products lists the groups of products of each warpgroup that are not complete.
	products [][]productGroup
}

// Flight is work that is under way while warps do something else.
type Flight struct {
	Kind FlightKind
	// Name says what is under way, with the shared memory that it uses.
	Name     string
	From, To int // turns
	// Line is the line of the PTX that began the work, or 0 for a phase of an mbarrier.
	Line  int
	Where string
	Bytes uint32
	// Count is the number of products of a group, or the number of a phase.
	Count int
	// Unfinished reports that the recording ended before the work did.
	Unfinished bool
}

// FlightKind is a kind of [Flight].
type FlightKind uint8

// The kinds of work under way.
const (
	// BulkLoad is a bulk copy into the CTA's shared memory, by TMA or st.async.
	BulkLoad FlightKind = iota
	// BulkStore is a bulk copy out of the CTA's shared memory: one flight until shared memory is
	// read, then another until global memory is written, if that is later.
	BulkStore
	// ProductGroup is a group of wgmma, from the first product to the end of the last.
	ProductGroup
	// BarrierPhase is a phase of an mbarrier, which lasts until all its arrivals and bytes are there.
	BarrierPhase
)

// productGroup is a group of products of a warpgroup that is not complete.
type productGroup struct {
	flight int
	upTo   int // number of the first product after the group; 0 while the group is not committed
}

// traced returns the record of a CTA, or nil if the launch does not record it.
func (g *grid) traced(c *cta) *CTATrace {
	t := g.launch.Trace
	if t == nil {
		return nil
	}
	at := c.cluster.number*int64(len(c.cluster.ctas)) + int64(c.rank)
	if at >= int64(len(t.CTAs)) {
		return nil
	}
	record := &t.CTAs[at]
	*record = CTATrace{CTA: c.index, Timeline: Timeline{Warps: make([]WarpTimeline, len(c.warps))}, began: true,
		open: map[any]int{}, products: make([][]productGroup, len(c.groups))}
	return record
}

// begin records that work starts. The key stands for the work until its end.
func (t *CTATrace) begin(key any, f Flight) {
	f.From = t.Timeline.Turns
	t.open[key] = len(t.Flights)
	t.Flights = append(t.Flights, f)
}

// end records the end of work, if its begin is recorded.
func (t *CTATrace) end(key any) {
	if i, ok := t.open[key]; ok {
		t.Flights[i].To = t.Timeline.Turns
		delete(t.open, key)
	}
}

// load records the begin of a bulk copy into the CTA.
func (t *CTATrace) load(b *bulkLoad) {
	if t != nil {
		t.begin(b, Flight{Kind: BulkLoad, Name: "load to " + b.to.symbolic(b.dst), Line: b.in.line, Bytes: b.size})
	}
}

// store records the begin of a bulk copy out of the CTA of warp w.
func (t *CTATrace) store(w *warp, st *bulkStore) {
	if t != nil {
		t.begin(st, Flight{Kind: BulkStore, Name: "store from " + w.cta.symbolic(st.src), Line: st.in.line, Bytes: st.size})
	}
}

// storeRead records that a bulk store has read shared memory. If later is set, it writes global
// memory later.
func (t *CTATrace) storeRead(st *bulkStore, later bool) {
	if t == nil {
		return
	}
	if t.end(st); later {
		t.begin(st, Flight{Kind: BulkStore, Name: "write of stores to global memory", Line: st.in.line, Bytes: st.size})
	}
}

// ends records the end of a bulk copy.
func (t *CTATrace) ends(copied any) {
	if t != nil {
		t.end(copied)
	}
}

// product records that warpgroup number id has issued a product.
func (t *CTATrace) product(id int, in *inst) {
	if t == nil {
		return
	}
	list := &t.products[id]
	if n := len(*list); n == 0 || (*list)[n-1].upTo != 0 {
		*list = append(*list, productGroup{flight: len(t.Flights)})
		t.Flights = append(t.Flights, Flight{Kind: ProductGroup, Name: fmt.Sprintf("wgmma of warpgroup %d", id), From: t.Timeline.Turns, To: -1, Line: in.line})
	}
	t.Flights[(*list)[len(*list)-1].flight].Count++
}

// committed records that a warp of warpgroup number id has committed the products before number
// upTo. done is the number of products that are complete.
func (t *CTATrace) committed(id, upTo, done int) {
	if t == nil || id >= len(t.products) {
		return
	}
	if list := t.products[id]; len(list) > 0 && list[len(list)-1].upTo == 0 { // else an earlier warp has committed the group
		list[len(list)-1].upTo = upTo
	}
	t.multiplied(id, done)
}

// multiplied records that the products of warpgroup number id before number done are complete.
func (t *CTATrace) multiplied(id, done int) {
	if t == nil {
		return
	}
	list := &t.products[id]
	for len(*list) > 0 && (*list)[0].upTo != 0 && (*list)[0].upTo <= done {
		t.Flights[(*list)[0].flight].To = t.Timeline.Turns
		*list = (*list)[1:]
	}
}

// phaseKey stands for the present phase of an mbarrier.
type phaseKey uint32

// phase records a change of the mbarrier at an offset of CTA c: a phase ends, or the mbarrier is
// made or removed. next is the number of the phase that begins.
func (t *CTATrace) phase(c *cta, at uint32, next uint64) {
	if t == nil {
		return
	}
	t.end(phaseKey(at))
	if c.shared.mbar[at] != nil {
		t.begin(phaseKey(at), Flight{Kind: BarrierPhase, Name: "mbarrier " + c.symbolic(at), Count: int(next)})
	}
}

// turn records what a warp is about to do in this turn.
func (cl *cluster) turn(w *warp, f *frag) {
	if cl.timeline != nil && w.cta.rank == 0 {
		cl.timeline.turn(w, f)
	}
	if t := w.cta.trace; t != nil {
		t.Timeline.turn(w, f)
	}
}

// endTraces ends a turn of the recorded CTAs.
func (cl *cluster) endTraces() {
	for _, c := range cl.ctas {
		t := c.trace
		if t == nil {
			continue
		}
		if t.Timeline.Turns++; t.Timeline.Turns == mostTurns {
			t.Timeline.Cut, c.trace, cl.traced = true, nil, false
		}
	}
}

// prepare clears the trace of an earlier launch.
func (t *Trace) prepare(kernel string, ctas int64) {
	n := min(int64(max(t.Most, 1)), ctas)
	*t = Trace{Most: t.Most, Kernel: kernel, Grid: int(ctas), CTAs: make([]CTATrace, n)}
}

// finish ends the work that is still open, and adds source positions.
func (t *Trace) finish(where func(line int) string) {
	n := 0
	for i := range t.CTAs {
		c := &t.CTAs[i]
		if !c.began { // a fault ended the launch before the CTA started
			continue
		}
		for _, at := range c.open {
			c.Flights[at].To = -1
		}
		for j := range c.Flights {
			f := &c.Flights[j]
			if f.To < 0 {
				f.To, f.Unfinished = c.Timeline.Turns, true
			}
			if f.Line > 0 {
				f.Where = where(f.Line)
			}
		}
		c.Timeline.explain(where)
		c.open, c.products = nil, nil
		t.CTAs[n] = *c
		n++
	}
	t.CTAs = t.CTAs[:n]
}
