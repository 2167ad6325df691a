// Command speedpage writes examples/bench/h200/speed.md from the measured figures in
// examples/bench/h200/speed.json.
//
//	go run ./examples/bench/speedpage
package main

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"sonicmoe/examples/internal/command"
)

// Figures has all figures of the page, with times in milliseconds.
type Figures struct {
	// SonicMoE is the version that Rows and Products compare with. Date and Commit are those
	// of this library in the same run.
	Device, SonicMoE, Date, Commit string
	Rows                           []Row
	// FirstSeconds is the range, over the rows, of SonicMoE's first forward and backward with
	// its autotuning.
	FirstSeconds [2]float64 `json:"first_seconds"`
	// ProductLayers names the layers of each Product's times.
	ProductLayers []string `json:"product_layers"`
	Products      []Product
	Alone         Alone
}

// Pair is two figures: this library's and SonicMoE's.
type Pair [2]float64

// Ratio is SonicMoE's figure over this library's.
func (p Pair) Ratio() float64 { return p[1] / p[0] }

// Row is a layer in each regime.
type Row struct {
	Name, Shape       string // d,n,E,K
	Tokens            int
	Forward, Backward Pass
}

// Pass is a pass on a rested chip, after 200 ms of load, and in steady load. Joules is
// the energy of a pass in steady load.
type Pass struct{ Rested, Load, Steady, Joules Pair }

// regimes returns the pairs in the order of the page's columns.
func (p Pass) regimes() [4]Pair { return [4]Pair{p.Rested, p.Load, p.Steady, p.Joules} }

// Product is one grouped product after 200 ms of load: in this library's pass, and alone in
// quack-kernels.
type Product struct {
	Name string
	MS   []Pair
}

// Ratio is the geometric mean of the ratios over the layers.
func (p Product) Ratio() float64 { return mean(p.MS) }

// Alone has times of this library without a competitor, of another run.
type Alone struct {
	Date, Commit string
	// CuBLAS8192 is the speed of an 8192³ bf16 product by cuBLAS in the same run, in
	// TFLOPS.
	CuBLAS8192 struct{ Rested, Load, Steady float64 }
	Rows       []struct {
		Name, Shape       string // d,n,E,K
		Tokens            int
		Forward, Backward AlonePass
	}
	// Models has the times of models' layers: forward passes after 200 ms of load.
	Models []Model
}

// AlonePass is a pass on a rested chip, and after 200 ms and 2 s of load.
type AlonePass struct {
	Rested, Load float64
	Load2s       float64 `json:"load_2s"`
}

// Model is a layer of a model.
type Model struct {
	Name       string
	ForwardMS  float64 `json:"forward_ms"`
	OfRoofline float64 `json:"of_roofline"`
}

//go:embed page.tmpl
var page string

// render returns the page of the figures.
func render(data []byte) (string, error) {
	var f Figures
	strict := json.NewDecoder(bytes.NewReader(data))
	strict.DisallowUnknownFields()
	if err := strict.Decode(&f); err != nil {
		return "", err
	}
	t, err := template.New("page").Funcs(template.FuncMap{
		"ms":      threeDigits,
		"x":       func(v float64) string { return fmt.Sprintf("%.2f", v) },
		"pc":      func(v float64) string { return fmt.Sprintf("%.0f %%", 100*v) },
		"passes":  func() []string { return []string{"Forward", "Backward"} },
		"regimes": Pass.regimes,
		"means":   f.means,
	}).Parse(page)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	err = t.Execute(&b, f)
	return b.String(), err
}

// threeDigits formats times to three digits: 0.832, 9.77, 22.3.
func threeDigits(v float64) string {
	return fmt.Sprintf("%.*f", max(0, 2-int(math.Floor(math.Log10(v)))), v)
}

// mean returns the geometric mean of the pairs' ratios.
func mean(pairs []Pair) float64 {
	var sum float64
	for _, p := range pairs {
		sum += math.Log(p.Ratio())
	}
	return math.Exp(sum / float64(len(pairs)))
}

// means returns the geometric mean of the ratios over the rows, for each regime of a pass:
// rested, after 200 ms of load, steady, and joules in steady load.
func (f Figures) means(pass string) []float64 {
	var pairs [4][]Pair
	for _, r := range f.Rows {
		p := r.Forward
		if pass == "Backward" {
			p = r.Backward
		}
		for i, v := range p.regimes() {
			pairs[i] = append(pairs[i], v)
		}
	}
	list := make([]float64, len(pairs))
	for i, p := range pairs {
		list[i] = mean(p)
	}
	return list
}

// write renders examples/bench/h200/speed.md of the repository at root.
func write(root string) error {
	data, err := os.ReadFile(filepath.Join(root, "examples", "bench", "h200", "speed.json"))
	if err != nil {
		return err
	}
	text, err := render(data)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(root, "examples", "bench", "h200", "speed.md"), []byte(text), 0o644)
}

func main() {
	program := command.Program{Name: "speedpage", Purpose: "writes examples/bench/h200/speed.md from examples/bench/h200/speed.json, at the repository's root."}
	err := program.Parse(program.Flags(), os.Args[1:], os.Stdout)
	if err == nil {
		err = write(".")
	}
	os.Exit(program.Exit(err, os.Stderr))
}
