// Command speedpage writes the page examples/bench/h200/speed.md from the measured figures in
// examples/bench/h200/speed.json.
//
//	go run ./examples/bench/speedpage
package main

import (
	_ "embed"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"sonicmoe/examples/bench/report"
	"sonicmoe/examples/internal/command"
)

//go:embed page.tmpl
var page string

// render returns the text of the page. data is the content of the JSON file.
func render(data []byte) (string, error) {
	f, err := report.ParseComparison(data)
	if err != nil {
		return "", err
	}
	t, err := template.New("page").Funcs(template.FuncMap{
		"ms":       threeDigits,
		"x":        func(v float64) string { return fmt.Sprintf("%.2f", v) },
		"pc":       percent,
		"passes":   func() []string { return []string{"Forward", "Backward"} },
		"regimes":  report.Regimes.List,
		"means":    f.Means,
		"passesOf": func(list ...report.AlonePass) []report.AlonePass { return list },
	}).Parse(page)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	err = t.Execute(&b, f)
	return b.String(), err
}

// threeDigits formats times to three digits: 0.832, 9.77, 22.3. It returns nothing for 0, which means
// not measured.
func threeDigits(v float64) string {
	if v == 0 {
		return ""
	}
	return fmt.Sprintf("%.*f", max(0, 2-int(math.Floor(math.Log10(v)))), v)
}

// percent formats a share. It returns nothing for 0.
func percent(v float64) string {
	if v == 0 {
		return ""
	}
	return fmt.Sprintf("%.0f %%", 100*v)
}

// write writes the page in the repository whose root is given.
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
