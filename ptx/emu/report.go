package emu

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math/bits"
	"slices"
	"strings"

	"sonicmoe/ptx/isa"
)

// Report counts what a launch did: instructions, accesses, bytes and turns. The counts do not give
// times.
type Report struct {
	Kernel string
	// Instructions lists the instructions that ran, in the order of the PTX text.
	Instructions []Counts
	// TouchedRead and TouchedWritten count the sectors of global memory that the launch read and
	// wrote, each sector once. This is the least traffic between the L2 cache and memory.
	TouchedRead, TouchedWritten uint64
	// Timeline shows the warps of the grid's first CTA.
	Timeline Timeline
	// Fault is the fault that ended the launch, or nil. The counts end at the fault.
	Fault *Fault
}

// Counts has the counts of one instruction of the kernel.
type Counts struct {
	Line     int
	Where    string // source position of Line, if known
	Op, Role string
	// By is the unit that moves the bytes: the threads, or the unit that copies or multiplies for
	// them.
	By Mover
	// Warps is how often a warp executed the instruction. Lanes is the sum of the executing lanes.
	Warps, Lanes uint64
	// Wavefronts is the number of steps that shared memory needed for accesses by threads.
	// LeastWavefronts is the number without bank conflicts.
	Wavefronts, LeastWavefronts uint64
	// Sectors is the number of 32-byte sectors of global memory that the accesses touched.
	// LeastSectors is the least number that could hold the same bytes.
	Sectors, LeastSectors uint64
	// These fields count the bytes that lanes, copies and products accessed. Cluster means the
	// shared memory of other CTAs.
	SharedRead, SharedWritten, ClusterRead, ClusterWritten, GlobalRead, GlobalWritten uint64
	// SectorsWritten is how many of Sectors were written. Atomics count as writes.
	SectorsWritten uint64
}

// Mover is the unit that moves the bytes of an instruction.
type Mover uint8

// The units that move bytes.
const (
	ByThreads Mover = iota
	ByCpAsync
	ByTMA
	ByWgmma
)

var moverNames = [...]string{"threads", "cp.async", "TMA", "wgmma"}

// String returns the mover's name.
func (m Mover) String() string { return moverNames[m] }

func (in *inst) mover() Mover {
	switch id := in.form.ID; {
	case id == isa.CpAsyncCG, id == isa.CpAsyncCA:
		return ByCpAsync
	case forms[id].bulk:
		return ByTMA
	case in.product != nil:
		return ByWgmma
	}
	return ByThreads
}

func (c *Counts) add(o *Counts) {
	c.Warps, c.Lanes = c.Warps+o.Warps, c.Lanes+o.Lanes
	c.Wavefronts, c.LeastWavefronts = c.Wavefronts+o.Wavefronts, c.LeastWavefronts+o.LeastWavefronts
	c.Sectors, c.LeastSectors, c.SectorsWritten = c.Sectors+o.Sectors, c.LeastSectors+o.LeastSectors, c.SectorsWritten+o.SectorsWritten
	c.SharedRead, c.SharedWritten = c.SharedRead+o.SharedRead, c.SharedWritten+o.SharedWritten
	c.ClusterRead, c.ClusterWritten = c.ClusterRead+o.ClusterRead, c.ClusterWritten+o.ClusterWritten
	c.GlobalRead, c.GlobalWritten = c.GlobalRead+o.GlobalRead, c.GlobalWritten+o.GlobalWritten
}

// count gives the cluster a counter if the launch fills a report.
func (g *grid) count(cl *cluster) {
	if g.launch.Report == nil {
		return
	}
	cl.counter = &counter{by: make([]Counts, len(g.kernel.code))}
	g.mu.Lock()
	g.counters = append(g.counters, cl.counter)
	g.mu.Unlock()
}

