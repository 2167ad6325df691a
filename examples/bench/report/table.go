package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"sonicmoe/internal/peers"
)

// grid is a text table. Its first column is left-aligned, and the others are right-aligned.
type grid struct {
	rows   [][]string
	indent string
}

// add adds a line. A missing cell is empty.
func (g *grid) add(cells ...string) { g.rows = append(g.rows, cells) }

func (g *grid) print(w io.Writer) {
	first := 0
	for _, r := range g.rows {
		first = max(first, len([]rune(r[0])))
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, r := range g.rows {
		fmt.Fprintf(t, "%s%-*s\t%s\t\n", g.indent, first, r[0], strings.Join(r[1:], "\t"))
	}
	t.Flush()
}

// number formats v with a number of decimals. It returns "" for 0.
func number(v float64, decimals int) string {
	if v == 0 {
		return ""
	}
	return fmt.Sprintf("%.*f", decimals, v)
}

func percent(part, whole float64) string {
	if part == 0 || whole == 0 {
		return ""
	}
	return fmt.Sprintf("%.0f %%", 100*part/whole)
}

// PrintHead prints the device, and how its times were measured.
func PrintHead(w io.Writer, r *Report) {
	fmt.Fprintf(w, "%s, %d SMs, %s, %s\n", r.Device, r.SMs, r.Driver, r.Time.Format("2006-01-02 15:04 MST"))
	fmt.Fprintf(w, "%s; %.0f ms of load, then the median of %d repeats, by events; roofline at %.0f TFLOPS and %.2f TB/s\n",
		r.passes(), r.WarmMS, r.Repeats, r.RooflineTFLOPS, r.RooflineTBps)
	if r.Emulated {
		fmt.Fprintln(w, "EMULATED: these times are the host's and mean nothing")
	}
	printWarnings(w, "", r.Warnings)
	fmt.Fprintln(w)
}

func printWarnings(w io.Writer, indent string, list []string) {
	for _, text := range list {
		fmt.Fprintf(w, "%swarning: %s\n", indent, text)
	}
}

// passes returns the names of the report's passes.
func (r *Report) passes() string {
	var names []string
	for _, s := range r.Sections() {
		names = append(names, s.Pass)
	}
	return strings.Join(names, ", then ")
}

// PrintRow prints the results of one row of a report in detail.
func PrintRow(w io.Writer, r Row) {
	fmt.Fprintf(w, "%s  (d,n,E,K = %s, T = %d)\n", r.Name, r.Shape, r.Tokens)
	printMade(w, r)
	printWhole(w, r)
	printKernels(w, r)
	printAlone(w, r)
	printPeers(w, r)
	printHost(w, r)
	printRouting(w, r)
	printPoints(w, r)
	printStartup(w, r)
	if r.Error != "" {
		fmt.Fprintf(w, "  ERROR: %s\n", r.Error)
	}
	printWarnings(w, "  ", r.Warnings)
	fmt.Fprintln(w)
}

// printMade prints the tilings of the layer and the time of moe.New.
func printMade(w io.Writer, r Row) {
	if r.New == 0 {
		return
	}
	for _, p := range r.Tiles {
		fmt.Fprintf(w, "  %s %s", p.Product, p.Tiling)
	}
	fmt.Fprintf(w, "  made in %.0f ms: %d kernels, %d of them compiled\n", r.NewMS, r.New, r.Compiled)
}

// printStartup prints the times of moe.New that were measured with cache directories of their
// own.
func printStartup(w io.Writer, r Row) {
	for _, s := range r.Startup {
		fmt.Fprintf(w, "  start-up, %s: %d kernels; moe.New takes %.0f ms with an empty cache (all are compiled), %.0f ms with a filled one, %.1f ms once loaded\n",
			s.What, s.Kernels, s.ColdMS, s.WarmMS, s.AgainMS)
	}
}

func printWhole(w io.Writer, r Row) {
	if r.Eager == nil {
		return
	}
	g := grid{indent: "  "}
	g.add("whole", "median ms", "fastest", "slowest", "TFLOPS", "of roofline", "SM GHz")
	for _, m := range []struct {
		name string
		s    *Sample
	}{{"eager", r.Eager}, {"graph", r.Graph}, {"L2 flushed", r.Flushed}, {"rested chip", r.Cool}, {"sustained", r.Sustained}} {
		if m.s != nil {
			g.add(m.name, number(m.s.MedianMS, 4), number(m.s.FastestMS, 4), number(m.s.SlowestMS, 4),
				number(r.Roofline*r.RooflineMS/m.s.MedianMS, 0), percent(r.RooflineMS, m.s.MedianMS), number(m.s.GHz(), 3))
		}
	}
	g.add("roofline", number(r.RooflineMS, 4), "", "", number(r.Roofline, 0))
	g.print(w)
	if e := r.Energy; e != nil {
		fmt.Fprintf(w, "  steady: %.4g ms and %.4g J a pass at %.0f W and %.3f GHz, %.3f pJ a FLOP, over %d passes\n", e.MS, e.Joules, e.Watts, e.GHz, e.PicojoulesPerFLOP, e.Passes)
	}
}

func printKernels(w io.Writer, r Row) {
	if len(r.Kernels) == 0 {
		return
	}
	g := grid{indent: "  "}
	g.add("kernel", "median ms", "fastest", "slowest", "TFLOPS", "of roofline", "roofline ms", "TB/s", "of the sum")
	for _, k := range r.Kernels {
		g.add(k.Name, number(k.MedianMS, 4), number(k.FastestMS, 4), number(k.SlowestMS, 4), number(k.TFLOPS, 0),
			percent(k.RooflineMS, k.MedianMS), number(k.RooflineMS, 4), number(k.TBps, 2), percent(k.MedianMS, r.KernelSumMS))
	}
	g.add("all", number(r.KernelSumMS, 4), "", "", "", percent(r.RooflineMS, r.KernelSumMS), number(r.RooflineMS, 4))
	g.print(w)
	if r.Graph != nil {
		fmt.Fprintf(w, "  with an event before each kernel they add up to %+.1f %% of an eager pass; a graph replay takes %+.1f %% of the sum\n",
			100*(r.KernelSumMS/r.Eager.MedianMS-1), 100*(r.Graph.MedianMS/r.KernelSumMS-1))
	}
}

// printAlone prints the energy of the kernels that were measured alone.
func printAlone(w io.Writer, r Row) {
	g, joules := grid{indent: "  "}, 0.0
	g.add("alone, steady", "ms", "mJ", "W", "SM GHz", "pJ a FLOP", "TFLOPS", "TB/s")
	for _, k := range r.Kernels {
		if e := k.Alone; e != nil {
			times := k.MedianMS / e.MS
			g.add(k.Name, number(e.MS, 4), number(1e3*e.Joules, 1), number(e.Watts, 0), number(e.GHz, 3), number(e.PicojoulesPerFLOP, 3), number(k.TFLOPS*times, 0), number(k.TBps*times, 2))
			joules += e.Joules
		}
	}
	if joules == 0 {
		return
	}
	share := ""
	if r.Energy != nil {
		share = percent(joules, r.Energy.Joules) + " of a pass"
	}
	g.add("all", "", number(1e3*joules, 1), share)
	g.print(w)
}

func printPeers(w io.Writer, r Row) {
	if len(r.Peers) == 0 || r.TFLOPS == 0 {
		return
	}
	var list []string
	for _, p := range r.Peers {
		list = append(list, fmt.Sprintf("%s %.0f (ours x%.2f)", p.Name, p.TFLOPS, p.Ratio))
	}
	fmt.Fprintf(w, "  %.0f TFLOPS; recorded: %s\n", r.TFLOPS, strings.Join(list, ", "))
}

func printHost(w io.Writer, r Row) {
	if h := r.Host; h != nil {
		fmt.Fprintf(w, "  host: eager call %.1f µs (%.1f to %.1f), %.2f allocations; graph launch %.1f µs (%.1f to %.1f), %.2f allocations\n",
			h.EagerUS, h.EagerLowUS, h.EagerHighUS, h.EagerAllocs, h.GraphUS, h.GraphLowUS, h.GraphHighUS, h.GraphAllocs)
		fmt.Fprintf(w, "        until a single call returns: median (and 10th to 90th percentile) of %d calls, %d at a time on a stream that was idle\n",
			h.Batches*h.Batch, h.Batch)
	}
}

func printRouting(w io.Writer, r Row) {
	if len(r.Routing) == 0 {
		return
	}
	g := grid{indent: "  "}
	g.add("experts only", "median ms", "M rows/s", "of uniform", "fullest expert", "empty", "SM GHz")
	for _, v := range r.Routing {
		g.add(v.Kind, number(v.Sample.MedianMS, 4), number(v.RowsPerSecond/1e6, 1), percent(v.Uniform, 1),
			fmt.Sprintf("x%.1f", v.Largest), fmt.Sprint(v.Empty), number(v.Sample.GHz(), 3))
	}
	g.print(w)
}

// printPoints prints the measured tilings, the fastest first. It also prints by how much the
// default choice is slower than the best tiling.
func printPoints(w io.Writer, r Row) {
	for rest := r.Points; len(rest) > 0; {
		product, n := rest[0].Product, 1
		for n < len(rest) && rest[n].Product == product {
			n++
		}
		of := rest[:n]
		rest = rest[n:]
		g := grid{indent: "  "}
		g.add(product+" point", "ms", "over best", "model ms", "")
		lost := "the default point was not measured"
		for _, v := range of {
			over, mark := 100*(v.MS/of[0].MS-1), ""
			if v.Chosen {
				mark = "default"
				lost = fmt.Sprintf("the default takes %.1f %% more than the best of %d", over, len(of))
			}
			g.add(v.Point.String(), number(v.MS, 4), fmt.Sprintf("%+.1f %%", over), number(v.EstimateMS, 4), mark)
		}
		g.print(w)
		fmt.Fprintf(w, "  %s: %s\n", product, lost)
	}
}

// PrintSummary prints all rows of a pass in one table.
func PrintSummary(w io.Writer, rep *Section) {
	g := grid{}
	g.add(rep.Pass, "ms", "TFLOPS", "roofline", "of it", "cuBLAS", "SonicMoE", "ours/Sonic", "rested", "next peer", "SM GHz", "spread")
	for _, r := range rep.Rows {
		if r.Eager == nil {
			g.add(r.Name, "failed", "", number(r.Roofline, 0), "", "", "", "", "", "", "", "")
			continue
		}
		best, sonic, cublas := Peer{}, Peer{}, Peer{}
		for _, p := range r.Peers {
			switch {
			case p.Name == "cuBLAS":
				cublas = p
			case p.Name == "SonicMoE":
				sonic = p
			case p.TFLOPS > best.TFLOPS:
				best = p
			}
		}
		next := ""
		if best.TFLOPS > 0 {
			next = fmt.Sprintf("%s %.0f", best.Name, best.TFLOPS)
		}
		ms := r.Roofline * r.RooflineMS / r.TFLOPS
		g.add(r.Name, number(ms, 4), number(r.TFLOPS, 0), number(r.Roofline, 0), percent(r.TFLOPS, r.Roofline),
			number(cublas.TFLOPS, 0), number(sonic.TFLOPS, 0), number(sonic.Ratio, 2), number(r.rested(), 2), next, number(r.Eager.GHz(), 2), percent(r.Eager.Spread(), 1))
	}
	g.print(w)
	if rep.Sonic > 0 {
		fmt.Fprintf(w, "%s: geometric mean of our speed over %s's: %.3f\n", rep.Pass, peers.SonicVersion, rep.Sonic)
	}
	if rep.SonicRested > 0 {
		fmt.Fprintf(w, "on a rested chip, as SonicMoE's figures were measured: %.3f\n", rep.SonicRested)
	}
	printLowest(w, rep)
	for _, r := range rep.Rows {
		if r.Error != "" {
			fmt.Fprintf(w, "%s: ERROR: %s\n", r.Name, r.Error)
		}
		if len(r.Warnings) > 0 {
			fmt.Fprintf(w, "%s: %d warnings, see above\n", r.Name, len(r.Warnings))
		}
	}
}

// printLowest prints, for the three rows that are furthest from their roofline, the time that
// each kernel loses.
func printLowest(w io.Writer, rep *Section) {
	var rows []Row
	for _, r := range rep.Rows {
		if r.KernelSumMS > 0 {
			rows = append(rows, r)
		}
	}
	slices.SortStableFunc(rows, func(a, b Row) int { return cmp.Compare(a.TFLOPS/a.Roofline, b.TFLOPS/b.Roofline) })
	for _, r := range rows[:min(3, len(rows))] {
		kernels := slices.Clone(r.Kernels)
		lost := func(k Kernel) float64 { return k.MedianMS - k.RooflineMS }
		slices.SortStableFunc(kernels, func(a, b Kernel) int { return cmp.Compare(lost(b), lost(a)) })
		var list []string
		for _, k := range kernels {
			list = append(list, fmt.Sprintf("%s %.4f", k.Name, lost(k)))
		}
		fmt.Fprintf(w, "lowest: %s, %s of its roofline; ms over theirs: %s\n", r.Name, percent(r.TFLOPS, r.Roofline), strings.Join(list, ", "))
	}
}
