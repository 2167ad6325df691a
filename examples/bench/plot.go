package main

import (
	"fmt"
	"image/color"
	"path/filepath"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// checkPicture refuses names whose ending is no known picture format.
func checkPicture(name string) error {
	switch ext := filepath.Ext(name); ext {
	case ".png", ".svg":
		return nil
	default:
		return fmt.Errorf("-plot %s ends in %q, must be .png or .svg", name, ext)
	}
}

// Colours of the pictures: ours stands out, peers are shades, the roofline a light backdrop.
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
	peerOrder = []string{"cuBLAS", "SonicMoE", "MoMoE", "ScatterMoE", "torch"}
)

// draw writes both pictures and gives their names: rows against roofline and
// peers, and kernels against their roofline.
func draw(r *Report, name string) ([]string, error) {
	kernels := strings.TrimSuffix(name, filepath.Ext(name)) + "-kernels" + filepath.Ext(name)
	for i, picture := range []struct {
		name string
		draw func(*Report, string) error
	}{{name, drawRows}, {kernels, drawKernels}} {
		if err := picture.draw(r, picture.name); err != nil {
			return []string{name, kernels}[:i], fmt.Errorf("drawing %s: %w", picture.name, err)
		}
	}
	return []string{name, kernels}, nil
}

// bars is one series: a bar for each label.
type bars struct {
	name   string
	values plotter.Values
	color  color.Color
}

// groups draws series side by side over labels and saves the picture. The
// series of wide are drawn behind, as broad as a whole group.
func groups(title, axis string, labels []string, wide []bars, series []bars, file string) error {
	p := plot.New()
	p.Title.Text, p.Y.Label.Text, p.Y.Min = title, axis, 0
	p.Title.Padding = vg.Points(8)
	p.Legend.Top = true
	p.Legend.YOffs = vg.Points(16)
	p.X.Tick.Label.Rotation, p.X.Tick.Label.XAlign, p.X.Tick.Label.YAlign = 0.6, -1, -0.5
	const bar = 9.
	width := vg.Points(bar)
	group := vg.Points(bar * float64(len(series)+1))
	add := func(b bars, w, offset vg.Length) error {
		c, err := plotter.NewBarChart(b.values, w)
		if err != nil {
			return err
		}
		c.Color, c.Offset, c.LineStyle.Width = b.color, offset, 0
		p.Add(c)
		p.Legend.Add(b.name, c)
		return nil
	}
	for _, b := range wide {
		if err := add(b, group, 0); err != nil {
			return err
		}
	}
	for i, b := range series {
		if err := add(b, width, vg.Length(float64(i)-float64(len(series)-1)/2)*width); err != nil {
			return err
		}
	}
	p.NominalX(labels...)
	p.Y.Max *= 1.25 // room for the legend
	return p.Save(vg.Length(len(labels)+2)*(group+vg.Points(2*bar))+vg.Points(120), vg.Points(420), file)
}

// drawRows draws TFLOPS by row.
func drawRows(r *Report, file string) error {
	var labels []string
	roofline, own := bars{name: "roofline", color: backdrop}, bars{name: "ours", color: ours}
	peers := map[string]plotter.Values{}
	present := map[string]bool{}
	for _, row := range r.Rows {
		if row.TFLOPS == 0 {
			continue
		}
		labels = append(labels, row.Name)
		roofline.values, own.values = append(roofline.values, row.Roofline), append(own.values, row.Scaled)
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
	series := []bars{own}
	for _, name := range peerOrder {
		if present[name] {
			series = append(series, bars{name, peers[name], peerShade[name]})
		}
	}
	return groups(fmt.Sprintf("%s on %s, %s, %s", r.Pass, r.Device, r.Driver, r.Time.Format("2006-01-02")), "TFLOPS", labels, []bars{roofline}, series, file)
}

// drawKernels draws the milliseconds of each kernel beside its roofline's, for
// every row.
func drawKernels(r *Report, file string) error {
	var labels []string
	own, roofline := bars{name: "measured", color: ours}, bars{name: "roofline", color: peerShade["cuBLAS"]}
	for _, row := range r.Rows {
		for _, k := range row.Kernels {
			labels = append(labels, row.Name+" "+k.Name)
			own.values, roofline.values = append(own.values, k.MedianMS), append(roofline.values, k.RooflineMS)
		}
	}
	if len(labels) == 0 {
		return fmt.Errorf("no kernel was measured")
	}
	return groups(fmt.Sprintf("%s kernel by kernel on %s, %s", r.Pass, r.Device, r.Time.Format("2006-01-02")), "ms", labels, nil, []bars{own, roofline}, file)
}