// fill fills report r from the counters of all clusters.
func (g *grid) fill(r *Report) {
	*r = Report{Kernel: g.kernel.entry.Name, Timeline: r.Timeline}
	var read, written pages
	sums := make([]Counts, len(g.kernel.code))
	for _, c := range g.counters {
		for i := range sums {
			sums[i].add(&c.by[i])
		}
		read.join(c.read)
		written.join(c.written)
	}
	r.TouchedRead, r.TouchedWritten = read.count(), written.count()
	lines := map[int]string{}
	where := func(line int) string {
		if _, ok := lines[line]; !ok {
			lines[line] = g.where(line)
		}
		return lines[line]
	}
	for i := range sums {
		if c := &sums[i]; c.Warps > 0 {
			in := &g.kernel.code[i]
			c.Line, c.Where, c.Op, c.Role, c.By = in.line, where(in.line), in.form.Op+in.mod("space"), in.role, in.mover()
			r.Instructions = append(r.Instructions, *c)
		}
	}
	r.Timeline.explain(where)
}

// sectorBytes is the size of the pieces in which global memory and its caches move data.
const sectorBytes = 32

// pages is a set of 32-byte sectors: it maps the number of a page of memory to a bitmap of its
// sectors.
type pages map[uint64]*[pageSectors / 64]uint64

const pageSectors = 2048

func (p *pages) add(sector uint64) {
	if *p == nil {
		*p = pages{}
	}
	page := (*p)[sector/pageSectors]
	if page == nil {
		page = &[pageSectors / 64]uint64{}
		(*p)[sector/pageSectors] = page
	}
	page[sector%pageSectors/64] |= 1 << (sector % 64)
}

func (p *pages) join(o pages) {
	if *p == nil {
		*p = pages{}
	}
	for at, from := range o {
		to := (*p)[at]
		if to == nil {
			to = &[pageSectors / 64]uint64{}
			(*p)[at] = to
		}
		for i, b := range from {
			to[i] |= b
		}
	}
}

func (p pages) count() (n uint64) {
	for _, page := range p {
		for _, b := range page {
			n += uint64(bits.OnesCount64(b))
		}
	}
	return n
}

// Part is a section of the text of a report.
type Part string

// Parts lists the sections of the text of a report, in their order.
var Parts = []Part{"bytes", "conflicts", "sectors", "mix", "timeline"}

// mostLines is the largest number of instructions that a list of conflicts or sectors has.
const mostLines = 12

