package emu

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/ptx/emu/layout"
)

// events returns the events that a trace writes.
func events(t *testing.T, trace *Trace) []event {
	t.Helper()
	var text strings.Builder
	require.NoError(t, trace.Write(&text))
	var file struct{ TraceEvents []event }
	require.NoError(t, json.Unmarshal([]byte(text.String()), &file), text.String())
	return file.TraceEvents
}

// checkEvents checks that the slices of a track do not overlap, that each begin has an end, and that
// all tracks have names.
func checkEvents(t *testing.T, list []event) {
	t.Helper()
	type track struct{ pid, tid int }
	named, slicesOf, open := map[track]bool{}, map[track][]event{}, map[string]event{}
	for _, e := range list {
		switch at := (track{e.PID, e.TID}); e.Phase {
		case phaseMeta:
			named[at] = named[at] || e.Name == "thread_name" || e.Name == "process_name"
		case phaseSlice:
			slicesOf[at] = append(slicesOf[at], e)
		case phaseBegin:
			require.NotContains(t, open, e.ID.Local)
			open[e.ID.Local] = e
		case phaseEnd:
			begin, ok := open[e.ID.Local]
			require.True(t, ok, "an end without a begin: %v", e)
			assert.Equal(t, []any{begin.Name, begin.Cat, begin.PID}, []any{e.Name, e.Cat, e.PID})
			assert.LessOrEqual(t, begin.At, e.At)
			delete(open, e.ID.Local)
		}
	}
	assert.Empty(t, open, "begins without an end")
	flows := map[int][]event{}
	for _, e := range list {
		if e.Flow == 0 {
			continue
		}
		flows[e.Flow] = append(flows[e.Flow], e)
		if e.Phase == phaseArrow && e.Bind == "" {
			next := slices.IndexFunc(slicesOf[track{e.PID, e.TID}], func(s event) bool { return s.At > e.At })
			require.Positive(t, next, "no slice follows the arrow's end: %v", e)
			wait := slicesOf[track{e.PID, e.TID}][next-1]
			assert.Equal(t, []any{e.At + 1, "waits"}, []any{wait.At + *wait.Turns, wait.Cat}, "the arrow's end is not the end of a wait: %v", e)
		}
		assert.True(t, slices.ContainsFunc(slicesOf[track{e.PID, e.TID}], func(s event) bool { return s.At <= e.At && e.At <= s.At+*s.Turns }), "an arrow outside the slices of its track: %v", e)
	}
	for _, f := range flows {
		require.GreaterOrEqual(t, len(f), 2)
		assert.Equal(t, []string{phaseFlow, phaseArrow}, []string{f[0].Phase, f[len(f)-1].Phase})
	}
	for at, list := range slicesOf {
		assert.True(t, named[at], "track %v has no name", at)
		slices.SortStableFunc(list, func(x, y event) int { return cmp.Compare(x.At, y.At) })
		for i := range list[1:] {
			assert.LessOrEqual(t, list[i].At+*list[i].Turns, list[i+1].At, "track %v: %v, %v", at, list[i], list[i+1])
		}
	}
}

// count returns the number of events of a category and phase.
func count(list []event, cat, phase string) (n int) {
	for _, e := range list {
		if e.Cat == cat && e.Phase == phase {
			n++
		}
	}
	return n
}

// TestTraceOfPipeline checks the trace of a TMA and wgmma pipeline.
func TestTraceOfPipeline(t *testing.T) {
	const steps, ctas, stages = 7, 3, 3
	g := gemm{n: 64, stages: stages}
	p := g.build(t)
	out, want, exact := g.arguments(p, steps)
	for _, timing := range []Timing{Early, Late, Random} {
		for _, most := range []int{0, 2, 9} {
			trace := &Trace{Most: most, CTAs: make([]CTATrace, 5), Fault: &Fault{}} // filled by an earlier launch
			p.launch.Trace, p.launch.Grid[0], p.launch.Timing = trace, ctas, timing
			require.NoError(t, p.run())
			g.check(t, p, out, want, exact)
			n := min(max(most, 1), ctas)
			require.Len(t, trace.CTAs, n)
			assert.Nil(t, trace.Fault)
			list := events(t, trace)
			checkEvents(t, list)
			assert.Equal(t, n*steps*2, count(list, "load", phaseBegin))
			for _, e := range list {
				if e.Cat == "load" && strings.Contains(e.Name, " + ") {
					assert.Regexp(t, ` \+ \d{6} `, e.Name)
				}
			}
			assert.Equal(t, n*steps, count(list, "wgmma", phaseBegin))
			assert.GreaterOrEqual(t, count(list, "order", phaseFlow), 2*n, "warps wait for copies")
			assert.Equal(t, n*(2*steps+2*stages), count(list, "mbarrier", phaseSlice), "each stage is filled and released; the phases after the last are open")
			for _, c := range trace.CTAs {
				busy := 0
				for _, f := range c.Flights {
					assert.Equal(t, f.Kind == BarrierPhase && f.To == c.Timeline.Turns, f.Unfinished, "%v", f)
					if f.Kind == ProductGroup {
						assert.Equal(t, gemmDepth/16, f.Count)
					}
					if f.Kind == BulkLoad && f.From < f.To {
						busy++
					}
				}
				if timing == Late {
					assert.Positive(t, busy, "copies are in flight while warps run")
				}
			}
		}
	}
	waits := 0
	for _, e := range events(t, p.launch.Trace) {
		if strings.HasPrefix(e.Name, "waits: mbarrier smem") {
			waits++
		}
	}
	assert.Positive(t, waits)
}

