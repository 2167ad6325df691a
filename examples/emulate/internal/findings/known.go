package findings

import (
	"fmt"
	"slices"
	"strings"

	"sonicmoe/ptx/emu"
)

// Known lists findings of the emulator that are expected. An entry is "LINE RULE", such as
// "37 race".
type Known []string

// ReadKnown reads a list. Lines that begin with # are comments.
func ReadKnown(text []byte) (list Known, err error) {
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

// Has reports whether a finding is expected.
func (k Known) Has(f *emu.Fault) bool {
	return slices.Contains(k, fmt.Sprintf("%d %v", f.Line, f.Kind))
}
