package main

import (
	"encoding/json"
	"fmt"

	"sonicmoe/examples/bench/report"
)

// outputs writes what -json and -plot ask for.
func (b *bench) outputs() error {
	switch b.json {
	case "":
	case stdoutName:
		e := json.NewEncoder(b.stdout)
		e.SetIndent("", "  ")
		if err := e.Encode(b.report); err != nil {
			return err
		}
	default:
		if err := b.report.Write(b.json); err != nil {
			return err
		}
		fmt.Fprintln(b.out, "wrote", b.json)
	}
	if b.plot == "" {
		return nil
	}
	for _, s := range b.report.Sections() {
		name := b.plot
		if s == b.report.Backward {
			name = report.Beside(b.plot, "-backward")
		}
		names, err := report.Draw(b.report, s, name)
		for _, name := range names {
			fmt.Fprintln(b.out, "wrote", name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
