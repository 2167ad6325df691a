package main

import (
	"fmt"
	"io"
)

// works writes a Markdown table that says, for each model, what a layer of this library
// computes of the model's MoE block.
func works(out io.Writer, plans []plan) error {
	if _, err := fmt.Fprint(out, "| model | d, n, E, K, shared | forward and backward |\n|---|---|---|\n"); err != nil {
		return err
	}
	for _, p := range plans {
		computed := "the whole block"
		switch {
		case p.beyond != nil:
			computed = "not yet"
		case len(p.Outside) > 0:
			computed = "the experts; the rest of the block is yours (`plan` says what)"
		}
		if _, err := fmt.Fprintf(out, "| %s | %d, %d, %d, %d, %d | %s |\n", p.Name,
			p.Config.Hidden, p.Config.Intermediate, p.Config.NumExperts, p.Config.TopK, p.Config.SharedExperts, computed); err != nil {
			return err
		}
	}
	return nil
}
