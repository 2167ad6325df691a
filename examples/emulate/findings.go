package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"sonicmoe/examples/internal/command"
	"sonicmoe/ptx/emu"
)

// known lists findings of the emulator that are expected. A line of the file is "LINE RULE",
// such as "37 race". Lines that begin with # are comments.
type known []string

func readKnown(text []byte) (list known, err error) {
	for i, line := range strings.Split(string(text), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		number, rule := 0, ""
		if _, err := fmt.Sscanf(line, "%d %s", &number, &rule); err != nil {
			return nil, fmt.Errorf("line %d of the known findings: %q, want a line of the PTX and a rule, such as \"37 race\"", i+1, line)
		}
		list = append(list, line)
	}
	return list, nil
}

func (k known) has(f *emu.Fault) bool {
	return slices.Contains(k, fmt.Sprintf("%d %v", f.Line, f.Kind))
}

// finding is the JSON form of a finding.
type finding struct {
	Severity string `json:"severity"`
	Rule     string `json:"rule"`
	Kernel   string `json:"kernel"`
	Line     int    `json:"line"` // of the PTX
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
		out = append(out, finding{x.Severity.String(), x.Kind.String(), x.Kernel, x.Line, x.Where, x.CTA, x.Warp, x.Lanes, x.Text, x.Timing.String(), x.Seed, x.Choices, x.Runs})
		place := object{"artifactLocation": object{"uri": file}, "region": object{"startLine": x.Line}}
		results = append(results, object{"ruleId": x.Kind.String(), "level": levels[x.Severity], "message": object{"text": x.Error()},
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
func (k known) report(w io.Writer, format, file string, fail emu.Severity, err error) (summary string, _ error) {
	var found *emu.Findings
	switch {
	case errors.As(err, &found):
	case err == nil && format != "text":
		return "", write(w, format, file, nil)
	default:
		return "nothing", err
	}
	found.List = slices.DeleteFunc(found.List, func(x emu.Finding) bool { return k.has(x.Fault) })
	if format != "text" {
		if err := write(w, format, file, found.List); err != nil {
			return "", err
		}
	}
	switch {
	case len(found.List) == 0:
		return "nothing new", nil
	case found.Severity() > fail && format == "text":
		fmt.Fprintln(w, found)
		return fmt.Sprintf("nothing above %v", found.Severity()), nil
	case found.Severity() > fail:
		return "", nil
	case format != "text":
		return "", fmt.Errorf("%d findings", len(found.List))
	}
	return "", found
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
