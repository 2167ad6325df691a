package picture

import (
	"errors"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Emulated is appended to the title of a picture whose times were measured on the emulated
// device.
const Emulated = ": EMULATED, these times mean nothing"

// New returns an empty plot in the common style, with lines at round values of y.
func New(title, x, y string) *plot.Plot {
	p := bare(title, x, y)
	p.Y.Tick.Marker = plot.TickerFunc(ticks)
	p.Legend.Top, p.Legend.Left = true, true
	lines := plotter.NewGrid()
	lines.Vertical.Color = nil
	p.Add(lines)
	return p
}

// NewSideways returns a plot for horizontal bars, with lines at round values of x.
func NewSideways(title, x string) *plot.Plot {
	p := bare(title, x, "")
	p.X.Tick.Marker = plot.TickerFunc(ticks)
	lines := plotter.NewGrid()
	lines.Horizontal.Color = nil
	p.Add(lines)
	return p
}

// bare returns an empty plot in the common style: a sans-serif font, and room for the title and
// between the lines of a legend.
func bare(title, x, y string) *plot.Plot {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	p.Title.Padding = vg.Points(10)
	sans := font.Font{Typeface: "Liberation", Variant: "Sans"}
	for _, f := range []*font.Font{&p.Title.TextStyle.Font, &p.X.Label.TextStyle.Font, &p.Y.Label.TextStyle.Font,
		&p.X.Tick.Label.Font, &p.Y.Tick.Label.Font, &p.Legend.TextStyle.Font} {
		f.Typeface, f.Variant = sans.Typeface, sans.Variant
	}
	p.Legend.Padding = vg.Points(3)
	p.Legend.ThumbnailWidth = vg.Points(14)
	return p
}

// LogTicks puts ticks at every digit of every decade of a logarithmic axis, with labels at 1, 2
// and 5.
var LogTicks = plot.TickerFunc(func(least, most float64) (list []plot.Tick) {
	for decade := math.Pow(10, math.Floor(math.Log10(least))); decade <= most; decade *= 10 {
		for digit := 1.; digit < 10; digit++ {
			tick := plot.Tick{Value: digit * decade}
			if digit == 1 || digit == 2 || digit == 5 {
				tick.Label = strconv.FormatFloat(tick.Value, 'g', 6, 64)
			}
			if tick.Value >= least && tick.Value <= most {
				list = append(list, tick)
			}
		}
	}
	return list
})

// ticks returns about six ticks at multiples of 1, 2 or 5 times a power of ten.
func ticks(least, most float64) (list []plot.Tick) {
	if !(most > least) {
		return nil
	}
	step := math.Pow(10, math.Floor(math.Log10((most-least)/4)))
	for _, by := range []float64{5, 2} {
		if (most-least)/(by*step) >= 4 {
			step *= by
			break
		}
	}
	for i := math.Ceil(least / step); i*step <= most*(1+1e-9); i++ {
		v := i*step + 0 // +0 makes -0 a 0
		list = append(list, plot.Tick{Value: v, Label: strconv.FormatFloat(math.Round(v/step*1e6)/1e6*step, 'g', 4, 64)})
	}
	return list
}

const margin = vg.Length(12) // width of the margin around the picture and between its parts

// Save draws a plot to a file. The legend is at the right. The title is broken into as many
// lines as it needs.
func Save(p *plot.Plot, width, height vg.Length, file string) error {
	c, err := draw.NewFormattedCanvas(width, height, strings.TrimPrefix(filepath.Ext(file), "."))
	if err != nil {
		return err
	}
	page := draw.New(c)
	page.SetColor(color.White)
	page.Fill(page.Rectangle.Path())
	page = draw.Crop(page, margin, -margin, margin, -margin)
	legend := p.Legend
	p.Legend = plot.NewLegend()
	beside := legend.Rectangle(page).Size().X
	if beside > 0 {
		beside += margin
	}
	left := draw.Crop(page, 0, -beside, 0, 0)
	p.Title.Text = wrap(p.Title.TextStyle, p.Title.Text, left.Size().X)
	p.Draw(left)
	title := p.Title.TextStyle.Rectangle(p.Title.Text).Size().Y + p.Title.Padding
	legend.Draw(draw.Crop(page, page.Size().X-beside+margin, 0, 0, -title))
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	_, err = c.WriteTo(f)
	return errors.Join(err, f.Close())
}

// wrap breaks a title between words, so that no line is wider than width.
func wrap(style draw.TextStyle, text string, width vg.Length) string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		next := strings.TrimSpace(line + " " + word)
		if line != "" && style.Width(next) > width {
			lines = append(lines, line)
			next = word
		}
		line = next
	}
	return strings.Join(append(lines, line), "\n")
}
