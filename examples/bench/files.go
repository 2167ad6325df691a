package main

import (
	"encoding/json"
	"fmt"
	"io"

	"sonicmoe/examples/bench/report"
)

// writeJSON writes the measurements to the file or the stream that -json names.
func (b *bench) writeJSON(v any) error {
	switch b.json {
	case "":
		return nil
	case stdoutName:
		e := json.NewEncoder(b.stdout)
		e.SetIndent("", "  ")
		return e.Encode(v)
	}
	return report.WriteJSON(b.json, v)
}

// outputs writes the files of -json and -plot.
func (b *bench) outputs() error {
	if err := b.writeJSON(b.report); err != nil {
		return err
	}
	if b.json != "" && b.json != stdoutName {
		fmt.Fprintln(b.out, "wrote", b.json)
	}
	if b.plot == "" {
		return nil
	}
	return drawReport(b.out, b.report, b.plot)
}

// drawReport draws the pictures of each pass.
func drawReport(out io.Writer, r *report.Report, plot string) error {
	for _, s := range r.Sections() {
		name := plot
		if s == r.Backward {
			name = report.Beside(plot, "-backward")
		}
		names, err := report.Draw(r, s, name)
		for _, name := range names {
			fmt.Fprintln(out, "wrote", name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
