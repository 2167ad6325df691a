package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"text/tabwriter"

	"sonicmoe/examples/bench/report"
)

// show prints the measurements in a file. If plot is not empty, show draws them to the files
// that plot names.
func show(ctx context.Context, out io.Writer, file, plot string) error {
	s, err := report.ReadStored(ctx, file)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	draw := func() error { return report.DrawComparison(*s.Comparison, plot) }
	switch {
	case s.Report != nil:
		printReport(out, s.Report)
		if s.Report.Emulated && plot != "" {
			return errors.New("no picture: the measurements are of the emulated device and mean nothing")
		}
		draw = func() error { return drawReport(out, s.Report, plot) }
	case s.Decode != nil:
		report.PrintDecodeHead(w)
		for _, p := range s.Decode {
			report.PrintDecodePoint(w, p)
		}
		draw = func() error { return report.DrawDecode(s.Decode, "in "+filepath.Base(file), plot) }
	case s.Rounding != nil:
		report.PrintRoundingHead(w, s.Rounding[0].Rounding)
		for _, p := range s.Rounding {
			report.PrintRoundingPoint(w, p)
		}
		draw = func() error { return report.DrawRounding(s.Rounding, plot) }
	default:
		report.PrintComparison(out, *s.Comparison)
	}
	if err := w.Flush(); err != nil || plot == "" {
		return err
	}
	if err := draw(); err != nil || s.Report != nil {
		return err
	}
	fmt.Fprintln(out, "wrote", plot)
	return nil
}

// printReport prints a whole report.
func printReport(out io.Writer, r *report.Report) {
	report.PrintHead(out, r)
	for _, s := range r.Sections() {
		for _, row := range s.Rows {
			report.PrintRow(out, row)
		}
	}
	for _, s := range r.Sections() {
		report.PrintSummary(out, s)
	}
	if r.Fit != nil {
		report.PrintFit(out, r.Fit)
	}
}
