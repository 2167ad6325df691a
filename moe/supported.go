package moe

import (
	"errors"
	"fmt"

	"sonicmoe/moe/internal/route"
)

// Check returns nil for a configuration that [New] can make a layer of, else an
// [*ArgError] that names the first field that is wrong, or an error of one line,
// and one [*ArgError], for each that is right but beyond what the kernels compute.
func Check(c Config) error {
	if err := c.Check(); err != nil {
		return err
	}
	return unsupported(c)
}

// unsupported names all of a right configuration that no kernel computes. It is
// the one list of that: a kernel that learns more takes its line out.
func unsupported(c Config) error {
	var lacks []error
	lack := func(field string, got any, want string, args ...any) {
		lacks = append(lacks, &ArgError{Field: "Config." + field, Got: fmt.Sprint(got), Want: fmt.Sprintf(want, args...)})
	}
	for _, w := range []struct {
		field        string
		width, least int
	}{{"Hidden", c.Hidden, 128}, {"Intermediate", c.Intermediate, 64}} {
		if w.width%64 != 0 || w.width < w.least {
			lack(w.field, w.width, "a multiple of 64, at least %d", w.least)
		}
	}
	if c.Rounds() && (!route.ScoresTellLogits(c) || c.Groups != 0) {
		lack("Rounding", c.Rounding, "none, but with SoftmaxTopK without groups and scales, whose scores are all that is rounded")
	}
	return errors.Join(lacks...)
}
