package report

import (
	"fmt"
	"image/color"
	"io"
	"math"
	"strings"

	"sonicmoe/internal/strict"

	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// Comparison holds times of this library and of SonicMoE that were measured in one run, in
// milliseconds.
type Comparison struct {
	// SonicMoE is the version that this library is compared with in Rows and Products. Date and
	// Commit say when this library was measured, and at which commit.
	Device, SonicMoE, Date, Commit string
	Rows                           []ComparedRow
	// FirstSeconds is a range over the rows: the least and the largest time of SonicMoE's first
	// forward and backward pass, including its autotuning.
	FirstSeconds [2]float64 `json:"first_seconds"`
	// ProductLayers names the layers in which the products were measured.
	ProductLayers []string `json:"product_layers"`
	Products      []ComparedProduct
	Alone         Alone
}

// Pair holds two figures: first this library's, then SonicMoE's.
type Pair [2]float64

// Ratio returns SonicMoE's figure divided by this library's.
func (p Pair) Ratio() float64 { return p[1] / p[0] }

// ComparedRow holds the times of one layer in each regime.
type ComparedRow struct {
	Name, Shape       string // d,n,E,K
	Tokens            int
	Forward, Backward Regimes
}

// of returns the times of a pass, "Forward" or "Backward".
func (r ComparedRow) of(pass string) Regimes {
	if pass == "Backward" {
		return r.Backward
	}
	return r.Forward
}

// Regimes holds the times of a pass on a rested chip, after 200 ms of load, and in steady load,
// and the energy of a pass in steady load (Joules).
type Regimes struct {
	Rested, Load, Steady, Joules Pair
	// Eager is SonicMoE's time in steady load when the host launches each kernel. Its other times
	// are of CUDA graphs.
	Eager float64
}

// List returns the pairs in the order of the page's columns.
func (p Regimes) List() [4]Pair { return [4]Pair{p.Rested, p.Load, p.Steady, p.Joules} }

// EagerRatio returns SonicMoE's time with launches by the host divided by this library's time, in
// steady load.
func (p Regimes) EagerRatio() float64 { return p.Eager / p.Steady[0] }

// ComparedProduct holds the times of one grouped product alone in steady load, and its energy in
// picojoules a FLOP. SonicMoE calls quack-kernels for it.
type ComparedProduct struct {
	Name   string
	MS, PJ []Pair
}

// Ratio returns the geometric mean of the times' ratios over the layers.
func (p ComparedProduct) Ratio() float64 { return mean(p.MS) }

// Alone holds times of this library without a competitor, from another run.
type Alone struct {
	Date, Commit string
	// CuBLAS8192 is the speed of cuBLAS in an 8192³ bf16 product, in TFLOPS.
	CuBLAS8192 struct{ Rested, Load, Steady float64 }
	Rows       []struct {
		Name, Shape       string // d,n,E,K
		Tokens            int
		Forward, Backward AlonePass
	}
	// Models holds the times of models' layers: forward passes after 200 ms of load. ModelsDate and
	// ModelsCommit say when they were measured, and CuBLAS8192 with them.
	Models       []ModelTime
	ModelsDate   string `json:"models_date"`
	ModelsCommit string `json:"models_commit"`
}

// AlonePass holds the times of a pass on a rested chip, and after 200 ms and 2 s of load, and the
// energy of a pass in steady load. 0 means not measured.
type AlonePass struct {
	Rested, Load float64
	Load2s       float64 `json:"load_2s"`
	Joules       float64
	// OfRoofline is the share of the roofline on a rested chip.
	OfRoofline float64 `json:"of_roofline"`
}

// ModelTime holds the times of a layer of a published model.
type ModelTime struct {
	Name       string
	ForwardMS  float64 `json:"forward_ms"`
	OfRoofline float64 `json:"of_roofline"`
}

// mean returns the geometric mean of the ratios of pairs.
func mean(pairs []Pair) float64 {
	var sum float64
	for _, p := range pairs {
		sum += math.Log(p.Ratio())
	}
	return math.Exp(sum / float64(len(pairs)))
}

// Means returns the geometric means of the ratios over the rows for one pass. It has one mean
// for each regime (rested, after 200 ms of load, steady), one for the energy in steady load, and
// one for SonicMoE with launches by the host.
func (f Comparison) Means(pass string) []float64 {
	var pairs [5][]Pair
	for _, r := range f.Rows {
		of := r.of(pass)
		for i, v := range of.List() {
			pairs[i] = append(pairs[i], v)
		}
		pairs[4] = append(pairs[4], Pair{of.Steady[0], of.Eager})
	}
	list := make([]float64, len(pairs))
	for i, p := range pairs {
		list[i] = mean(p)
	}
	return list
}

// ParseComparison reads the text of a comparison's file. A field that Comparison does not have
// is an error.
func ParseComparison(data []byte) (c Comparison, err error) {
	return c, strict.Decode(data, &c)
}

// regimes lists the figures of Regimes.List, with their names and colours.
var regimes = []struct {
	name string
	fill color.Color
}{
	{"rested", peerShade["ScatterMoE"]}, {"after 200 ms of load", peerShade["MoMoE"]}, {"steady", ours}, {"steady, in joules", color.RGBA{0xfd, 0xae, 0x6b, 255}},
}

// PrintComparison prints the ratios of both passes in each regime.
func PrintComparison(w io.Writer, c Comparison) {
	fmt.Fprintf(w, "SonicMoE %s and this library at commit %s on %s, %s: SonicMoE's time over this library's\n", c.SonicMoE, c.Commit, c.Device, c.Date)
	g := grid{rows: [][]string{{"layer", "pass"}}}
	for _, r := range regimes {
		g.rows[0] = append(g.rows[0], r.name)
	}
	g.rows[0] = append(g.rows[0], "steady, launched by the host")
	line := func(name, pass string, values []float64) {
		cells := []string{name, pass}
		for _, v := range values {
			cells = append(cells, number(v, 2))
		}
		g.add(cells...)
	}
	for _, r := range c.Rows {
		for _, pass := range []string{"Forward", "Backward"} {
			var values []float64
			for _, p := range r.of(pass).List() {
				values = append(values, p.Ratio())
			}
			values = append(values, r.of(pass).EagerRatio())
			line(r.Name, strings.ToLower(pass), values)
		}
	}
	for _, pass := range []string{"Forward", "Backward"} {
		line("geometric mean", strings.ToLower(pass), c.Means(pass))
	}
	g.print(w)
}

// DrawComparison draws, for each layer, pass and regime, by how many percent SonicMoE's time
// exceeds this library's.
func DrawComparison(c Comparison, file string) error {
	if len(c.Rows) == 0 {
		return fmt.Errorf("no layer was compared")
	}
	var labels []string
	values, least := make([]plotter.Values, len(regimes)), 0.0
	for _, pass := range []string{"Forward", "Backward"} {
		for _, r := range c.Rows {
			labels = append(labels, r.Name+" "+strings.ToLower(pass))
			for i, p := range r.of(pass).List() {
				v := 100 * (p.Ratio() - 1)
				values[i], least = append(values[i], v), min(least, v)
			}
		}
	}
	version, _, _ := strings.Cut(c.SonicMoE, " ")
	chart := newChart(fmt.Sprintf("SonicMoE %s next to this library on %s, %s", version, c.Device, c.Date), "% that SonicMoE takes longer", labels, len(regimes))
	for i, r := range regimes {
		chart.bars(r.name, values[i], r.fill, vg.Points(barWidth), float64(i)-float64(len(regimes)-1)/2, nil)
	}
	chart.Y.Min = 5 * math.Floor(least/5)
	return chart.save(file)
}
