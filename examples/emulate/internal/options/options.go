// Package options has the options that command emulate passes to a program that it runs.
package options

import (
	"encoding/json"
	"fmt"
)

// Variable is the environment variable with the options. The library in CUDA's place reads it.
const Variable = "SONICMOE_EMULATE"

// Run has the options. Fields with the name of a field of emu.Launch mean the same.
type Run struct {
	// Check is the number of random orders in which each launch runs, in addition to the earliest
	// and the latest. 0 runs it once.
	Check int
	// Explore is the number of orders in which each launch runs systematically.
	Explore int
	Races   bool // look for races in the one run of a launch
	Stop    bool // end a launch at its first finding that is not a note; later calls then return an error
	Strict  bool
	NaN     bool
	Seed    uint64
	SMs     int // multiprocessors of the device; 0 means DefaultSMs
	// Findings is a file to which the library appends each finding, as a line of JSON.
	Findings string
	// Known lists findings, as "LINE RULE", after which a launch goes on and which are not reported.
	Known []string
	// HTML is a folder for pages of findings, Trace one for a trace of each kernel's first launch, and
	// PTX one for the text of the program's kernels. They are "" for none.
	HTML, Trace, PTX string
	CTAs             int // number of CTAs that a trace has
	// Quiet keeps the findings from standard error.
	Quiet bool
}

// DefaultSMs is the number of multiprocessors without an option. The largest cluster that every
// program may launch has as many CTAs.
const DefaultSMs = 8

// Text returns the options as the variable has them.
func (r Run) Text() string {
	text, _ := json.Marshal(r) // a struct of numbers and strings
	return string(text)
}

// Read returns the options of the variable's text.
func Read(text string) (r Run, err error) {
	if text != "" {
		if err = json.Unmarshal([]byte(text), &r); err != nil {
			return r, fmt.Errorf("%s: %w", Variable, err)
		}
	}
	if r.SMs <= 0 {
		r.SMs = DefaultSMs
	}
	return r, nil
}
