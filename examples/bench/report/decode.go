package report

import (
	"fmt"
	"image/color"
	"io"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"sonicmoe/examples/internal/picture"
)

// PeakTBps is the memory bandwidth of an H200 in TB/s, according to its datasheet.
const PeakTBps = 4.8

// DecodePoint is the time of inference with a small batch. A graph runs several layers,
// including their routing, one after another.
type DecodePoint struct {
	Name   string `json:"name"`
	Tokens int    `json:"tokens"`
	// Experts is the mean number of experts that at least one token chose. MB is the size of
	// their weights.
	Experts float64 `json:"experts"`
	MB      float64 `json:"mb"`
	// US is the median time of one layer in microseconds. FewUS is the time with the kernels
	// for small batches, and PrefillUS with the kernels for large batches. RoofUS is the time
	// to read the chosen experts' weights at the chip's bandwidth.
	US        float64 `json:"us"`
	FewUS     float64 `json:"few_us"`
	PrefillUS float64 `json:"prefill_us"`
	RoofUS    float64 `json:"roof_us"`
	// Share is RoofUS / US.
	Share float64 `json:"share"`
}

// PrintDecodeHead writes the titles of the columns of PrintDecodePoint.
func PrintDecodeHead(w io.Writer) {
	fmt.Fprintln(w, "layer\tT\texperts\tMB\tµs\tfew µs\tprefill µs\troof µs\tshare\t")
}

// PrintDecodePoint writes a line for one measurement.
func PrintDecodePoint(w io.Writer, p DecodePoint) {
	fmt.Fprintf(w, "%s\t%d\t%.1f\t%.0f\t%.1f\t%.1f\t%.1f\t%.1f\t%.0f %%\t\n", p.Name, p.Tokens, p.Experts, p.MB, p.US, p.FewUS, p.PrefillUS, p.RoofUS, 100*p.Share)
}

// decodeColours holds the colours of the layers, in order. If there are more layers, the
// colours repeat.
var decodeColours = []color.RGBA{
	{0xd9, 0x48, 0x01, 255}, {0x08, 0x51, 0x9c, 255}, {0x31, 0xa3, 0x54, 255}, {0x75, 0x6b, 0xb1, 255}, {0x75, 0x75, 0x75, 255},
}

// DrawDecode draws each layer's share of the memory bandwidth by batch size. The text where is the
// end of the picture's title.
func DrawDecode(points []DecodePoint, where, file string) error {
	axis := fmt.Sprintf("%% of %g TB/s, by the chosen experts' weights", PeakTBps)
	p := picture.New("Inference over small batches "+where, "tokens", axis)
	p.X.Scale = plot.LogScale{}
	var tokens []int
	for from, layer := 0, 0; from < len(points); layer++ {
		var xys plotter.XYs
		name := points[from].Name
		for ; from < len(points) && points[from].Name == name; from++ {
			xys = append(xys, plotter.XY{X: float64(points[from].Tokens), Y: 100 * points[from].Share})
			if layer == 0 {
				tokens = append(tokens, points[from].Tokens)
			}
		}
		line, dots, err := plotter.NewLinePoints(xys)
		if err != nil {
			return err
		}
		line.Color = decodeColours[layer%len(decodeColours)]
		dots.Color = line.Color
		p.Add(line, dots)
		p.Legend.Add(name, line, dots)
	}
	p.X.Min, p.X.Max = p.X.Min/1.5, p.X.Max*1.5 // a plot of a single batch size also needs a range of x
	p.X.Tick.Marker = plot.ConstantTicks(tokenTicks(tokens))
	p.Y.Min, p.Y.Max = 0, 100
	return picture.Save(p, vg.Points(560), vg.Points(340), file)
}

// tokenTicks returns a tick for every batch size that was measured. Powers of two have labels.
// Another size has a label if it is far enough from all other labels.
func tokenTicks(tokens []int) []plot.Tick {
	ticks := make([]plot.Tick, len(tokens))
	var named []int
	for _, powers := range []bool{true, false} {
		for i, t := range tokens {
			near := func(other int) bool { return 5*max(t, other) < 8*min(t, other) } // closer than the width of three digits
			if (t&(t-1) == 0) == powers && !slices.ContainsFunc(named, near) {
				named = append(named, t)
				ticks[i].Label = strconv.Itoa(t)
			}
			ticks[i].Value = float64(t)
		}
	}
	return ticks
}
