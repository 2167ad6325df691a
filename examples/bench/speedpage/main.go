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

// Figures are measured times in milliseconds: this library's and SonicMoE's, measured
// in turns.
type Figures struct {
	Device, Date, Commit string
	// CuBLAS8192 is the speed of an 8192³ bf16 product by cuBLAS in the same run, in
	// TFLOPS.
	CuBLAS8192 struct{ Rested, Load, Steady float64 }
	Rows       []Row
	Steady     []Steady
	// Models has the times of models' layers: forward passes, after 200 ms of load, without
	// a competitor.
	Models []Model
}

// Pair is this library's figure and SonicMoE's.
type Pair [2]float64

// Ratio is SonicMoE's figure over this library's.
func (p Pair) Ratio() float64 { return p[1] / p[0] }

// Row is a layer on a rested chip and after 200 ms of load.
type Row struct {
	Name, Shape       string // d,n,E,K
	Tokens            int
	Forward, Backward Pass
}

// Pass is a pass on a rested chip, after 200 ms of load and, for this library alone,
// after 2 s.
type Pass struct {
	Rested, Load Pair
	Load2s       float64 `json:"load_2s"`
}

// Steady is a layer at the chip's power limit, where time is energy.
type Steady struct {
	Name              string
	Forward, Backward struct{ MS, Joules Pair }
	Watts             Pair
}

// Model is a layer of a model, by this library alone.
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
		"ms":     threeDigits,
		"pair":   func(p Pair) string { return threeDigits(p[0]) + ", " + threeDigits(p[1]) },
		"x":      func(v float64) string { return fmt.Sprintf("%.2f", v) },
		"pc":     func(v float64) string { return fmt.Sprintf("%.0f %%", 100*v) },
		"passes": func() []string { return []string{"Forward", "Backward"} },
		"mean":   f.mean, "least": f.bounds(math.Min), "most": f.bounds(math.Max),
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

// mean returns the geometric mean of the speed ratios of all rows.
func (f Figures) mean(pass, regime string) float64 {
	var sum float64
	for _, r := range f.Rows {
		of := r.Forward
		if pass == "Backward" {
			of = r.Backward
		}
		p := of.Rested
		if regime == "load" {
			p = of.Load
		}
		sum += math.Log(p.Ratio())
	}
	return math.Exp(sum / float64(len(f.Rows)))
}

// bounds returns the smallest or the largest ratio in steady load.
func (f Figures) bounds(pick func(a, b float64) float64) func(pass, what string) float64 {
	return func(pass, what string) float64 {
		found := math.NaN()
		for _, s := range f.Steady {
			of := s.Forward
			if pass == "Backward" {
				of = s.Backward
			}
			p := of.MS
			if what == "joules" {
				p = of.Joules
			}
			if math.IsNaN(found) {
				found = p.Ratio()
			}
			found = pick(found, p.Ratio())
		}
		return found
	}
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
