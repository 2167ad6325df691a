package moe

import (
	"fmt"

	"sonicmoe/moe/internal/route/training"
)

// Check returns nil for a configuration that [New] can make a layer of, else an
// [*ArgError] that names the first field that is wrong, or is right but beyond
// what the kernels compute.
func Check(c Config) error {
	if err := c.Check(); err != nil {
		return err
	}
	return unsupported(c)
}

// unsupported names what of a right configuration no kernel computes. It is the
// one place of that: a kernel that learns more takes its part out.
func unsupported(c Config) error {
	if c.Rounds() && (!training.ScoresTellLogits(c) || c.Groups != 0) {
		return &ArgError{Field: "Config.Rounding", Got: fmt.Sprint(c.Rounding), Want: "none, but with SoftmaxTopK without groups and scales, whose scores are all that is rounded"}
	}
	return nil
}
