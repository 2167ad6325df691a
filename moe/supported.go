package moe

import (
	"fmt"

	"sonicmoe/moe/internal/route/training"
)

// Check returns nil if [New] can create a layer with the configuration. Otherwise it returns an
// [*ArgError] for the first field that is wrong, or that has a valid value which the kernels do not
// support.
func Check(c Config) error {
	if err := c.Check(); err != nil {
		return err
	}
	return unsupported(c.Normal())
}

// unsupported returns an error for the first field with a valid value that no kernel supports. All
// such limits are in this function.
func unsupported(c Config) error {
	if c.Rounds() && (!training.ScoresTellLogits(c) || c.Groups != 0) {
		return &ArgError{Field: "Config.Rounding", Got: fmt.Sprint(c.Rounding), Want: "none: rounding needs softmax-topk scores without groups and scales"}
	}
	return nil
}