// TestTraceOfFault checks that the trace of a launch that deadlocks ends with the fault, and that
// the CTAs that did not start are absent.
func TestTraceOfFault(t *testing.T) {
	g := gemm{n: 64, stages: 2, noRelease: true}
	p := g.build(t)
	g.arguments(p, 5)
	trace := &Trace{Most: 4}
	p.launch.Trace, p.launch.Grid[0], p.launch.Parallel, p.launch.Timing = trace, 4, 1, Late
	require.ErrorContains(t, p.run(), "deadlock")
	require.Len(t, trace.CTAs, 1)
	list := events(t, trace)
	checkEvents(t, list)
	assert.Equal(t, 1, count(list, "fault", phaseInstant))
	assert.Equal(t, Deadlock, trace.Fault.Kind)

	p.launch.Timing = Chosen
	assert.ErrorContains(t, p.run(), "Timing Chosen has no trace")
}

// TestTraceOfStores checks that a bulk store ends where the wait with .read allows the next use of
// shared memory, and that the write of global memory then goes on to the wait without .read.
func TestTraceOfStores(t *testing.T) {
	const delay = "\tadd.u32 %r1, %r1, 1;\n"
	p := assemble(t, body(`
	mov.u32 %r0, smem;
	mov.u32 %r1, %tid.x;
	setp.ne.u32 %p0, %r1, 0;
	ld.param.u64 %d0, [out];
	@%p0 bra $end;
	st.shared.v4.u32 [%r0], {%r1, %r1, %r1, %r1};
	fence.proxy.async.shared::cta;
	cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r0], 16;
	cp.async.bulk.commit_group;
`+strings.Repeat(delay, 10)+`	cp.async.bulk.wait_group.read 0;
`+strings.Repeat(delay, 20)+`	cp.async.bulk.wait_group 0;
$end:
`), "k")
	p.params(p.u32s(1, 2, 3, 4), 0)
	trace := &Trace{}
	p.launch.SharedBytes, p.launch.Timing, p.launch.Trace = 16, Late, trace
	require.NoError(t, p.run())
	checkEvents(t, events(t, trace))
	list := trace.CTAs[0].Flights
	require.Len(t, list, 2)
	assert.InDelta(t, 12, list[0].To-list[0].From, 2, "from the copy to the wait with .read; the other lanes take a turn now and then")
	assert.InDelta(t, 21, list[1].To-list[1].From, 2, "from one wait to the other")
	assert.Equal(t, list[0].To, list[1].From)
	assert.Contains(t, list[0].Name, "store from smem")
	assert.Equal(t, []FlightKind{BulkStore, BulkStore}, []FlightKind{list[0].Kind, list[1].Kind})
}

// TestTraceOfMulticast checks that the trace of a cluster has each part of a multicast at the CTA to
// which the part goes.
func TestTraceOfMulticast(t *testing.T) {
	p := build(t, multicastKernel(3, true))
	const words = 64
	p.params(layout.TensorMap{Elem: layout.ElemU32, Rank: 2, Address: p.u32s(make([]uint32, words)...), Dims: [5]uint64{4, 16}, Strides: [4]uint64{16}, Box: [5]uint32{4, 8}},
		p.u32s(make([]uint32, 2*66)...))
	trace := &Trace{Most: 2}
	p.launch.Grid, p.launch.Cluster, p.launch.SharedBytes, p.launch.Trace = [3]int{2}, [3]int{2}, 512, trace
	require.NoError(t, p.run())
	list := events(t, trace)
	checkEvents(t, list)
	for i, c := range trace.CTAs {
		bytes := uint32(0)
		for _, f := range c.Flights {
			if f.Kind == BulkLoad {
				bytes += f.Bytes
			}
		}
		assert.EqualValues(t, [3]int{i}, c.CTA)
		assert.EqualValues(t, 4*words+16, bytes, "the box from both CTAs, and the note from CTA 0")
	}
}

// TestArrowToLastWait checks that the arrow to a warp's last wait leads to the slice of this wait.
func TestArrowToLastWait(t *testing.T) {
	wait := Span{From: 2, To: 9, Waits: "mbarrier smem"}
	c := CTATrace{Timeline: Timeline{Turns: 9, Warps: []WarpTimeline{{Spans: []Span{{To: 2}, wait}}}}, Flights: []Flight{{Kind: BarrierPhase, Name: "mbarrier smem", To: 8}}}
	list := events(t, &Trace{CTAs: []CTATrace{c}})
	checkEvents(t, list)
	end := list[len(list)-1]
	assert.Equal(t, []any{phaseArrow, bindEnclosing, 8}, []any{end.Phase, end.Bind, end.At})
}
