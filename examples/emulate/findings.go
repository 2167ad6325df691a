package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"sonicmoe/examples/emulate/internal/findings"
	"sonicmoe/examples/internal/command"
	"sonicmoe/ptx/emu"
)

// finding is the JSON form of a finding.
type finding struct {
	Severity string `json:"severity"`
	Rule     string `json:"rule"`
	Kernel   string `json:"kernel"`         // as the PTX has it
	Name     string `json:"name,omitempty"` // the C++ name, if it is another one
	Line     int    `json:"line"`           // of the PTX
	Where    string `json:"where,omitempty"`
	CTA      [3]int `json:"cta"`
	Warp     int    `json:"warp"`
	Lanes    uint32 `json:"lanes"`
	Text     string `json:"text"`
	Timing   string `json:"timing"`
	Seed     uint64 `json:"seed"`
	Choices  string `json:"choices,omitempty"`
	Runs     int    `json:"runs"`
}

type object map[string]any

// levels maps severities to their names in SARIF.
var levels = map[emu.Severity]string{emu.Error: "error", emu.Strict: "warning", emu.Note: "note"}

// write writes findings in the format "json" or "sarif".
func write(w io.Writer, format, file string, list []emu.Finding) error {
	out, results := []finding{}, []object{}
	for _, x := range list {
		name := findings.Name(x.Kernel)
		if name == x.Kernel {
			name = ""
		}
		out = append(out, finding{x.Severity.String(), x.Kind.String(), x.Kernel, name, x.Line, x.Where, x.CTA, x.Warp, x.Lanes, findings.Readable(x.Text), x.Timing.String(), x.Seed, x.Choices, x.Runs})
		place := object{"artifactLocation": object{"uri": file}, "region": object{"startLine": x.Line}}
		results = append(results, object{"ruleId": x.Kind.String(), "level": levels[x.Severity], "message": object{"text": findings.Readable(x.Error())},
			"locations": []object{{"physicalLocation": place}}})
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	if format == "json" {
		return e.Encode(object{"findings": out})
	}
	return e.Encode(object{"version": "2.1.0", "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
		"runs": []object{{"tool": object{"driver": object{"name": "emulate"}}, "results": results}}})
}

// report removes the known findings from the error of a run and writes the others. It returns
// an error only if a finding has the severity fail or a higher one. summary describes the
// remaining findings.
func report(w io.Writer, format, file string, known findings.Known, fail emu.Severity, err error) (summary string, _ error) {
	var found *emu.Findings
	switch {
	case errors.As(err, &found):
	case err == nil && format != "text":
		return "", write(w, format, file, nil)
	default:
		return "nothing", err
	}
	found.List = slices.DeleteFunc(found.List, func(x emu.Finding) bool { return known.Has(x.Fault) })
	if format != "text" {
		if err := write(w, format, file, found.List); err != nil {
			return "", err
		}
	}
	switch {
	case len(found.List) == 0:
		return "nothing new", nil
	case found.Severity() > fail && format == "text":
		fmt.Fprintln(w, shown{found})
		return fmt.Sprintf("nothing above %v", found.Severity()), nil
	case found.Severity() > fail:
		return "", nil
	case format != "text":
		return "", counted(len(found.List))
	}
	return "", shown{found}
}

// shown is an error with the C++ names of its findings.
type shown struct{ *emu.Findings }

func (s shown) Error() string { return findings.Readable(s.Findings.Error()) }

func (s shown) Unwrap() error { return s.Findings }

// writePages writes an HTML page for each finding in the error of a run that is not known.
func writePages(ctx context.Context, folder string, p findings.Pages, known findings.Known, err error) error {
	var found *emu.Findings
	if folder == "" || !errors.As(err, &found) {
		return nil
	}
	return p.Write(ctx, folder, slices.DeleteFunc(slices.Clone(found.List), func(x emu.Finding) bool { return known.Has(x.Fault) }))
}

// counted returns an error with the number of findings.
func counted(n int) error {
	if n == 1 {
		return errors.New("1 finding")
	}
	return fmt.Errorf("%d findings", n)
}

// severityOf returns the severity with a name.
func severityOf(name string) (emu.Severity, error) {
	for s := emu.Error; s <= emu.Note; s++ {
		if s.String() == name {
			return s, nil
		}
	}
	return 0, command.Usagef("-fail is %q, must be error, strict or note", name)
}

// timingOf returns the timing with a name.
func timingOf(name string) (emu.Timing, error) {
	for t := emu.Early; t <= emu.Chosen; t++ {
		if t.String() == name {
			return t, nil
		}
	}
	return 0, command.Usagef("-timing is %q, must be early, late, random or chosen", name)
}
