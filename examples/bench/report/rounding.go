package report

import (
	"fmt"
	"image/color"
	"io"
	"math"
	"slices"

	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"sonicmoe/internal/spec"
)

// RoundingPoint holds the measurements of a layer with and without token rounding.
type RoundingPoint struct {
	Size
	Rounding string `json:"rounding"`
	// Plain holds the figures without rounding, and Rounded holds the figures with rounding.
	Plain   RoundingSide `json:"plain"`
	Rounded RoundingSide `json:"rounded"`
}

// RoundingSide holds the figures of a layer either without or with rounding.
type RoundingSide struct {
	// Counts holds the number of rows of each expert.
	Counts []int `json:"counts"`
	// ForwardMS and BackwardMS are the median times of the passes.
	ForwardMS  float64 `json:"forward_ms"`
	BackwardMS float64 `json:"backward_ms"`
}

// Faster returns the fraction of the plain time that rounding saves.
func Faster(plain, rounded float64) float64 { return 1 - rounded/plain }

// Predicted returns the fraction that rounding would save if the time were proportional to the rows
// of all tiles. The parameter tile is the number of rows of a tile. Unused rows of a tile count.
func (p RoundingPoint) Predicted(tile int) float64 {
	return Faster(float64(spec.PaddedRows(p.Plain.Counts, tile)), float64(spec.PaddedRows(p.Rounded.Counts, tile)))
}

// PrintRoundingHead writes the titles of the columns of PrintRoundingPoint.
func PrintRoundingHead(w io.Writer, rounding string) {
	fmt.Fprintf(w, "d,n,E,K\tT\tforward ms\t%s\tfaster\tbackward ms\trounded\tfaster\tpadding/64\tpredicts\tpadding/128\tpredicts\t\n", rounding)
}

// PrintRoundingPoint writes a line for one measurement.
func PrintRoundingPoint(w io.Writer, p RoundingPoint) {
	f, g := p.Plain, p.Rounded
	fmt.Fprintf(w, "%s\t%d\t%.3f\t%.3f\t%+.1f %%\t%.3f\t%.3f\t%+.1f %%\t%.1f %%\t%+.1f %%\t%.1f %%\t%+.1f %%\t\n", p.Shape, p.Tokens,
		f.ForwardMS, g.ForwardMS, 100*Faster(f.ForwardMS, g.ForwardMS), f.BackwardMS, g.BackwardMS, 100*Faster(f.BackwardMS, g.BackwardMS),
		100*spec.Padding(f.Counts, 64), 100*p.Predicted(64), 100*spec.Padding(f.Counts, 128), 100*p.Predicted(128))
}

// DrawRounding draws two fractions for each shape: the fraction of each pass's time that
// rounding saves, and the fraction that Predicted returns.
func DrawRounding(points []RoundingPoint, file string) error {
	if len(points) == 0 {
		return fmt.Errorf("no row was measured")
	}
	var labels []string
	series := []struct {
		name   string
		of     func(p RoundingPoint) float64
		fill   color.Color
		values plotter.Values
	}{
		{"rows of 128 that pad", func(p RoundingPoint) float64 { return spec.Padding(p.Plain.Counts, 128) }, backdrop, nil},
		{"predicted by rows of 64", func(p RoundingPoint) float64 { return p.Predicted(64) }, peerShade["torch"], nil},
		{"predicted by rows of 128", func(p RoundingPoint) float64 { return p.Predicted(128) }, peerShade["ScatterMoE"], nil},
		{"forward", func(p RoundingPoint) float64 { return Faster(p.Plain.ForwardMS, p.Rounded.ForwardMS) }, ours, nil},
		{"backward", func(p RoundingPoint) float64 { return Faster(p.Plain.BackwardMS, p.Rounded.BackwardMS) }, peerShade["cuBLAS"], nil},
	}
	least := 0.0
	tokens := points[0].Tokens
	same := !slices.ContainsFunc(points, func(p RoundingPoint) bool { return p.Tokens != tokens })
	for _, p := range points {
		label := p.Size.String()
		if same { // the title then has the tokens, and short labels leave more room for the bars
			label = p.Shape
		}
		labels = append(labels, label)
		for i := range series {
			v := 100 * series[i].of(p)
			series[i].values, least = append(series[i].values, v), min(least, v)
		}
	}
	title := "Time that " + points[0].Rounding + " saves of plain top-K, by d,n,E,K"
	if same {
		title += fmt.Sprintf("; %d tokens", tokens)
	}
	c := newChart(title, "% of plain top-K's time", labels, len(series))
	for i, s := range series {
		c.bars(s.name, s.values, s.fill, vg.Points(barWidth), float64(i)-float64(len(series)-1)/2, nil)
	}
	c.Y.Min = 10 * math.Floor(least/10)
	return c.save(file)
}