// Write writes the given sections of the report as text.
func (r *Report) Write(w io.Writer, parts ...Part) error {
	var b strings.Builder
	fmt.Fprintf(&b, "kernel %s: counts, not times\n", r.Kernel)
	if r.Fault != nil {
		fmt.Fprintf(&b, "The kernel did not end; counts stop at its fault: %v in line %d\n", r.Fault.Kind, r.Fault.Line)
	}
	for _, p := range parts {
		write := map[Part]func(*strings.Builder){"bytes": r.bytes, "conflicts": r.conflicts, "sectors": r.sectors, "mix": r.mix, "timeline": r.Timeline.write}[p]
		if write == nil {
			return fmt.Errorf("report part is %q, want one of %v", p, Parts)
		}
		b.WriteString("\n")
		write(&b)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// bytes writes a table of the bytes moved at each level of memory.
func (r *Report) bytes(b *strings.Builder) {
	fmt.Fprintf(b, "%-44s%14s%14s\n", "bytes", "read", "written")
	row := func(name string, read, written uint64) {
		if read+written > 0 {
			fmt.Fprintf(b, "  %-42s%14d%14d\n", name, read, written)
		}
	}
	var all Counts
	by := [len(moverNames)]Counts{}
	for i := range r.Instructions {
		all.add(&r.Instructions[i])
		by[r.Instructions[i].By].add(&r.Instructions[i])
	}
	for m := range by {
		row("shared memory, by "+Mover(m).String(), by[m].SharedRead, by[m].SharedWritten)
	}
	for m := range by {
		row("other CTAs' shared memory, by "+Mover(m).String(), by[m].ClusterRead, by[m].ClusterWritten)
	}
	for m := range by {
		row("global memory, by "+Mover(m).String(), by[m].GlobalRead, by[m].GlobalWritten)
	}
	row("L2, in sectors, if L1 held nothing", (all.Sectors-all.SectorsWritten)*sectorBytes, all.SectorsWritten*sectorBytes)
	row("memory, in sectors, if L2 held everything", r.TouchedRead*sectorBytes, r.TouchedWritten*sectorBytes)
}

// place returns a text with an instruction's line, its source position and its mnemonic.
func (c *Counts) place() string {
	text := fmt.Sprintf("line %d", c.Line)
	if c.Where != "" {
		text += " = " + c.Where
	}
	return text + " " + c.Op
}

// worst lists the instructions that cost more than the minimum, those with the largest excess
// first.
func (r *Report) worst(b *strings.Builder, what string, cost func(c *Counts) (is, least uint64)) {
	var list []*Counts
	var is, least uint64
	for i := range r.Instructions {
		c := &r.Instructions[i]
		x, y := cost(c)
		if is, least = is+x, least+y; x > y {
			list = append(list, c)
		}
	}
	fmt.Fprintf(b, "%s: %d, least %d\n", what, is, least)
	slices.SortStableFunc(list, func(c, o *Counts) int {
		x, y := cost(c)
		u, v := cost(o)
		return cmp.Compare(u-v, x-y)
	})
	for i, c := range list {
		if i == mostLines {
			fmt.Fprintf(b, "  and %d more lines\n", len(list)-i)
			break
		}
		x, y := cost(c)
		fmt.Fprintf(b, "  %d, least %d, by %d warps: %s\n", x, y, c.Warps, c.place())
	}
}

func (r *Report) conflicts(b *strings.Builder) {
	r.worst(b, "wavefronts of shared memory", func(c *Counts) (is, least uint64) { return c.Wavefronts, c.LeastWavefronts })
}

func (r *Report) sectors(b *strings.Builder) {
	r.worst(b, "sectors of global memory", func(c *Counts) (is, least uint64) { return c.Sectors, c.LeastSectors })
}

// mix writes how often each kind of instruction ran, for each role.
func (r *Report) mix(b *strings.Builder) {
	type tally struct{ warps, lanes uint64 }
	roles, totals := map[string]map[string]uint64{}, map[string]*tally{}
	for i := range r.Instructions {
		c := &r.Instructions[i]
		if roles[c.Role] == nil {
			roles[c.Role], totals[c.Role] = map[string]uint64{}, &tally{}
		}
		roles[c.Role][c.Op] += c.Warps
		totals[c.Role].warps += c.Warps
		totals[c.Role].lanes += c.Lanes
	}
	b.WriteString("instructions of warps\n")
	for _, role := range slices.SortedFunc(maps.Keys(roles), func(x, y string) int {
		return cmp.Or(cmp.Compare(totals[y].warps, totals[x].warps), cmp.Compare(x, y))
	}) {
		ops, total := roles[role], totals[role]
		name := cmp.Or(role, "outside roles")
		fmt.Fprintf(b, "  %s: %d, of %.1f lanes each:", name, total.warps, float64(total.lanes)/float64(total.warps))
		sorted := slices.SortedFunc(maps.Keys(ops), func(x, y string) int { return cmp.Or(cmp.Compare(ops[y], ops[x]), cmp.Compare(x, y)) })
		for i, op := range sorted {
			if i == mostLines && i < len(sorted)-1 {
				fmt.Fprintf(b, ", %d others", len(sorted)-i)
				break
			}
			fmt.Fprintf(b, "%s %s %d", strings.Repeat(",", min(i, 1)), op, ops[op])
		}
		b.WriteString("\n")
	}
}
