package setup

import (
	"flag"
	"fmt"
	"strings"

	"sonicmoe/internal/spec"
)

// WeightsFlag adds the flag -weights, a format of packed weights. The parameter use says what the
// program does with it. The value is empty if the flag is not given.
func WeightsFlag(set *flag.FlagSet, use string) *string {
	word := new(string)
	formats := strings.Join(spec.WeightFormats[1:], ", ")
	set.Func("weights", fmt.Sprintf("packed `format` of the experts' weights%s: one of %s", use, formats), func(text string) error {
		if spec.PackingNamed(text) == nil {
			return fmt.Errorf("%q must be one of %s", text, formats)
		}
		*word = text
		return nil
	})
	return word
}

// Pack gives a layer weights in a packed format. Gate and up are in two tensors if the format needs
// that. It does nothing for an empty format.
func Pack(c *spec.Config, format string) {
	if p := spec.PackingNamed(format); p != nil {
		c.Weights = format
		if c.Activation.Gated() && p.LiesApart(c.Intermediate) {
			c.GateUp = spec.Apart
		}
	}
}
