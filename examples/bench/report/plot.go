package report

import (
	"fmt"
	"image/color"
	"path/filepath"
	"slices"
	"strings"

	"sonicmoe/examples/internal/picture"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// These are the colours of the pictures. Ours stands out, peers are shades of one colour, and
// the roofline is light.
var (
	ours      = color.RGBA{0xd9, 0x48, 0x01, 255}
	backdrop  = color.RGBA{0xe4, 0xe4, 0xe4, 255}
	peerShade = map[string]color.RGBA{
		"cuBLAS":     {0x75, 0x75, 0x75, 255},
		"SonicMoE":   {0x08, 0x51, 0x9c, 255},
		"MoMoE":      {0x31, 0x82, 0xbd, 255},
		"ScatterMoE": {0x6b, 0xae, 0xd6, 255},
		"torch":      {0xbd, 0xd7, 0xe7, 255},
	}
	// cuBLAS may exceed the roofline, because the roofline also counts kernels that cuBLAS
	// does not run.
	peerNote  = map[string]string{"cuBLAS": " (products alone)"}
	peerOrder = []string{"cuBLAS", "SonicMoE", "MoMoE", "ScatterMoE", "torch"}
)

// Draw draws the two pictures of a pass and returns the names of their files. One picture shows the
// rows of the report with their rooflines and peers. The other picture shows the kernels with their
// rooflines.
func Draw(r *Report, s *Section, name string) ([]string, error) {
	kernels := Beside(name, "-kernels")
	for i, picture := range []struct {
		name string
		draw func(*Report, *Section, string) error
	}{{name, drawRows}, {kernels, drawKernels}} {
		if err := picture.draw(r, s, picture.name); err != nil {
			return []string{name, kernels}[:i], fmt.Errorf("drawing %s: %w", picture.name, err)
		}
	}
	return []string{name, kernels}, nil
}

// Beside returns a file name with the text more inserted before the extension.
func Beside(name, more string) string {
	return strings.TrimSuffix(name, filepath.Ext(name)) + more + filepath.Ext(name)
}

// chart is a bar chart under construction. It has a group of bars over each label.
type chart struct {
	*plot.Plot
	labels []string
	group  vg.Length // width of a group of bars
	err    error
}

const barWidth = 9 // points

// newChart returns a chart. The parameter side is the number of bars that fit next to each other
// over a label.
func newChart(title, axis string, labels []string, side int) *chart {
	p := picture.New(title, "", axis)
	p.Y.Min = 0
	// Labels slope down to the right, where the legend leaves room. To the left they would push
	// the y axis away from the bars.
	p.X.Tick.Label.Rotation, p.X.Tick.Label.XAlign, p.X.Tick.Label.YAlign = -0.6, 0, -0.5
	return &chart{Plot: p, labels: labels, group: vg.Points(barWidth * float64(side+1))}
}

// bars adds a bar over each label. The parameter right is the distance from the label's middle to
// the right, in widths of a bar. If on is not nil, the new bars are stacked on the bars of on. Bars
// without a name are not in the legend.
func (c *chart) bars(name string, values plotter.Values, fill color.Color, width vg.Length, right float64, on *plotter.BarChart) *plotter.BarChart {
	if c.err != nil {
		return nil
	}
	b, err := plotter.NewBarChart(values, width)
	if err != nil {
		c.err = err
		return nil
	}
	b.Color, b.Offset, b.LineStyle.Width = fill, vg.Points(right*barWidth), 0
	if on != nil {
		b.StackOn(on)
	}
	c.Add(b)
	if name != "" {
		c.Legend.Add(name, b)
	}
	return b
}

// save writes the picture with a width that fits the groups.
func (c *chart) save(file string) error {
	if c.err != nil {
		return c.err
	}
	c.NominalX(c.labels...)
	c.X.Min, c.X.Max = -0.7, float64(len(c.labels))-0.3
	c.Y.Max *= 1.05
	return picture.Save(c.Plot, max(vg.Length(len(c.labels))*(c.group+vg.Points(2*barWidth))+vg.Points(250), vg.Points(520)), vg.Points(420), file)
}

// drawRows draws the TFLOPS of each row of the report.
func drawRows(r *Report, s *Section, file string) error {
	var labels []string
	var roofline, own plotter.Values
	peers := map[string]plotter.Values{}
	present := map[string]bool{}
	for _, row := range s.Rows {
		if row.TFLOPS == 0 {
			continue
		}
		labels = append(labels, row.Name)
		roofline, own = append(roofline, row.Roofline), append(own, row.TFLOPS)
		speed := map[string]float64{}
		for _, p := range row.Peers {
			speed[p.Name], present[p.Name] = p.TFLOPS, true
		}
		for _, name := range peerOrder {
			peers[name] = append(peers[name], speed[name])
		}
	}
	if len(labels) == 0 {
		return fmt.Errorf("no row was measured")
	}
	side := 1 + len(present)
	c := newChart(title(r, s, ""), "TFLOPS", labels, side)
	c.bars("roofline", roofline, backdrop, c.group, 0, nil)
	right := -float64(side-1) / 2
	c.bars("ours", own, ours, vg.Points(barWidth), right, nil)
	for _, name := range peerOrder {
		if present[name] {
			right++
			c.bars(name+peerNote[name], peers[name], peerShade[name], vg.Points(barWidth), right, nil)
		}
	}
	return c.save(file)
}

func title(r *Report, s *Section, what string) string {
	text := fmt.Sprintf("%s%s on %s, %s, %s", s.Pass, what, r.Device, r.Driver, r.Time.Format("2006-01-02"))
	if r.Emulated {
		text += picture.Emulated
	}
	return text
}

// kernelColors holds the colours of kernels, in their order in a pass. If there are more
// kernels, the colours repeat.
var kernelColors = []color.RGBA{
	{0x9e, 0x9a, 0xc8, 255}, {0x52, 0x52, 0x52, 255}, {0xd9, 0x48, 0x01, 255}, {0x08, 0x51, 0x9c, 255}, {0x23, 0x8b, 0x45, 255}, {0xdf, 0xc2, 0x7d, 255},
	{0x8c, 0x2d, 0x04, 255}, {0x66, 0xc2, 0xa4, 255}, {0xe7, 0x8a, 0xc3, 255}, {0x41, 0xb6, 0xc4, 255}, {0xa6, 0x76, 0x1d, 255}, {0xbd, 0xbd, 0xbd, 255},
}

// faded returns the colour of a kernel's roofline, lighter than the kernel's colour.
func faded(c color.RGBA) color.RGBA {
	half := func(v uint8) uint8 { return v/2 + 128 }
	return color.RGBA{half(c.R), half(c.G), half(c.B), 255}
}

// drawKernels draws two stacks of bars for each row: the measured times of the kernels and, in
// lighter colours, their rooflines. The unit is the roofline of the whole row, so that large
// and small rows fit one picture.
func drawKernels(r *Report, s *Section, file string) error {
	var labels, kernels []string
	for _, row := range s.Rows {
		if len(row.Kernels) > 0 {
			labels = append(labels, row.Name)
		}
		for _, k := range row.Kernels {
			if !slices.Contains(kernels, k.Name) {
				kernels = append(kernels, k.Name)
			}
		}
	}
	if len(labels) == 0 {
		return fmt.Errorf("no kernel was measured")
	}
	c := newChart(title(r, s, " kernel by kernel"), "time / roofline of the layer (faded: roofline of the kernel)", labels, 3)
	var times, rooflines *plotter.BarChart
	for i, name := range kernels {
		own, least := kernelParts(s, name)
		fill := kernelColors[i%len(kernelColors)]
		times = c.bars(name, own, fill, vg.Points(1.5*barWidth), -0.8, times)
		rooflines = c.bars("", least, faded(fill), vg.Points(1.5*barWidth), 0.8, rooflines)
	}
	return c.save(file)
}

// kernelParts returns, for each row with kernels, the time and the roofline of one kernel as
// fractions of the row's roofline. They are 0 if the row does not have the kernel.
func kernelParts(s *Section, name string) (own, least plotter.Values) {
	for _, row := range s.Rows {
		if len(row.Kernels) == 0 {
			continue
		}
		var ms, roofline float64
		for _, k := range row.Kernels {
			if k.Name == name {
				ms, roofline = ms+k.MedianMS, roofline+k.RooflineMS
			}
		}
		own, least = append(own, ms/row.RooflineMS), append(least, roofline/row.RooflineMS)
	}
	return own, least
}
